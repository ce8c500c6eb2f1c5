"""Tests of ops.sharded_lookup against TensorFlow's own lookup."""

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from adaptors import lingvo_runtime
from adaptors.bridge.ops import sharded_lookup, xla_ops
from pax_compat import errors

# Eight rows in three shards: the first two have one more than the last.
_SHARDS = [
  np.random.default_rng(i).normal(size=[rows, 2]).astype(np.float32)
  for i, rows in enumerate([3, 3, 2])
]
_IDS = np.array([[0, 7], [3, 3], [5, 6]])
_WEIGHTS = np.random.default_rng(3).normal(size=[3, 2, 2]).astype(np.float32)


def _outputs(strategy, max_norm, *shards):
  """Returns rows, gradients of shards, and the sum of squares of slices."""
  tf = lingvo_runtime.module('tensorflow')
  shards = [tf.convert_to_tensor(shard) for shard in shards]
  with tf.GradientTape() as tape:
    tape.watch(shards)
    rows = tf.compat.v1.nn.embedding_lookup(
      shards, _IDS, strategy, max_norm=max_norm
    )
    total = tf.reduce_sum(rows * _WEIGHTS)
  slices = tape.gradient(total, shards)
  size = tf.add_n([tf.reduce_sum(s.values**2) for s in slices])
  return rows, [tf.convert_to_tensor(s) for s in slices], size


@pytest.mark.parametrize(
  ('strategy', 'max_norm'), [('div', None), ('mod', None), ('mod', 1.2)]
)
def test_rows_and_gradients_are_tensorflows(strategy, max_norm):
  tf = lingvo_runtime.module('tensorflow')

  def bridged(*shards):
    with xla_ops.replaced(None) as calls:
      outputs = _outputs(strategy, max_norm, *shards)
    assert [r.function for r in calls] == ['embedding_lookup_and_transform']
    return outputs

  actual = jax.jit(jax2tf.call_tf(bridged, has_side_effects=False))(*_SHARDS)
  expected = tf.nest.flatten(_outputs(strategy, max_norm, *_SHARDS))
  for a, e in zip(jax.tree.leaves(actual), expected, strict=True):
    np.testing.assert_allclose(a, e, rtol=1e-5)


def test_an_unknown_strategy_is_refused():
  with pytest.raises(errors.UserError, match="'ring'; expected 'div' or 'mod'"):
    sharded_lookup.lookup(_SHARDS, _IDS, 'ring')
