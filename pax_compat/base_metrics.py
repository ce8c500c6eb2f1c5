"""Metrics aggregated over batches, and the choice of the loss among them.

A batch's metrics are `{name: (value, weight)}`, computed over all devices and
processes in one step. A `BaseMetrics` merges those of several batches, on the
host, in double precision. A value of weight 0, such as that of a batch of
padding rows, is ignored, even if it is NaN.

Synopsis:

>>> metrics = MeanMetrics.config(metric_keys=['loss']).Instantiate()
>>> metrics.store({'loss': (2.0, 3), 'accuracy': (0.5, 3)})
>>> metrics.store({'loss': (4.0, 1), 'accuracy': (1.0, 1)})
>>> metrics.store({'loss': (float('nan'), 0)})  # Padding rows only.
>>> for name, (value, weight) in metrics.finalize().items():
...   print(f'{name} {value} of weight {weight}')
loss 2.5 of weight 4.0

Other aggregations are `MaxMetrics`, `HistogramMetrics`, and several of them in
`CompositeMetrics`. The loss that the learner minimises is one of the metrics,
or a weighted sum of them:

>>> batch_metrics = {'loss': (2.0, 8), 'aux': (0.5, 1)}
>>> LossAggregator(loss_key='loss').aggregate(batch_metrics)
(2.0, 2.0, 8)
>>> weighted = MultiLossAggregator(
...   loss_keys=['loss', 'aux'], loss_weights={'loss': 1.0, 'aux': 4.0}
... )
>>> weighted.aggregate(batch_metrics)
(4.0, 4.0, None)

A metric that is not a mean is a `clu.metrics.Metric`;
`WeightedScalarCluMetric` is the weighted mean as one of them.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from clu import metrics as clu_metrics

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import constraints

# Metrics of a batch or a dataset: {name: (value, weight)}.
WeightedScalars = Mapping[str, tuple[Any, Any]]

# The axis of `jax.pmap` whose replicas have a batch each.
_AXIS = constraints.PMAP_PARALLEL_AXIS_NAME

# Name of a sum of several losses.
TOTAL_LOSS = 'total_loss'


class BaseMetrics(config_lib.Configurable):
  """Aggregates metrics over batches.

  A subclass defines `finalize`, and `store` unless it computes with
  `_metrics`: {name: [(value, weight), ...]}, the stored metrics in their order,
  without those of weight 0. The trainer computes with whole batches, and does
  not call `aggregate`; functions within `jax.pmap(axis_name='batch')` may.

  Attributes:
    name: has no effect.
  """

  name: str = ''

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if 'summarize' in vars(cls):
      raise errors.UserError(
        f'{cls.__qualname__}.summarize would never be called; expected `store`'
        ' and `finalize` to aggregate over batches'
      )

  def __post_init__(self):
    self._metrics = collections.defaultdict(list)

  def names(self) -> set[str]:
    """Returns the names of metrics that the model must have; none by default.

    A batch without them (such as a decoded one) is not an error.
    """
    return set()

  def aggregate(
    self, batch_metrics: WeightedScalars, reshard: bool = False
  ) -> dict[str, tuple[Any, Any]]:
    """Merges the metrics of replicas within `jax.pmap(axis_name='batch')`.

    Args:
      batch_metrics: those of this replica; outside of pmap, of all.
      reshard: has no effect.

    Returns:
      Those that this object merges; the same in all replicas.
    """
    del reshard
    selected = {k: v for k, v in batch_metrics.items() if self._selects(k)}
    if not constraints.is_running_under_pmap():
      return selected
    return {k: self._over_replicas(*v) for k, v in selected.items()}

  def store(self, batch_metrics: WeightedScalars, reshard: bool = False):
    """Merges the metrics of one batch into the aggregate.

    Args:
      batch_metrics: {name: (value, weight)}, where a value may be an array and
        a weight is a number.
      reshard: has no effect: the metrics are of all devices.
    """
    del reshard
    for name, (value, weight) in batch_metrics.items():
      if float(weight):
        self._metrics[name].append((value, weight))

  def finalize(self) -> dict[str, tuple[Any, float]]:
    """Computes the aggregate, and resets it to empty.

    Returns:
      {name: (value, weight)}, without metrics whose weight is 0.
    """
    raise NotImplementedError(type(self).__name__)

  def _selects(self, name: str) -> bool:
    """Whether `aggregate` merges a metric."""
    return not self.names() or name in self.names()

  def _over_replicas(self, value, weight) -> tuple[jax.Array, jax.Array]:
    """Merges a metric of replicas: by default, as a mean."""
    total = jax.lax.psum(weight, _AXIS)
    return jax.lax.psum(value * weight, _AXIS) / (total + 1e-8), total


class _SelectedMetrics(BaseMetrics):
  """Aggregates metrics by name, each by itself.

  Attributes:
    metric_keys: names of the metrics; None, the default, for all.
  """

  metric_keys: Sequence[str] | None = None

  def __post_init__(self):
    self._merged: dict[str, tuple[Any, float]] = {}

  def names(self) -> set[str]:
    return set(self.metric_keys or ())

  def store(self, batch_metrics: WeightedScalars, reshard: bool = False):
    del reshard
    for name, (value, weight) in batch_metrics.items():
      if self.metric_keys is not None and name not in self.metric_keys:
        continue
      weight = float(weight)
      if weight:
        value = np.asarray(value, np.float64)
        self._merged[name] = self._merge(self._merged.get(name), value, weight)

  def _merge(
    self, merged: tuple[Any, float] | None, value: np.ndarray, weight: float
  ) -> tuple[Any, float]:
    raise NotImplementedError(type(self).__name__)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    merged, self._merged = self._merged, {}
    return merged


class MeanMetrics(_SelectedMetrics):
  """Means, weighted by the metrics' weights, in double precision."""

  def _merge(self, merged, value, weight):
    total, total_weight = merged or (0.0, 0.0)
    return total + value * weight, total_weight + weight

  def finalize(self):
    return {k: (v / w, w) for k, (v, w) in super().finalize().items()}


