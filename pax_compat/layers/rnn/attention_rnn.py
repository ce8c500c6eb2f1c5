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
      source_paddings: [B, S], 1 where there is no source.
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
    visible = source_paddings == 0
    constants = NestedMap(
      gates=self.cell.gate_weights(), source=self.attention.pack(source)
    )
    constants.visible = visible
    if packed:
      constants.source_segment_ids = source_segment_ids
    weights, offset = self._weights(inputs)
    state = NestedMap(
      rnn=self.cell.init_states(len(inputs)),
      context=self._first_context(constants, len(inputs)),
    )
    _, outputs = scan_products.scan(
      self._step,
      weights,
      {'wm': offset},
      constants,
      state,
      xs,
      unroll=self.unroll,
    )
    return tuple(jnp.swapaxes(x, 0, 1) for x in outputs)

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
    return self.attention.attend(
      lambda name, x: x @ weights[name],
      constants.source,
      query,
      constants.visible,
    )

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
    context = self.attention.attend(
      product, constants.source, output, visible, x.get('factors')
    )
    return NestedMap(rnn=rnn, context=context), (output, context)
