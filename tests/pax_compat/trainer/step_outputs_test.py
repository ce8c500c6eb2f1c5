"""Tests of what leaves a compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_metrics, errors
from pax_compat.layer_core.summaries import Summary, SummaryType
from pax_compat.trainer import step_outputs


def _summary(value, kind=SummaryType.SCALAR, verbosity=2):
  return Summary(jnp.asarray(value), kind, verbosity)


def test_metrics_are_told_apart():
  clu = base_metrics.WeightedScalarCluMetric.create(jnp.ones([2]), 1.0)
  weighted, found = step_outputs.split_metrics(
    {'a': (jnp.bfloat16(1.5), 2), 'b': [np.arange(3), 1.0], 'c': clu}
  )
  assert found == {'c': clu}
  assert weighted['a'] == (1.5, 2.0)
  assert all(x.dtype == jnp.float32 for pair in weighted.values() for x in pair)


@pytest.mark.parametrize('metric', [1.0, (1.0, 2.0, 3.0), 'x'])
def test_what_is_no_metric(metric):
  with pytest.raises(errors.UserError, match="'a' of the model is a .*; expec"):
    step_outputs.split_metrics({'a': metric})


def test_summaries_by_verbosity_and_kind():
  scalars, others = step_outputs.split_summaries(
    {
      'lm': {
        'loud': _summary(1, verbosity=0),
        'stacked': _summary([2, 3], verbosity=3),
        'quiet': _summary(4, verbosity=4),
        'spread': _summary(np.zeros([3]), SummaryType.HISTOGRAM),
      }
    },
    verbosity=3,
  )
  assert scalars == {'lm/loud': 1, 'lm/stacked/0': 2, 'lm/stacked/1': 3}
  assert list(others) == ['lm/spread']


@pytest.mark.parametrize(
  ('shape', 'kept'),
  [
    ((5, 4, 3), (1, 5, 4, 3)),
    ((2, 5, 4, 3), (2, 5, 4, 3)),
    ((6, 2, 5, 4, 3), (8, 5, 4, 3)),  # stacked by a repeated layer
  ],
)
def test_a_few_images_are_kept(shape, kept):
  image = np.random.default_rng(0).uniform(size=shape)
  found = step_outputs.non_scalar_summaries(
    {'i': _summary(image, SummaryType.IMAGE)}, jnp.array(True)
  )
  got = found['i'].value
  np.testing.assert_allclose(
    got, image.reshape(-1, *kept[1:])[: kept[0]], rtol=1e-6
  )


def test_what_is_no_image():
  summary = _summary(np.zeros([4, 3]), SummaryType.IMAGE)
  with pytest.raises(errors.UserError, match=r'the shape \[4, 3\]; expected'):
    step_outputs.non_scalar_summaries({'i': summary}, jnp.array(True))


def _of(x, enabled):
  found = {
    'spread': Summary(x, SummaryType.HISTOGRAM),
    'words': _summary(np.frombuffer(b'hi', np.uint8), SummaryType.TEXT),
  }
  return step_outputs.non_scalar_summaries(found, enabled)


def test_non_scalar_summaries_are_computed_if_enabled():
  x = jnp.arange(10.0)
  made = jax.jit(_of)(x, True)
  assert made['spread'].value.counts.sum() == 10
  assert bytes(np.asarray(made['words'].value)) == b'hi'
  disabled = jax.jit(_of)(x, False)
  assert jax.tree.structure(made) == jax.tree.structure(disabled)
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(disabled))


def test_nothing_is_computed_unless_enabled():
  jaxpr = jax.make_jaxpr(_of)(jnp.arange(10.0), True)
  outer = {eqn.primitive.name for eqn in jaxpr.eqns}
  assert 'cond' in outer and 'scatter-add' not in outer
