"""Batches of tokens and numpy's view of a loss, for the tests of models."""

import jax
import numpy as np
from scipy import special

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS
from pax_compat.nested_map import NestedMap

V = 9
LENGTHS = np.array([5, 3, 1])


def batch() -> NestedMap:
  """Returns a batch of three examples of different lengths."""
  rng = np.random.default_rng(0)
  weights = (np.arange(5) < LENGTHS[:, None]).astype(np.float32)
  return NestedMap(
    ids=rng.integers(1, V, (3, 5)).astype(np.int32),
    labels=rng.integers(1, V, (3, 5)).astype(np.int32),
    paddings=1 - weights,
    weights=weights,
  )


def padded(data: NestedMap) -> NestedMap:
  """Returns a batch with an additional padding row.

  It is a copy of the first one, and looks like any other but for its
  `eval_sample_weights`.
  """
  rows = jax.tree.leaves(data)[0].shape[0]
  grown = jax.tree.map(lambda x: np.concatenate([x, x[:1]]), data)
  grown.eval_sample_weights = np.array([1.0] * rows + [0.0], np.float32)
  return grown


def random_weights(config, data: NestedMap, scale=1.0):
  """Returns random weights of a model; biases are small.

  With large ones, a model would say much the same of everything.
  """
  layer = config.Instantiate()
  shapes = jax.eval_shape(
    lambda: base_layer.unbox(layer.init({PARAMS: jax.random.key(0)}, data))
  )
  rng = np.random.default_rng(1)

  def random(path, shape):
    factor = 0.1 if path[-1].key in ('b', 'bias') else scale
    return (factor * rng.normal(size=shape.shape)).astype(np.float32)

  return jax.tree_util.tree_map_with_path(random, shapes[PARAMS])


def run(config, params, data: NestedMap):
  """Returns a model's metrics and outputs, at evaluation."""
  layer = config.Instantiate()
  with base_layer.eval_mode():
    return layer.apply({PARAMS: params}, data)


def predictions(config, params, data: NestedMap) -> NestedMap:
  """Returns a model's predictions, at evaluation."""
  layer = config.Instantiate()
  with base_layer.eval_mode():
    return layer.apply({PARAMS: params}, data, method=layer.compute_predictions)


def token_sums(logits, labels, weights):
  """Returns sums over tokens, one by one.

  Args:
    logits: [B, T, V].
    labels: [B, T].
    weights: [B, T].

  Returns:
    The sum of weights; the weighted sums of nats and of right guesses; and the
    weighted nats of each example [B].
  """
  log_probs = special.log_softmax(np.asarray(logits, np.float64), -1)
  total, right, nats = 0.0, 0.0, np.zeros(len(labels))
  for b, t in np.ndindex(*labels.shape):
    weight = float(weights[b, t])
    total += weight
    nats[b] -= weight * log_probs[b, t, labels[b, t]]
    right += weight * (log_probs[b, t].argmax() == labels[b, t])
  return total, nats.sum(), right, nats


def assert_metrics(got, want):
  """Compares metrics, {name: (value, weight)}; all must be there."""
  assert set(got) == set(want)
  for name, pair in want.items():
    np.testing.assert_allclose(got[name], pair, rtol=1e-5, err_msg=name)
