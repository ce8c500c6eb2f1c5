"""Recurrent layers: a cell applied along the time axis of its inputs.

Shapes: B batch, T time, I input nodes, O output nodes, "..." further axes.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layer_core import child_layers
from pax_compat.layers.rnn import scan_products, segment_starts
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.nested_map import NestedMap


def reset_mask(segment_ids: jax.Array, reverse: bool = False) -> jax.Array:
  """Returns the reset mask of packed examples: 0 at their first step, else 1.

  >>> print(reset_mask(jnp.array([[1, 1, 2, 2, 3]])))
  [[1. 1. 0. 1. 0.]]

  The first step of the sequence is never reset: it continues from `state0`.

  Args:
    segment_ids: [B, T, ...], int, the packed example of each position.
    reverse: whether steps run from the last position to the first.

  Returns:
    float32, of the shape of `segment_ids`.
  """
  same = segment_ids[:, 1:] == segment_ids[:, :-1]
  edge = (0, 1) if reverse else (1, 0)
  widths = [(0, 0), edge, *[(0, 0)] * (segment_ids.ndim - 2)]
  return jnp.pad(same, widths, constant_values=True).astype(jnp.float32)


class FRnn(base_layer.BaseLayer):
  """A recurrent layer of any cell.

  A config inside `cell_tpl` must not be used outside of it too.

  Attributes:
    cell_tpl: the cell, a `BaseRnnCell`.
    reverse: whether steps run from the last position to the first; outputs have
      the order of the inputs.
    unroll: steps per iteration of the compiled loop.
  """

  cell_tpl: Config = sub_config_field(LstmCellSimple)
  reverse: bool = False
  unroll: int = 1

  def setup(self):
    errors.check_least(self, 1, 'unroll')
    child_layers.keep_apart(self, 'cell', self.cell_tpl)
    self.create_child('cell', self.cell_tpl)

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the cell's state before the first step."""
    return self.cell.init_states(batch_size)

  def get_output(self, state: NestedMap) -> jax.Array:
    """Returns the output [B, O] of a state."""
    return self.cell.get_output(state)

  def extend_step(
    self, inputs: NestedMap, state0: NestedMap
  ) -> tuple[NestedMap, jax.Array]:
    """Computes one step.

    Args:
      inputs: `act` [B, I] and `padding` [B, 1], as the cell takes them.
      state0: the state before the step.

    Returns:
      The state after the step, and the output [B, O].
    """
    state = self.cell(state0, inputs)
    return state, self.cell.get_output(state)

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[jax.Array, NestedMap]:
    """Computes all steps.

    Args:
      inputs: `act`, [B, T, I] or a list of arrays; `padding` [B, T, 1], 1 where
        the state is carried over unchanged; and for packed examples
        `segment_ids` [B, T, 1], int, by which the state is reset as in Pax: at
        the first position of each example, also of the first one, and also if
        steps run from the last to the first; or `example_ids` [B, T, 1], int,
        by which it is reset as in Lingvo: at the first step of each example but
        the first one; or `reset_mask` [B, T, 1], 0 where the state is reset.
      state0: the state before the first step; None for `init_states`.

    Returns:
      The outputs [B, T, O], and the state after the last step.

    Raises:
      UserError: the examples are packed, but the cell does not reset its state.
    """
    inputs = self._with_reset_mask(inputs)
    if state0 is None:
      state0 = self.init_states(inputs.padding.shape[0])
    # Time becomes the first axis, in the order of the steps.
    inputs = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), inputs)
    if self.reverse:
      inputs = jax.tree.map(lambda x: jnp.flip(x, 0), inputs)
    state, outputs = self._run(inputs, state0)
    if self.reverse:
      outputs = jnp.flip(outputs, 0)
    return jnp.swapaxes(outputs, 0, 1), state

  def _with_reset_mask(self, inputs: NestedMap) -> NestedMap:
    inputs = NestedMap(inputs)
    segment_ids = inputs.pop('segment_ids', None)
    if segment_ids is not None:
      inputs.reset_mask = segment_starts.reset_mask(segment_ids, inputs.padding)
    example_ids = inputs.pop('example_ids', None)
    if example_ids is not None:
      inputs.reset_mask = reset_mask(example_ids, self.reverse)
    if 'reset_mask' in inputs and not self.cell.reset_cell_state:
      raise errors.UserError(
        f'{type(self).__name__}: the inputs have packed examples, but'
        ' cell_tpl.reset_cell_state is False; expected True'
      )
    if inputs.padding.shape[2:] != (1,):
      raise errors.UserError(
        f'{type(self).__name__}: inputs.padding has the shape'
        f' {list(inputs.padding.shape)}; expected [B, T, 1]'
      )
    return inputs

  def _run(
    self, inputs: NestedMap, state0: NestedMap
  ) -> tuple[NestedMap, jax.Array]:
    """Scans inputs [T, B, ...]; returns the last state and the outputs."""

    def body(cell, state, x):
      state = cell(state, x)
      return state, cell.get_output(state)

    if self.is_initializing():
      # A scan cannot create weights that are shared by all steps.
      body(self.cell, state0, jax.tree.map(lambda x: x[0], inputs))
    scan = nn.scan(
      body,
      variable_broadcast=[base_layer.PARAMS, base_layer.ROW_PROBES],
      variable_carry=base_layer.NON_TRAINABLE,
      variable_axes={base_layer.AUX_LOSS: 0, base_layer.SUMMARIES: 0},
      split_rngs={base_layer.PARAMS: False, base_layer.RANDOM: True},
      unroll=self.unroll,
      # A cell assigns no weights; the check traces it once more.
      check_constancy_invariants=False,
    )
    for collection, after in (
      (base_layer.AUX_LOSS, _summed),
      (base_layer.SUMMARIES, lambda tree: tree),
    ):
      # Earlier values of the collection are not split into steps.
      scan = nn.map_variables(
        scan,
        collection,
        trans_in_fn=lambda tree: {},
        trans_out_fn=after,
        mutable=self.is_mutable_collection(collection),
      )
    return scan(self.cell, state0, inputs)


