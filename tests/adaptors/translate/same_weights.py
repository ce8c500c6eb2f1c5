"""Holds a layer of ours against a Lingvo layer, run for real, of equal weights.

For layers that have no translator, or more than a translator needs of them.
"""

import re

import jax
import jax.numpy as jnp
from flax import traverse_util

from pax_compat import learners
from pax_compat.base_layer import PARAMS
from tests.adaptors.translate import lingvo_layer_runs
from tests.adaptors.translate.parity import (
  OUTPUT_TOLERANCE,
  assert_close,
  assert_gradients_close,
)


def check(config, params, inputs, *, fprop, call, rename=dict):
  """Holds a layer's output and gradients against Lingvo's.

  Args:
    config: of the layer.
    params: Lingvo's.
    inputs: numpy arrays, for both.
    fprop: (layer, theta, *tensors) -> Lingvo's output.
    call: (bound layer, *arrays) -> ours.
    rename: from Lingvo's weights, by theta path, to ours, by variable path. It
      is linear, so that gradients are renamed likewise.
  """
  weights = _weights(params)
  lingvo = lingvo_layer_runs.run(params, weights, inputs, fprop=fprop)
  (want,) = lingvo.outputs
  layer = config.Instantiate()

  @jax.jit
  def gradients_and_output(weights, first):
    def loss(weights, first):
      y = call(layer.bind({PARAMS: weights}), first, *inputs[1:])
      return jnp.sum(y * lingvo_layer_runs.cotangent(want.shape)), y

    return jax.grad(loss, (0, 1), has_aux=True)(weights, first)

  tree = traverse_util.unflatten_dict(rename(weights), sep='/')
  (by_weights, by_first), y = gradients_and_output(tree, inputs[0])
  assert_close(y, want, OUTPUT_TOLERANCE, 'output')
  gradients = dict(lingvo.gradients)
  by_input = gradients.pop('inputs')
  assert_gradients_close(
    {**learners.by_path(by_weights), 'inputs': by_first},
    {**rename(gradients), 'inputs': by_input},
  )


def by_rules(*rules):
  """Returns a renaming of theta paths, for `check`.

  Args:
    *rules: pairs of a regular expression and what takes the place of whatever
      it finds, in order. At the end dots become slashes.
  """

  def rename(weights):
    renamed = {}
    for path, value in weights.items():
      for pattern, replacement in rules:
        path = re.sub(pattern, replacement, path)
      renamed[path.replace('.', '/')] = value
    return renamed

  return rename


def same_names(weights):
  """Renames weights whose paths are those of ours, but for the dots."""
  return by_rules()(weights)


def _weights(params):
  """Returns random values of either sign, by theta path."""
  weights = lingvo_layer_runs.weights_of(params)
  return {path: value - 0.5 for path, value in weights.items()}