class MaxMetrics(_SelectedMetrics):
  """Maxima, with the sum of the weights."""

  def _merge(self, merged, value, weight):
    if merged is None:
      return value, weight
    return np.maximum(merged[0], value), merged[1] + weight

  def _over_replicas(self, value, weight):
    return jax.lax.pmax(value, _AXIS), jax.lax.psum(weight, _AXIS)


class HistogramMetrics(BaseMetrics):
  """Statistics of a histogram: how evenly items are spread over classes.

  Attributes:
    histogram_key: name of the metric whose value counts the items of each
      class: [C], or [G, C] for G separate groups.

  The results are `<key>_pplx`, the perplexity of the classes (the exponential
  of their entropy), averaged over the groups; `<key>_entropy`, its logarithm;
  and `<key>_coverage`, the fraction of classes that have an item.
  """

  histogram_key: str = REQUIRED

  def __post_init__(self):
    self._clear()

  def _clear(self):
    self._counts: Any = None
    self._weight = 0.0

  def names(self) -> set[str]:
    return {self.histogram_key}

  def _over_replicas(self, value, weight):
    return jax.lax.psum(value, _AXIS), jax.lax.psum(weight, _AXIS)

  def store(self, batch_metrics: WeightedScalars, reshard: bool = False):
    del reshard
    counts, weight = batch_metrics.get(self.histogram_key, (0.0, 0.0))
    if float(weight):
      counts = np.atleast_2d(np.asarray(counts, np.float64))
      self._counts = counts + (0 if self._counts is None else self._counts)
      self._weight += float(weight)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    counts, weight = self._counts, self._weight
    self._clear()
    if counts is None:
      return {}
    totals = counts.sum(axis=-1, keepdims=True)
    parts = counts / np.where(totals > 0, totals, 1.0)
    logs = np.log(np.where(parts > 0, parts, 1.0))
    perplexity = float(np.exp(-(parts * logs).sum(axis=-1)).mean())
    return {
      f'{self.histogram_key}_pplx': (perplexity, weight),
      f'{self.histogram_key}_entropy': (math.log(perplexity), weight),
      f'{self.histogram_key}_coverage': (float((counts > 0).mean()), weight),
    }


class CompositeMetrics(BaseMetrics):
  """Several `BaseMetrics` over the same batches.

  Attributes:
    metrics_p: their configs. If two of them return a metric of the same name,
      that of the later one is returned.
  """

  metrics_p: Sequence[Config] = REQUIRED

  def __post_init__(self):
    self._children = [config.Instantiate() for config in self.metrics_p]

  def names(self) -> set[str]:
    return {name for child in self._children for name in child.names()}

  def aggregate(self, batch_metrics: WeightedScalars, reshard: bool = False):
    merged = [m.aggregate(batch_metrics, reshard) for m in self._children]
    return {k: v for one in merged for k, v in one.items()}

  def store(self, batch_metrics: WeightedScalars, reshard: bool = False):
    del reshard
    for child in self._children:
      child.store(batch_metrics)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    return {
      k: v for child in self._children for k, v in child.finalize().items()
    }


