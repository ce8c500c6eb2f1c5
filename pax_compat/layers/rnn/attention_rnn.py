"""A recurrent layer that attends to a source after each step.

Shapes: B batch, T time, S source time, D source dims, I input nodes without the
context, C context dims, O output nodes.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers.rnn import scan_products
from pax_compat.layers.rnn.recurrent import reset_mask
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.layers.rnn.source_attention import AdditiveSourceAttention
from pax_compat.nested_map import NestedMap


class LstmFrnnWithAttention(base_layer.BaseLayer):
  """An LSTM whose outputs are queries, and whose inputs have the last context.

  The cell's inputs are those of the step and the context of the step before.

  Attributes:
    cell_tpl: the cell, an `LstmCellSimple` of I + C input nodes.
    attention_tpl: the attention, whose queries are the cell's outputs.
    zero_context: whether the context before the first step is zero, as packed
      examples need it; else it is that of a query of zeros.
    unroll: steps per iteration of the compiled loop.
  """

  cell_tpl: Config = sub_config_field(LstmCellSimple)
  attention_tpl: Config = sub_config_field(AdditiveSourceAttention)
  zero_context: bool = False
  unroll: int = 1

  def setup(self):
    self.create_child('cell', self.cell_tpl)
    self.create_child('attention', self.attention_tpl)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    source: jax.Array,
    source_paddings: jax.Array,
    segment_ids: jax.Array | None = None,
    source_segment_ids: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Computes all steps.

    Args:
      inputs: [B, T, I].
      paddings: [B, T], 1 where the state is carried over unchanged.
      source: [B, S, D].
      source_paddings: [B, S], 1 for padding.
      segment_ids: [B, T], of packed examples; None if they are not packed.
      source_segment_ids: [B, S], likewise.

    Returns:
      The outputs [B, T, O], and the contexts of the same steps [B, T, C].

    Raises:
      UserError: examples are packed, and the layer is not for them.
    """
    packed = segment_ids is not None
    if packed and not (self.zero_context and self.cell.reset_cell_state):
      raise errors.UserError(
        f'{type(self).__name__}: examples are packed; expected zero_context and'
        ' cell_tpl.reset_cell_state to be True'
      )
    shape = (*paddings.shape[::-1], source.shape[1])
    xs = NestedMap(padding=jnp.swapaxes(paddings, 0, 1)[..., None])
    factors = self.attention.dropout_factors(shape)
    if factors is not None:
      xs.factors = factors
    if packed:
      xs.reset_mask = jnp.swapaxes(
        reset_mask(segment_ids[..., None], False), 0, 1
      )
      xs.segment_ids = segment_ids.T
    xs.update(self.cell.zoneout_draws(shape[:2]))
    constants = self._constants(self.attention.pack(source), source_paddings)
    if packed:
      constants.source_segment_ids = source_segment_ids
    state = self._first_state(constants, len(inputs))
    _, outputs = self._scan(inputs, constants, state, xs)
    return outputs

  def init_states(
    self, source: jax.Array, source_paddings: jax.Array
  ) -> tuple[NestedMap, NestedMap]:
    """Returns the states of decoding, for `extend_step`.

    Args:
      source: [B, S, D].
      source_paddings: [B, S].

    Returns:
      The projected source; and the state, with `coverage` [B, S], the sum of
      the attention to each source position.
    """
    packed = self.attention.pack(source)
    constants = self._constants(packed, source_paddings)
    state = self._first_state(constants, len(source))
    state.coverage = jnp.zeros(source_paddings.shape, jnp.float32)
    return packed, state

  def extend_step(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    source: NestedMap,
    source_paddings: jax.Array,
    state: NestedMap,
  ) -> tuple[jax.Array, jax.Array, NestedMap]:
    """Computes further steps, of examples that are not packed.

    Args:
      inputs: [B, T, I].
      paddings: [B, T], 1 where the state is carried over unchanged.
      source: the projected source, of `init_states`.
      source_paddings: [B, S].
      state: before the steps.

    Returns:
      The outputs [B, T, O], the contexts [B, T, C], and the state after the
      steps.
    """
    xs = NestedMap(padding=jnp.swapaxes(paddings, 0, 1)[..., None])
    constants = self._constants(source, source_paddings)
    state, (outputs, contexts) = self._scan(inputs, constants, state, xs)
    return outputs, contexts, state

  def _constants(
    self, source: NestedMap, source_paddings: jax.Array
  ) -> NestedMap:
    """Returns what all steps read."""
    gates, visible = self.cell.gate_weights(), source_paddings == 0
    return NestedMap(gates=gates, source=source, visible=visible)

  def _first_state(self, constants: NestedMap, rows: int) -> NestedMap:
    return NestedMap(
      rnn=self.cell.init_states(rows),
      context=self._first_context(constants, rows),
    )

  def _scan(
    self,
    inputs: jax.Array,
    constants: NestedMap,
    state: NestedMap,
    xs: NestedMap,
  ) -> tuple[NestedMap, tuple[jax.Array, jax.Array]]:
    """Returns the last state, and the outputs and contexts of all steps."""
    weights, offset = self._weights(inputs)
    state, outputs = scan_products.scan(
      self._step,
      weights,
      {'wm': offset},
      constants,
      state,
      xs,
      unroll=self.unroll,
    )
    return state, tuple(jnp.swapaxes(x, 0, 1) for x in outputs)

  def _weights(
    self, inputs: jax.Array
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    """Returns the matrices of a step, and the inputs' summands of the gates.

    The cell's matrix has rows for the inputs, the context and the last output.
    """
    dims = inputs.shape[-1]
    wm = self.cell.theta.wm
    if dims + self.attention.context_dim != self.cell.num_input_nodes:
      raise errors.UserError(
        f'{type(self).__name__}.cell_tpl.num_input_nodes is'
        f' {self.cell.num_input_nodes}; expected {dims} (of the inputs) +'
        f' {self.attention.context_dim} (of the context)'
      )
    flat = jnp.swapaxes(inputs, 0, 1).reshape([-1, dims])
    offset = (flat @ wm[:dims]).reshape([*inputs.shape[1::-1], -1])
    weights = {**self.cell.recurrent_weights(), **self.attention.weights()}
    return {**weights, 'wm': wm[dims:]}, offset

  def _first_context(self, constants: NestedMap, rows: int) -> jax.Array:
    if self.zero_context:
      return jnp.zeros([rows, self.attention.context_dim], self.compute_dtype)
    weights = self.attention.weights()
    query = jnp.zeros([rows, self.attention.query_dim], self.compute_dtype)
    context, _ = self.attention.attend(
      lambda name, x: x @ weights[name],
      constants.source,
      query,
      constants.visible,
    )
    return context

  def _step(self, product, constants, state, x):
    """Computes a step, for `scan_products.scan`."""
    context, visible = state.context, constants.visible
    if 'segment_ids' in x:
      context = context * x.reset_mask
      same = x.segment_ids[:, None] == constants.source_segment_ids
      visible = visible & same

    def of_cell(name, v):
      # The context's rows of the matrix are before those of the output.
      if name == 'wm':
        v = jnp.concatenate([context, v], axis=-1)
      return product(name, v)

    rnn = self.cell.step(of_cell, constants.gates, state.rnn, x)
    output = self.cell.get_output(rnn)
    context, probs = self.attention.attend(
      product, constants.source, output, visible, x.get('factors')
    )
    new = NestedMap(rnn=rnn, context=context)
    if 'coverage' in state:  # While decoding.
      padded = x.padding > 0
      new.context = jnp.where(padded, state.context, context)
      new.coverage = state.coverage + jnp.where(padded, 0.0, probs)
    return new, (output, context)
