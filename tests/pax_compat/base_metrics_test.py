"""Metrics of several batches against numpy, and losses of several metrics."""

import doctest

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clu import metrics as clu_metrics

from pax_compat import base_metrics, errors

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=5)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 3.0])


def _stored(metrics: base_metrics.BaseMetrics, name='a', values=VALUES):
  for value, weight in zip(values, WEIGHTS, strict=True):
    # A value of weight 0 may be anything.
    metrics.store({name: (value if weight else np.nan, weight), 'b': (9.0, 1)})
  return metrics.finalize()


def test_examples():
  found = doctest.testmod(base_metrics)
  assert found.attempted and not found.failed


def test_means_are_weighted():
  found = _stored(base_metrics.MeanMetrics.config().Instantiate())
  value, weight = found['a']
  np.testing.assert_allclose(value, np.average(VALUES, weights=WEIGHTS), 1e-12)
  assert weight == WEIGHTS.sum()
  assert found['b'] == (9.0, 5.0)


def test_many_small_weights_do_not_get_lost():
  means = base_metrics.MeanMetrics()
  means.store({'a': (np.float32(1), np.float32(2**25))})
  for _ in range(8):  # in float32, 2^25 + 1 is 2^25
    means.store({'a': (np.float32(2), np.float32(1))})
  assert means.finalize()['a'][0] == (2**25 + 16) / (2**25 + 8)


def test_what_never_had_a_weight_is_left_out():
  means = base_metrics.MeanMetrics()
  means.store({'a': (np.nan, 0.0), 'b': (3.0, 0.5)})
  assert means.finalize() == {'b': (3.0, 0.5)}


@pytest.mark.parametrize(
  'metrics',
  [
    base_metrics.MeanMetrics.config(),
    base_metrics.MaxMetrics.config(),
    base_metrics.HistogramMetrics.config(histogram_key='a'),
    base_metrics.CompositeMetrics.config(
      metrics_p=[base_metrics.MaxMetrics.config()]
    ),
  ],
)
def test_what_was_read_out_is_forgotten(metrics):
  metrics = metrics.Instantiate()
  values = np.abs(RNG.normal(size=[5, 3]))
  first = _stored(metrics, values=values)
  assert metrics.finalize() == {}
  again = _stored(metrics, values=values)
  jax.tree.map(np.testing.assert_array_equal, again, first)


def test_the_largest_values_of_what_counts():
  found = _stored(base_metrics.MaxMetrics.config().Instantiate())
  assert found['a'] == (VALUES[WEIGHTS > 0].max(), WEIGHTS.sum())


def test_chosen_metrics_only():
  metrics = base_metrics.MaxMetrics.config(metric_keys=['a']).Instantiate()
  assert set(_stored(metrics)) == {'a'}
  assert metrics.names() == {'a'}


def test_a_spread_over_classes():
  metrics = base_metrics.HistogramMetrics.config(histogram_key='h')
  metrics = metrics.Instantiate()
  # Two groups: evenly over 4 classes, and all in one of them.
  metrics.store({'h': (np.array([[2, 2, 0, 0], [0, 3, 0, 0]]), 1.0)})
  metrics.store({'h': (np.array([[0, 0, 2, 2], [0, 3, 0, 0]]), 2.0)})
  metrics.store({'h': (np.full([2, 4], np.nan), 0.0)})
  found = metrics.finalize()
  pplx = (4 + 1) / 2
  for name, value in (('pplx', pplx), ('entropy', np.log(pplx))):
    np.testing.assert_allclose(found[f'h_{name}'], (value, 3.0), rtol=1e-6)
  assert found['h_coverage'] == (5 / 8, 3.0)


def test_a_spread_in_one_group():
  metrics = base_metrics.HistogramMetrics(histogram_key='h')
  metrics.store({'h': (np.array([3.0, 1.0, 0.0]), 1.0)})
  entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
  found = metrics.finalize()
  np.testing.assert_allclose(found['h_entropy'][0], entropy, rtol=1e-6)
  np.testing.assert_allclose(found['h_coverage'][0], 2 / 3, rtol=1e-6)