class LossAggregator(config_lib.Configurable):
  """Selects the loss among the model's metrics.

  Attributes:
    name: has no effect.
    loss_key: name of the metric.
  """

  name: str = ''
  loss_key: str | None = None

  def aggregate(
    self, batch_metrics: Mapping[str, Any]
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the loss of a batch, or of a dataset.

    Args:
      batch_metrics: the model's metrics, `(value, weight)` or
        `WeightedScalarCluMetric`.

    Returns:
      The loss that the learner minimises, the loss that is reported, and its
      weight; None for a sum of losses, whose weights may differ.

    Raises:
      UserError: the metric is not one of the model's.
    """
    loss, weight = self._loss_of(self.loss_key, batch_metrics)
    return loss, loss, weight

  @property
  def loss_name(self) -> str:
    """Name of the loss in reports."""
    return self.loss_key or TOTAL_LOSS

  def _loss_of(self, key: str | None, metrics: Mapping[str, Any]):
    if key not in metrics:
      raise errors.UserError(
        f"loss_key names {key!r}, which is not among the model's metrics"
        + errors.did_you_mean(str(key), metrics)
      )
    metric = metrics[key]
    if isinstance(metric, WeightedScalarCluMetric):
      return metric.compute(), metric.weight
    if isinstance(metric, clu_metrics.Metric):
      raise errors.UserError(
        f'the loss {key!r} is a {type(metric).__name__}; expected (value,'
        ' weight) or a WeightedScalarCluMetric'
      )
    return metric


class MultiLossAggregator(LossAggregator):
  """The loss as a weighted sum of metrics, reported as `total_loss`.

  Attributes:
    loss_keys: names of the metrics.
    loss_weights: their factors, by name or in the order of `loss_keys`; None,
      the default, for 1.
    loss_key: must stay None.
  """

  loss_keys: Sequence[str] = REQUIRED
  loss_weights: Mapping[str, float] | Sequence[float] | None = None

  def __post_init__(self):
    if self.loss_key is not None:
      raise errors.wrong_field(self, 'loss_key', 'loss_keys instead')
    weights = self.loss_weights
    if weights is None:
      weights = {key: 1.0 for key in self.loss_keys}
    if not isinstance(weights, Mapping) and len(weights) == len(self.loss_keys):
      weights = dict(zip(self.loss_keys, weights, strict=True))
    if not isinstance(weights, Mapping) or set(weights) != set(self.loss_keys):
      raise errors.UserError(
        f'MultiLossAggregator.loss_weights is {self.loss_weights!r}; expected a'
        f' number for each of the loss_keys {list(self.loss_keys)}'
      )
    self._factors = dict(weights)

  def aggregate(self, batch_metrics: Mapping[str, Any]):
    total = 0.0
    for key, factor in self._factors.items():
      loss, _ = self._loss_of(key, batch_metrics)
      total = total + factor * loss
    return total, total, None


@flax.struct.dataclass
class WeightedScalarCluMetric(clu_metrics.Metric):
  """A weighted mean as a clu metric, made by `create`.

  >>> x = jnp.array([2.0, 6.0])
  >>> batch = WeightedScalarCluMetric.create(x, jnp.array([3.0, 1.0]))
  >>> print(WeightedScalarCluMetric.empty().merge(batch).compute())
  3.0

  Attributes:
    weighted_value: [], sum of values times weights.
    weight: [], sum of weights.
  """

  weighted_value: jax.Array
  weight: jax.Array

  @classmethod
  def create(
    cls, value: jax.Array, weight: jax.Array
  ) -> 'WeightedScalarCluMetric':
    """Returns the mean of an array of any shape.

    Args:
      value: [...]; where the weight is 0 it may be NaN.
      weight: broadcast to the same shape.
    """
    weight = jnp.broadcast_to(jnp.asarray(weight, jnp.float32), value.shape)
    value = jnp.where(weight == 0, 0.0, value)
    return cls(weighted_value=jnp.sum(value * weight), weight=jnp.sum(weight))

  @classmethod
  def empty(cls) -> 'WeightedScalarCluMetric':
    return cls(weighted_value=jnp.zeros([]), weight=jnp.zeros([]))

  def merge(
    self, other: 'WeightedScalarCluMetric'
  ) -> 'WeightedScalarCluMetric':
    return type(self)(
      weighted_value=_sum(self.weighted_value, other.weighted_value),
      weight=_sum(self.weight, other.weight),
    )

  def compute(self) -> jax.Array:
    """Returns the mean [], NaN if all weights are 0."""
    return self.weighted_value / self.weight


def _sum(x: Any, y: Any) -> Any:
  """Returns a sum, on the host in double precision."""
  on_host = not isinstance(x, jax.Array) and not isinstance(y, jax.Array)
  return np.float64(x) + np.float64(y) if on_host else x + y
