"""Runs a Lingvo layer for real: outputs, gradients, and what it has updated."""

from typing import NamedTuple

import numpy as np

from adaptors import lingvo_runtime


class Run(NamedTuple):
  """What a Lingvo layer has done.

  Attributes:
    outputs: its output, or a tuple of them.
    gradients: of the sum of the first output times the cotangent, by theta
      path, and by `inputs` for the first input.
    updated: its variables afterwards, by theta path.
  """

  outputs: tuple[np.ndarray, ...]
  gradients: dict[str, np.ndarray]
  updated: dict[str, np.ndarray]


def cotangent(shape) -> np.ndarray:
  """Returns what an output of that shape is multiplied with for a loss."""
  return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def weights_of(params, seed: int = 0) -> dict[str, np.ndarray]:
  """Returns positive random values for a Lingvo layer's variables, by path."""
  rng = np.random.default_rng(seed)
  with lingvo_runtime.cluster():
    variables = dict(params.Instantiate().vars.FlattenItems())
  return {
    path: rng.uniform(0.1, 1.0, v.shape).astype(np.float32)
    for path, v in variables.items()
  }


def run(
  params, weights, inputs, *, do_eval=False, mask=None, fprop=None
) -> Run:
  """Runs a Lingvo layer.

  Args:
    params: its Params.
    weights: its variables by theta path.
    inputs: numpy arrays, which are taken after theta.
    do_eval: whether it behaves as at evaluation.
    mask: multiplies the cotangent of the first output; None for none.
    fprop: (layer, theta, *tensors) -> what the layer computes, a tensor or a
      tuple of them; None calls FProp.
  """
  fprop = fprop or (lambda layer, *args: layer.FProp(*args))
  tf = lingvo_runtime.module('tensorflow')
  with lingvo_runtime.cluster(do_eval=do_eval):
    layer = params.Instantiate()
    variables = dict(layer.vars.FlattenItems())
    for path, v in variables.items():
      v.assign(weights[path])
    tensors = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
      tape.watch(tensors[0])
      outputs = fprop(layer, layer.theta, *tensors)
      outputs = outputs if isinstance(outputs, tuple) else (outputs,)
      weight = cotangent(outputs[0].shape) * (1.0 if mask is None else mask)
      loss = tf.reduce_sum(outputs[0] * weight)
    sources = {**variables, 'inputs': tensors[0]}
    gradients = tape.gradient(loss, sources)
  return Run(
    tuple(output.numpy() for output in outputs if output is not None),
    {path: g.numpy() for path, g in gradients.items() if g is not None},
    {path: v.numpy() for path, v in variables.items()},
  )
