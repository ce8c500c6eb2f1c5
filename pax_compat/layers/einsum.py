"""Product with a weight of any shape, as an einsum."""

from collections.abc import Sequence
from typing import ClassVar

import jax

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import base_ops


class Einsum(base_layer.BaseLayer):
  """Einsum of the input and a weight, with an optional bias.

  For the initializer, the weight's fan-in axes are those that the equation sums
  over, and its fan-out axes are those that only the weight has.

  Attributes:
    eqn: 'input,weight->output', such as '...d,dnh->...nh'.
    w_shape: shape of the weight.
    use_bias: whether to add a bias over the weight's fan-out axes, which then
      must be the last ones of the output.
    einsum_op_tpl: the product; see `base_ops`.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'einsum_op_tpl',
  )

  eqn: str = REQUIRED
  w_shape: Sequence[int] = REQUIRED
  use_bias: bool = False
  einsum_op_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('einsum', self.einsum_op_tpl.clone())
    inputs, weight, outputs = self._parsed()
    init = self.params_init.for_shape(
      self.w_shape,
      fan_in_axes=[i for i, c in enumerate(weight) if c not in outputs],
      fan_out_axes=[i for i, c in enumerate(weight) if c not in inputs],
    )
    mapping = self.weight_split_dims_mapping.wt
    self.create_variable(
      'w', WeightHParams(self.w_shape, init, tensor_split_dims_mapping=mapping)
    )
    if self.use_bias:
      axes = self._bias_axes(inputs, weight, outputs)
      self.create_variable(
        'b',
        WeightHParams(
          [self.w_shape[i] for i in axes],
          WeightInit.Constant(0.0),
          tensor_split_dims_mapping=(
            None if mapping is None else [mapping[i] for i in axes]
          ),
        ),
      )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns the einsum of `inputs`; shapes are those of the equation."""
    outputs = self.product(self.eqn, inputs, self.theta.w)
    if self.use_bias:
      outputs = outputs + self.theta.b
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def product(
    self, equation: str, inputs: jax.Array, weight: jax.Array
  ) -> jax.Array:
    """Returns the product with the weight."""
    return self.einsum(equation, inputs, weight)

  def _parsed(self) -> tuple[str, str, str]:
    """Returns the letters of the input, the weight and the output."""
    eqn = self.eqn.replace(' ', '')
    operands, arrow, outputs = eqn.partition('->')
    inputs, comma, weight = operands.partition(',')
    if not arrow or not comma or not weight.isalpha():
      raise errors.UserError(
        f"Einsum.eqn is {self.eqn!r}; expected 'input,weight->output' with a"
        " weight of letters only, such as '...d,df->...f'"
      )
    if len(weight) != len(self.w_shape):
      raise errors.UserError(
        f'Einsum.w_shape is {list(self.w_shape)}, but {self.eqn!r} has a weight'
        f' of {len(weight)} dimensions'
      )
    return inputs, weight, outputs

  def _bias_axes(self, inputs: str, weight: str, outputs: str) -> list[int]:
    """Returns the weight's axes of the bias, in the output's order."""
    added = [c for c in outputs if c in weight and c not in inputs]
    if not outputs.endswith(''.join(added)):
      raise errors.UserError(
        f'Einsum.use_bias: in {self.eqn!r} the dimensions that only the weight'
        f' has, {"".join(added)!r}, are not the last ones of the output'
      )
    return [weight.index(c) for c in added]
