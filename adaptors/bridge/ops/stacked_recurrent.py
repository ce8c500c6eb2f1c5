"""Stacked recurrent layers, one after the other instead of on many devices.

Lingvo's GPipe runs its cells on several devices, which exchange micro-batches.
XLA does not compile that exchange, and one program serves all devices here.
"""

from collections.abc import Callable
from typing import Any

from adaptors import lingvo_runtime


def replacements() -> dict[str, Callable]:
  """Returns the replacement by Lingvo's name of the function."""
  return {'lingvo.core.recurrent.StackedRecurrent': _stacked}


def _stacked(
  original: Callable,
  devices: Any,
  cell_fns: Any,
  cell_grads: Any,
  cell_outs: Any,
  cell_out_grads: Any,
  thetas: Any,
  init_states: Any,
  inputs: Any,
  accumulator_layers: Any = None,
  unused_acc_state: bool = False,
) -> tuple[Any, list]:
  """Returns the last layer's outputs, and the final states of all layers.

  Args:
    original: Lingvo's function.
    devices: of the layers; not used.
    cell_fns: the function of each layer's cell, or one for all.
    cell_grads: likewise, their gradients; None for TensorFlow's.
    cell_outs: likewise, functions from a layer's states to its outputs.
    cell_out_grads: not used: TensorFlow differentiates `cell_outs`.
    thetas: the weights of each layer.
    init_states: the initial state of each layer.
    inputs: of the first layer, with a leading dimension of steps.
    accumulator_layers: layers whose accumulators are carried along, or None.
    unused_acc_state: not used; it saves memory on TPUs.
  """
  del original, cell_out_grads, unused_acc_state
  recurrent = lingvo_runtime.module('lingvo.core.recurrent')
  count = len(devices)

  def each(given):
    return given if isinstance(given, list | tuple) else [given] * count

  finals = []
  for theta, state, cell, gradient, output, accumulators in zip(
    thetas,
    init_states,
    each(cell_fns),
    each(cell_grads),
    each(cell_outs),
    each(accumulator_layers),
    strict=True,
  ):
    states, final = recurrent.Recurrent(
      theta=theta,
      state0=state,
      inputs=inputs,
      cell_fn=cell,
      cell_grad=gradient,
      accumulator_layer=accumulators,
    )
    finals.append(final)
    inputs = output(states)
  return inputs, finals
