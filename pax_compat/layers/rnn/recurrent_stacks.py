"""Stacks of recurrent layers.

Shapes: B batch, T time, I input nodes, O output nodes.
"""

import copy
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.rnn.recurrent import LstmFrnn
from pax_compat.layers.stochastics import Dropout
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


class _Stack(base_layer.BaseLayer):
  """Base of unidirectional and bidirectional stacks.

  Attributes:
    frnn_tpl: the layers, each an `FRnn`: one template, copied for each layer,
      or a list of templates.
    num_layers: number of layers.
    num_input_nodes: I; None keeps that of the first template.
    num_output_nodes: O of each layer; None keeps those of the templates.
    dropout_tpl: dropout of each layer's output.
    residual_layers: indices of the layers with a residual connection: their
      input is added to their output after dropout.
  """

  frnn_tpl: Config | Sequence[Config] = sub_config_field(LstmFrnn)
  num_layers: int = 1
  num_input_nodes: int | None = None
  num_output_nodes: int | None = None
  dropout_tpl: Config = sub_config_field(Dropout)
  residual_layers: Sequence[int] = ()

  def _templates(self) -> list[Config]:
    """Returns the template of each layer.

    Raises:
      UserError: the number of templates is not that of layers.
    """
    is_single = isinstance(self.frnn_tpl, Config)
    if self.num_layers < 1 or not (
      is_single or len(self.frnn_tpl) == self.num_layers
    ):
      count = 'one template' if is_single else f'{len(self.frnn_tpl)} templates'
      raise errors.UserError(
        f'{type(self).__name__} has num_layers {self.num_layers} and {count} in'
        ' frnn_tpl; expected one layer or more, and one template or one for'
        ' each layer'
      )
    unknown = [i for i in self.residual_layers if not 0 <= i < self.num_layers]
    if unknown:
      raise errors.UserError(
        f'{type(self).__name__}.residual_layers has {unknown}; expected indices'
        f' from 0 to {self.num_layers - 1}'
      )
    if is_single:
      first, *others = [self.frnn_tpl.clone() for _ in range(self.num_layers)]
      for tpl in others:  # It counts the inputs of the first layer only.
        tpl.cell_tpl.num_input_nodes = REQUIRED
      return [first, *others]
    return list(self.frnn_tpl)

  def _cell(
    self, tpl: Config, inputs: int | None, outputs: int | None
  ) -> Config:
    """Returns a layer's cell with numbers of input and output nodes set."""
    where = f'{type(self).__name__}.frnn_tpl.cell_tpl'
    fields = agreed(
      where, tpl.cell_tpl, num_input_nodes=inputs, num_output_nodes=outputs
    )
    # A shallow copy: templates inside keep their identity.
    return copy.copy(tpl.cell_tpl).set(**fields)

  def _check_residual(self, layer: int, cell: Config, outputs: int):
    """Raises a UserError if a residual connects different dimensions."""
    if layer in self.residual_layers and cell.num_input_nodes != outputs:
      raise errors.UserError(
        f'{type(self).__name__}.residual_layers has {layer}, but that layer has'
        f' {cell.num_input_nodes} input nodes and {outputs} output nodes'
      )

  def _with_residual(
    self, layer: int, inputs: jax.Array, outputs: jax.Array
  ) -> jax.Array:
    """Returns a layer's output after dropout and residual, [..., O]."""
    outputs = self.dropout(outputs)
    return inputs + outputs if layer in self.residual_layers else outputs


