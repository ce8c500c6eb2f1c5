"""Holds translated layers against real Lingvo layers: same weights and inputs.

Differences are measured relative to the largest value of what is compared.
"""

import jax
import jax.numpy as jnp
import numpy as np

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, Report
from pax_compat import base_layer, learners

OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


# A gradient that is zero by calculus (that of a bias of attention keys) is
# noise in floats. It is measured relative to this share of the largest one.
_NOISE = 1e-2


def assert_close(actual, expected, tolerance: float, what: str, floor=1e-12):
  """Fails where two arrays differ by more than `tolerance`, relatively."""
  actual, expected = np.asarray(actual), np.asarray(expected)
  assert actual.shape == expected.shape, f'{what}: {actual.shape}'
  scale = max(float(np.max(np.abs(expected))), floor)
  error = float(np.max(np.abs(actual - expected))) / scale
  assert error <= tolerance, f'{what}: relative difference {error:.3g}'


def translate(params, name: str = 'layer'):
  """Translates Params that can be translated."""
  report = Report()
  translated = registry.translate(ParamsView(params.Copy(), name, report))
  assert not report.issues, list(map(str, report.issues))
  return translated


def issues_of(params) -> list[str]:
  """Returns what a translation of Params complains about."""
  report = Report()
  registry.translate(ParamsView(params.Copy(), 'layer', report))
  return list(map(str, report.issues))


def assert_gradients_close(actual, expected):
  """Fails where gradients by path differ by more than the tolerance.

  Their distance is measured, not their largest difference: an activation that
  one side finds just above the kink of a ReLU and the other just below it
  changes single elements.
  """
  assert set(actual) == set(expected)
  norms = {path: float(np.linalg.norm(g)) for path, g in expected.items()}
  floor = _NOISE * max(norms.values(), default=0.0)
  for path, gradient in expected.items():
    distance = float(np.linalg.norm(np.asarray(actual[path]) - gradient))
    error = distance / max(norms[path], floor)
    assert error <= GRADIENT_TOLERANCE, f'{path}: relative distance {error:.3g}'


def check_layer(params, inputs, *, fprop, call, do_eval=True, seed=0):
  """Compares outputs and gradients of a Lingvo layer and its translation.

  Args:
    params: the Lingvo layer's Params.
    inputs: numpy arrays, for both.
    fprop: (layer, theta, *tensors) -> the output in Lingvo, a tensor.
    call: (bound JAX layer, *arrays) -> the output in JAX.
    do_eval: whether both behave as in evaluation.
    seed: of the weights.
  """
  translated = translate(params)
  values, expected, gradients = _lingvo(params, inputs, fprop, do_eval, seed)
  assert {t for v in translated.variables for t in v.theta} == set(values)
  layer = translated.config.Instantiate()
  weights = jax.tree.map(jnp.asarray, translated.variables.to_jax(values))

  def loss(weights):
    with base_layer.eval_mode(do_eval):
      bound = layer.bind({base_layer.PARAMS: weights})
      output = call(bound, *map(jnp.asarray, inputs))
    return jnp.sum(output * _cotangent(output.shape)), output

  grads, output = jax.grad(loss, has_aux=True)(weights)
  assert_close(output, expected, OUTPUT_TOLERANCE, 'output')
  grads = translated.variables.to_lingvo(learners.by_path(grads))
  assert_gradients_close(grads, gradients)


def _cotangent(shape) -> np.ndarray:
  return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def _lingvo(params, inputs, fprop, do_eval, seed):
  """Returns (weights, output, gradients) of the real layer, by theta path."""
  tf = lingvo_runtime.module('tensorflow')
  rng = np.random.default_rng(seed)
  with lingvo_runtime.cluster(do_eval=do_eval):
    layer = params.Instantiate()
    variables = dict(layer.vars.FlattenItems())
    for v in variables.values():
      v.assign(rng.normal(scale=0.3, size=v.shape).astype(np.float32))
    with tf.GradientTape() as tape:
      output = fprop(layer, layer.theta, *map(tf.constant, inputs))
      loss = tf.reduce_sum(output * _cotangent(output.shape))
    gradients = tape.gradient(loss, variables)
  return (
    {path: v.numpy() for path, v in variables.items()},
    output.numpy(),
    {
      path: tf.convert_to_tensor(g).numpy()
      for path, g in gradients.items()
      if g is not None
    },
  )