class CountedSetUp(base_metrics.HistogramMetrics):
  """Counts how often it was set up."""

  def __post_init__(self):
    super().__post_init__()
    self.set_ups = getattr(self, 'set_ups', 0) + 1


def test_a_histogram_starts_again_without_another_set_up():
  metrics = CountedSetUp(histogram_key='h')
  for counts in ([3.0, 1.0], [2.0, 2.0]):
    metrics.store({'h': (np.array(counts), 1.0)})
    found = metrics.finalize()
  np.testing.assert_allclose(found['h_pplx'], (2.0, 1.0), rtol=1e-6)
  assert metrics.finalize() == {}
  assert metrics.set_ups == 1


def test_several_metrics_side_by_side():
  metrics = base_metrics.CompositeMetrics.config(
    metrics_p=[
      base_metrics.MeanMetrics.config(metric_keys=['b']),
      base_metrics.MaxMetrics.config(metric_keys=['a']),
    ]
  ).Instantiate()
  found = _stored(metrics)
  assert set(found) == {'a', 'b'} == metrics.names()
  assert found['a'][0] == VALUES[WEIGHTS > 0].max()


class Latest(base_metrics.BaseMetrics):
  """The last stored values, as a metric of Pax is written."""

  def aggregate(self, batch_metrics, reshard=False):
    del reshard
    return batch_metrics

  def finalize(self):
    found = {k: stored[-1] for k, stored in self._metrics.items()}
    self._metrics.clear()
    return found


def test_a_metric_written_for_pax_computes_with_what_is_stored():
  metrics = Latest(name='latest')
  metrics.store({'a': (1.0, 2.0), 'b': (np.nan, 0.0)}, reshard=True)
  metrics.store({'a': (3.0, 4.0)})
  metrics.store({'a': (np.nan, 0.0)})
  assert metrics.finalize() == {'a': (3.0, 4.0)}
  assert metrics.finalize() == {}


def _of_replicas(metrics, values, weights):
  """Returns `metrics.aggregate` of replicas, as the first one has it."""

  def of_replica(value, weight):
    return metrics.aggregate({'a': (value, weight), 'b': (value, weight)})

  found = jax.vmap(of_replica, axis_name='batch')(values, weights)
  return jax.tree.map(lambda x: np.asarray(x)[0], found)


def test_metrics_of_replicas():
  values, weights = jnp.array([1.0, 2.0, 6.0]), jnp.array([1.0, 1.0, 2.0])
  mean = base_metrics.MeanMetrics(metric_keys=['a'])
  largest = base_metrics.MaxMetrics(metric_keys=['b'])
  assert _of_replicas(mean, values, weights) == {'a': (3.75, 4.0)}
  assert _of_replicas(largest, values, weights) == {'b': (6.0, 4.0)}
  histogram = base_metrics.HistogramMetrics(histogram_key='a')
  counts = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
  counted, weight = _of_replicas(histogram, counts, weights)['a']
  np.testing.assert_array_equal(counted, [3.0, 1.0])
  assert weight == 4.0
  both = base_metrics.CompositeMetrics(
    metrics_p=[
      base_metrics.MeanMetrics.config(metric_keys=['a']),
      base_metrics.MaxMetrics.config(metric_keys=['b']),
    ]
  )
  found = _of_replicas(both, values, weights)
  assert found == {'a': (3.75, 4.0), 'b': (6.0, 4.0)}


def test_metrics_of_a_whole_batch_are_those_of_all_replicas():
  metrics = base_metrics.MeanMetrics(metric_keys=['a'])
  assert metrics.aggregate({'a': (1.0, 2.0), 'b': (0.0, 1.0)}) == {
    'a': (1.0, 2.0)
  }


METRICS = {
  'loss': (jnp.float32(2.0), jnp.float32(8.0)),
  'aux': (jnp.float32(0.5), jnp.float32(1.0)),
}