def _summed(tree: Any) -> Any:
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), tree)


class LstmFrnn(FRnn):
  """A recurrent layer of an LSTM: `FRnn`, several times faster.

  The input projection is one matrix product for all steps, and so is the
  gradient of each matrix.

  Attributes:
    cell_tpl: an `LstmCellSimple` or a subclass that overrides neither
      `__call__` nor `fprop_with_projected_inputs`.
  """

  def setup(self):
    super().setup()
    cls = type(self.cell)
    if not issubclass(cls, LstmCellSimple) or any(
      getattr(cls, name) is not getattr(LstmCellSimple, name)
      for name in ('__call__', 'fprop_with_projected_inputs')
    ):
      raise errors.UserError(
        f'{type(self).__name__}.cell_tpl is a {cls.__qualname__}; expected an'
        ' LstmCellSimple, or a subclass that overrides neither __call__ nor'
        ' fprop_with_projected_inputs; FRnn takes any cell'
      )

  @property
  def num_input_nodes(self) -> int:
    """I."""
    return self.cell.num_input_nodes

  @property
  def num_output_nodes(self) -> int:
    """O."""
    return self.cell.num_output_nodes

  def _run(
    self, inputs: NestedMap, state0: NestedMap
  ) -> tuple[NestedMap, jax.Array]:
    cell = self.cell
    projected = cell.project_input(inputs)
    inputs = NestedMap(
      {**inputs, **cell.zoneout_draws(inputs.padding.shape[:-1])}
    )
    del inputs['act']

    def step(product, weights, state, x):
      state = cell.step(product, weights, state, x)
      return state, cell.get_output(state)

    return scan_products.scan(
      step,
      cell.recurrent_weights(),
      {'wm': projected},
      cell.gate_weights(),
      state0,
      inputs,
      unroll=self.unroll,
    )


class BidirectionalFrnn(base_layer.BaseLayer):
  """A bidirectional recurrent layer.

  Attributes:
    fwd_frnn_tpl: the forward layer.
    bwd_frnn_tpl: the backward layer; its `reverse` is set here.
  """

  fwd_frnn_tpl: Config = sub_config_field(LstmFrnn)
  bwd_frnn_tpl: Config = sub_config_field(LstmFrnn)

  def setup(self):
    self.create_child('fwd_frnn', self.fwd_frnn_tpl, reverse=False)
    self.create_child('bwd_frnn', self.bwd_frnn_tpl, reverse=True)

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the states before the first step, `fwd` and `bwd`."""
    return NestedMap(
      fwd=self.fwd_frnn.init_states(batch_size),
      bwd=self.bwd_frnn.init_states(batch_size),
    )

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[jax.Array, NestedMap]:
    """Computes all steps; see `FRnn`.

    Returns:
      The concatenated outputs of both directions, [B, T, 2 O], and the states
      `fwd` and `bwd` after their last steps.
    """
    state0 = state0 or NestedMap(fwd=None, bwd=None)
    forward, fwd = self.fwd_frnn(inputs, state0.fwd)
    backward, bwd = self.bwd_frnn(inputs, state0.bwd)
    outputs = jnp.concatenate([forward, backward], axis=-1)
    return outputs, NestedMap(fwd=fwd, bwd=bwd)
