"""Quantized linear layers, and low-rank updates of them.

Shapes: I input dims, O output dims, R rank.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import linears, normalizations
from pax_compat.layers.input_checks import check_last_dim
from pax_compat.layers.quantization import utils
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationMethods,
  settings_field,
)
from pax_compat.layers.quantization.sparsity.sparsifier import SparseProduct
from pax_compat.layers.quantization.sparsity.sparsity_hparams import (
  SparsityHParams,
)


class Linear(SparseProduct, QuantizationMethods, linears.Linear):
  """A product with a quantized matrix [I, O]; one scale for each output.

  Attributes:
    quantization: the settings; None is the layer without quantization.
    sparsity: settings of a sparse matrix; None prunes nothing.
    rank: if positive, there are two matrices instead: `w_a` [I, rank] and `w_b`
      [rank, O].
  """

  QUANTIZED = ('w', 'w_a', 'w_b')
  SILENT_UNLESS_SET = (*linears.Linear.SILENT_UNLESS_SET, 'sparsity')

  quantization: QuantizationParams | None = settings_field()
  sparsity: SparsityHParams | None = None
  rank: int = -1

  def _equation(self) -> str:
    return 'i,io->o'

  def setup(self):
    if self.rank <= 0:
      super().setup()
      return
    if self.prunes:
      raise errors.UserError('Linear.sparsity is not supported with rank')
    self.create_child('einsum', self.einsum_tpl.clone())
    split = self.weight_split_dims_mapping.wt
    for name, shape in (
      ('w_a', [self.input_dims, self.rank]),
      ('w_b', [self.rank, self.output_dims]),
    ):
      weight = WeightHParams(
        shape, self.weight_init, tensor_split_dims_mapping=split
      )
      self.create_variable(name, weight)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    if self.rank <= 0:
      return super().__call__(inputs)
    check_last_dim(self, 'input_dims', inputs)
    outputs = inputs
    for name in ('w_a', 'w_b'):
      weight = self.get_theta(name)
      outputs = self.product('...i,io->...o', outputs, weight, name)
    return self.shard(
      outputs,
      linears.output_mapping(self.activation_split_dims_mapping, outputs.ndim),
    )


class LowRankUpdate:
  """Methods of a layer that adds a product of low rank to its output.

  The layer has the fields `lora_rank`, `init_method`, `norm_tpl` and
  `norm_order` of `LinearLoRA`.
  """

  def create_low_rank(
    self,
    equation: str,
    shape: Sequence[int],
    split: Sequence | None,
    *,
    sizes: tuple[int, int],
    norm_dims: tuple[int, int],
    max_reduction: bool = True,
  ):
    """Creates the weights `w_left` and `w_right`, and the child `norm`.

    Args:
      equation: the equation of the layer's product.
      shape: shape of its weight.
      split: its split mapping.
      sizes: for the initial values of the method 'output_dim': the sizes of
        left and right, whose roots divide.
      norm_dims: dims of the inputs and of the outputs.
      max_reduction: see `utils.get_lora_shape_and_eqn`.
    """
    scales = {
      'one_zero': (1.0, 0.0),
      'output_dim': (sizes[0] ** -0.5, sizes[1] ** -0.5),
    }
    errors.check_choice(self, 'init_method', tuple(scales))
    errors.check_choice(self, 'norm_order', (None, 'pre', 'mid', 'post'))
    left, right, *shapes, left_dims, right_dims = utils.get_lora_shape_and_eqn(
      shape, self.lora_rank, equation, max_reduction
    )
    self.equations = (left, right)
    scale, of_right = scales[self.init_method]
    init = WeightInit.Gaussian(scale)
    mapping = utils.get_left_weight_split_dims_mapping(split, left_dims)
    self.create_variable(
      'w_left',
      WeightHParams(shapes[0], init, tensor_split_dims_mapping=mapping),
    )
    mapping = utils.get_right_weight_split_dims_mapping(split, right_dims)
    # Both have the scale of the left one, as in Pax.
    init = init if of_right else WeightInit.Constant(0.0)
    self.create_variable(
      'w_right',
      WeightHParams(shapes[1], init, tensor_split_dims_mapping=mapping),
    )
    if self.norm_order is not None:
      dims = {'pre': norm_dims[0], 'mid': self.lora_rank, 'post': norm_dims[1]}
      self.create_child('norm', self.norm_tpl, dim=dims[self.norm_order])

  def low_rank(self, inputs: jax.Array) -> jax.Array:
    """Returns the update of the outputs."""
    x = self.norm(inputs) if self.norm_order == 'pre' else inputs
    x = jnp.einsum(self.equations[0], x, self.theta.w_left)
    x = self.norm(x) if self.norm_order == 'mid' else x
    x = jnp.einsum(self.equations[1], x, self.theta.w_right)
    return self.norm(x) if self.norm_order == 'post' else x


class LinearLoRA(LowRankUpdate, Linear):
  """A `Linear` with an update: `w_left` [I, R] times `w_right` [R, O].

  Attributes:
    lora_rank: R; 0 for no update.
    init_method: 'one_zero', with which the update is 0 at first, or
      'output_dim', with which both are random.
    norm_tpl: a normalization of the update.
    norm_order: where it is: 'pre', of its inputs, 'mid', between the matrices,
      or 'post', of its outputs; None for nowhere.
  """

  lora_rank: int = 0
  init_method: str = 'one_zero'
  norm_tpl: Config = sub_config_field(normalizations.LayerNorm)
  norm_order: str | None = None

  def setup(self):
    super().setup()
    if self.lora_rank:
      dims = (self.input_dims, self.output_dims)
      self.create_low_rank(
        '...y,yz->...z',
        dims,
        self.weight_split_dims_mapping.wt,
        sizes=(self.lora_rank, self.output_dims),
        norm_dims=dims,
      )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    outputs = super().__call__(inputs)
    if not self.lora_rank:
      return outputs
    outputs = outputs + self.low_rank(inputs)
    return self.shard(
      outputs,
      linears.output_mapping(self.activation_split_dims_mapping, outputs.ndim),
    )


class LinearActScaling(Linear):
  """A `Linear` whose inputs are multiplied by weights [I].

  They are `w_per_channel_act_max`, are 0 at first, and set after training.
  """

  def setup(self):
    super().setup()
    self.create_variable(
      'w_per_channel_act_max',
      base_layer.WeightHParams([self.input_dims], WeightInit.Constant(0.0)),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    return super().__call__(inputs * self.theta.w_per_channel_act_max)