class StackFrnn(_Stack):
  """A stack of recurrent layers, named `frnn_0`, `frnn_1`, ..."""

  def setup(self):
    inputs = self.num_input_nodes
    for i, tpl in enumerate(self._templates()):
      cell = self._cell(tpl, inputs, self.num_output_nodes)
      self._check_residual(i, cell, cell.num_output_nodes)
      self.create_child(f'frnn_{i}', tpl, cell_tpl=cell)
      inputs = cell.num_output_nodes
    self.create_child('dropout', self.dropout_tpl)

  @property
  def _layers(self) -> list:
    return [getattr(self, f'frnn_{i}') for i in range(self.num_layers)]

  def init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the states of all layers before the first step."""
    return [layer.init_states(batch_size) for layer in self._layers]

  def get_output(self, state: list[NestedMap]) -> jax.Array:
    """Returns the last layer's output [B, O], before dropout and residual."""
    return self._layers[-1].get_output(state[-1])

  def extend_step(
    self, inputs: NestedMap, state0: list[NestedMap]
  ) -> tuple[list[NestedMap], jax.Array]:
    """Computes one step; see `FRnn.extend_step`.

    Args:
      inputs: of the step, [B, ...].
      state0: the states of all layers before the step.

    Returns:
      The states after the step, and the output [B, O].
    """
    states = []
    for i, layer in enumerate(self._layers):
      state, outputs = layer.extend_step(inputs, state0[i])
      states.append(state)
      inputs = NestedMap(
        inputs, act=self._with_residual(i, inputs.act, outputs)
      )
    return states, inputs.act

  def __call__(
    self, inputs: NestedMap, state0: list[NestedMap] | None = None
  ) -> tuple[jax.Array, list[NestedMap]]:
    """Computes all steps, layer by layer; see `FRnn`.

    Args:
      inputs: of all steps, [B, T, ...].
      state0: the states of all layers before the first step, or None.

    Returns:
      The outputs [B, T, O], and the states after the last step.
    """
    states = []
    for i, layer in enumerate(self._layers):
      outputs, state = layer(inputs, None if state0 is None else state0[i])
      states.append(state)
      inputs = NestedMap(
        inputs, act=self._with_residual(i, inputs.act, outputs)
      )
    return inputs.act, states


class StackBiFrnn(_Stack):
  """A stack of bidirectional recurrent layers.

  A layer's outputs are the concatenated outputs of both directions. The layers
  are named `fwd_frnn_0`, `bwd_frnn_0`, `fwd_frnn_1`, ... The field
  `num_output_nodes` counts both directions; that of a template's cell counts
  one.
  """

  def setup(self):
    if self.num_output_nodes is not None and self.num_output_nodes % 2:
      raise errors.UserError(
        f'{type(self).__name__}.num_output_nodes is {self.num_output_nodes};'
        ' expected an even number, half of it for each direction'
      )
    half = self.num_output_nodes and self.num_output_nodes // 2
    inputs = self.num_input_nodes
    for i, tpl in enumerate(self._templates()):
      cell = self._cell(tpl, inputs, half)
      for name, reverse in (('fwd_frnn', False), ('bwd_frnn', True)):
        self.create_child(
          f'{name}_{i}', tpl.clone(), cell_tpl=cell.clone(), reverse=reverse
        )
      inputs = 2 * cell.num_output_nodes
      self._check_residual(i, cell, inputs)
    self.create_child('dropout', self.dropout_tpl)

  def _layer(self, name: str, i: int):
    return getattr(self, f'{name}_frnn_{i}')

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the states before the first step: lists `fwd` and `bwd`."""
    return NestedMap(
      {
        name: [
          self._layer(name, i).init_states(batch_size)
          for i in range(self.num_layers)
        ]
        for name in ('fwd', 'bwd')
      }
    )

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[jax.Array, list[NestedMap]]:
    """Computes all steps, layer by layer; see `FRnn`.

    Args:
      inputs: of all steps, [B, T, ...].
      state0: states before the first step, of the structure of `init_states`;
        or None.

    Returns:
      The outputs [B, T, O], and the states after the last step: a list of
      `fwd` and `bwd` of each layer, as in Pax.
    """
    states = []
    for i in range(self.num_layers):
      directions, after = [], NestedMap()
      for name in ('fwd', 'bwd'):
        first = None if state0 is None else state0[name][i]
        outputs, after[name] = self._layer(name, i)(inputs, first)
        directions.append(outputs)
      states.append(after)
      outputs = jnp.concatenate(directions, axis=-1)
      inputs = NestedMap(
        inputs, act=self._with_residual(i, inputs.act, outputs)
      )
    return inputs.act, states