def test_a_loss_is_one_of_the_metrics():
  aggregator = base_metrics.LossAggregator(loss_key='loss')
  assert aggregator.aggregate(METRICS) == (2.0, 2.0, 8.0)
  assert aggregator.loss_name == 'loss'


def test_a_loss_that_is_not_there():
  aggregator = base_metrics.LossAggregator(loss_key='los')
  with pytest.raises(
    errors.UserError, match="'los', which is not among .*mean: loss"
  ):
    aggregator.aggregate(METRICS)


@pytest.mark.parametrize(
  ('weights', 'total'),
  [(None, 2.5), ([1.0, 4.0], 4.0), ({'aux': 2.0, 'loss': 0.5}, 2.0)],
)
def test_a_loss_of_several_metrics(weights, total):
  aggregator = base_metrics.MultiLossAggregator.config(
    loss_keys=['loss', 'aux'], loss_weights=weights
  ).Instantiate()
  assert aggregator.aggregate(METRICS) == (total, total, None)
  assert aggregator.loss_name == 'total_loss'


@pytest.mark.parametrize('weights', [[1.0], [1, 2, 3], {'loss': 1}, {'x': 1}])
def test_each_loss_has_a_weight_or_none_has(weights):
  config = base_metrics.MultiLossAggregator.config(
    loss_keys=['loss', 'aux'], loss_weights=weights
  )
  with pytest.raises(errors.UserError, match=r"each of .* \['loss', 'aux'\]"):
    config.Instantiate()


def test_several_losses_have_no_single_key():
  with pytest.raises(
    errors.UserError, match="loss_key is 'a'; expected loss_k"
  ):
    base_metrics.MultiLossAggregator(loss_keys=['a', 'b'], loss_key='a')


def test_a_clu_metric_as_the_loss():
  values = jnp.array([1.0, 5.0, jnp.nan])
  metric = base_metrics.WeightedScalarCluMetric.create(
    values, jnp.array([1.0, 3.0, 0.0])
  )
  aggregator = base_metrics.LossAggregator(loss_key='loss')
  assert aggregator.aggregate({'loss': metric}) == (4.0, 4.0, 4.0)


def test_a_clu_metric_that_is_not_a_loss():
  @flax.struct.dataclass
  class Other(clu_metrics.Metric):
    value: float

  aggregator = base_metrics.LossAggregator(loss_key='loss')
  with pytest.raises(errors.UserError, match="'loss' is a Other; expected"):
    aggregator.aggregate({'loss': Other(1.0)})


def test_a_weighted_mean_as_a_clu_metric():
  total = base_metrics.WeightedScalarCluMetric.empty()
  assert jnp.isnan(total.compute())
  for value, weight in zip(VALUES, WEIGHTS, strict=True):
    one = base_metrics.WeightedScalarCluMetric.create(
      jnp.float32(value if weight else jnp.nan), jnp.float32(weight)
    )
    total = total.merge(one)
  np.testing.assert_allclose(
    total.compute(), np.average(VALUES, weights=WEIGHTS), rtol=1e-6
  )


def test_many_small_weights_do_not_get_lost_in_clu_metrics():
  def fetched(value, weight):
    weight = jnp.float32(weight)
    return jax.device_get(
      base_metrics.WeightedScalarCluMetric.create(jnp.float32(value), weight)
    )

  total = fetched(1, 2**25)
  for _ in range(8):  # in float32, 2^25 + 1 is 2^25
    total = total.merge(fetched(2, 1))
  assert total.compute() == (2**25 + 16) / (2**25 + 8)
  # Within a step, it stays in float32.
  of_step = jax.jit(lambda x: x.merge(x).weight)(total)
  assert of_step.dtype == jnp.float32


def test_nothing_with_a_weight_has_no_gradient():
  def mean(values):
    metric = base_metrics.WeightedScalarCluMetric.create(
      values, jnp.array([0.0, 2.0])
    )
    return metric.compute()

  gradient = jax.grad(mean)(jnp.array([jnp.inf, 1.0]))
  np.testing.assert_array_equal(gradient, [0.0, 1.0])
