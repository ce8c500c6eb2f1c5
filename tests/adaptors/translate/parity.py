"""Holds translated layers against real Lingvo layers: same weights and inputs.

Differences are measured relative to the largest value of what is compared.
"""

import jax
import jax.numpy as jnp
import numpy as np

from adaptors import lingvo_runtime
from adaptors.lingvo_parity import differences
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, Report
from pax_compat import base_layer, learners

OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


# The gradient by the first input, among those by theta path.
_INPUT = 'inputs[0]'


def assert_close(actual, expected, tolerance: float, what: str, floor=1e-12):
  """Fails where two arrays differ by more than `tolerance`, relatively."""
  actual, expected = np.asarray(actual), np.asarray(expected)
  assert actual.shape == expected.shape, f'{what}: {actual.shape}'
  error = differences.of_outputs(actual, expected, floor)
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
  """Fails where gradients by path differ by more than the tolerance."""
  assert set(actual) == set(expected)
  for path, error in differences.of_gradients(actual, expected).items():
    assert error <= GRADIENT_TOLERANCE, f'{path}: relative distance {error:.3g}'


def check_layer(params, inputs, *, fprop, call, do_eval=True, seed=0):
  """Compares a Lingvo layer and its translation; see `check_pair`."""
  translated = translate(params)
  check_pair(
    params,
    translated.config,
    translated.variables,
    inputs,
    fprop=fprop,
    call=call,
    do_eval=do_eval,
    seed=seed,
  )


def check_pair(
  params,
  config,
  variables,
  inputs,
  *,
  fprop,
  call,
  do_eval=True,
  seed=0,
  only_lingvos=(),
):
  """Compares outputs and gradients of a Lingvo layer and one of ours.

  Gradients are those by all weights, and by the first input if it is of floats.

  Args:
    params: the Lingvo layer's Params.
    config: of our layer.
    variables: a `VariableMap` of the weights of both.
    inputs: numpy arrays, for both.
    fprop: (layer, theta, *tensors) -> the output in Lingvo, a tensor or a dict
      of them.
    call: (bound JAX layer, *arrays) -> the same in JAX.
    do_eval: whether both behave as in evaluation.
    seed: of the weights.
    only_lingvos: theta paths of weights that our layer has not.
  """
  values, expected, gradients = _lingvo(params, inputs, fprop, do_eval, seed)
  for path in only_lingvos:
    del values[path], gradients[path]
  assert {t for v in variables for t in v.theta} == set(values)
  layer = config.Instantiate()
  weights = jax.tree.map(jnp.asarray, variables.to_jax(values))
  rest = list(map(jnp.asarray, inputs[1:]))

  def loss(weights, first, rest):
    with base_layer.eval_mode(do_eval):
      bound = layer.bind({base_layer.PARAMS: weights})
      outputs = _named(call(bound, *first, *rest))
    return sum(
      jnp.sum(outputs[name] * _cotangent(expected[name].shape))
      for name in _floats(expected)
    ), outputs

  # One program: one of each operation takes longer to compile.
  (by_weights, by_first), outputs = jax.jit(
    jax.grad(loss, (0, 1), has_aux=True, allow_int=True)
  )(weights, inputs[:1], rest)
  assert set(outputs) == set(expected)
  for name, want in expected.items():
    assert_close(outputs[name], want, OUTPUT_TOLERANCE, name)
  actual = variables.to_lingvo(learners.by_path(by_weights))
  if _INPUT in gradients:
    actual[_INPUT] = by_first[0]
  assert_gradients_close(actual, gradients)


def _cotangent(shape) -> np.ndarray:
  return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def _named(outputs) -> dict:
  if isinstance(outputs, tuple):  # With attention probabilities.
    outputs, _ = outputs
  return outputs if isinstance(outputs, dict) else {'output': outputs}


def _floats(arrays: dict[str, np.ndarray]) -> list[str]:
  """Returns the names of those arrays that have gradients."""
  return [k for k, x in arrays.items() if np.issubdtype(x.dtype, np.floating)]


def _lingvo(params, inputs, fprop, do_eval, seed):
  """Runs the real layer.

  Returns:
    Its weights by theta path; its outputs by name; and its gradients by theta
    path, and by `_INPUT` if the first input is of floats.
  """
  tf = lingvo_runtime.module('tensorflow')
  rng = np.random.default_rng(seed)
  with lingvo_runtime.cluster(do_eval=do_eval):
    layer = params.Instantiate()
    variables = dict(layer.vars.FlattenItems())
    for v in variables.values():
      v.assign(rng.normal(scale=0.3, size=v.shape).astype(np.float32))
    tensors = list(map(tf.constant, inputs))
    sources = dict(variables)
    if _floats(dict(enumerate(inputs[:1]))):
      sources[_INPUT] = tensors[0]
    with tf.GradientTape() as tape:
      tape.watch(list(sources.values()))
      outputs = _named(fprop(layer, layer.theta, *tensors))
      expected = {name: x.numpy() for name, x in outputs.items()}
      loss = sum(
        tf.reduce_sum(outputs[name] * _cotangent(outputs[name].shape))
        for name in _floats(expected)
      )
    gradients = tape.gradient(
      loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
  return (
    {path: v.numpy() for path, v in variables.items()},
    expected,
    {
      path: tf.convert_to_tensor(gradient).numpy()
      for path, gradient in gradients.items()
    },
  )
