"""Input and output projections of attention.

Shapes: D model dims, N heads, H dims of a head.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layers import base_ops

# Fields of a projection that a config's text omits unless set.
_SILENT = (*base_layer.BaseLayer.SILENT_UNLESS_SET, 'einsum_tpl')


class PerDimScale(base_layer.BaseLayer):
  """Scales each dim of a query by a learned factor, initially 1/sqrt(H).

  Attributes:
    dim: H.
  """

  dim: int = REQUIRED

  def setup(self):
    self.create_variable(
      'per_dim_scale', WeightHParams([self.dim], WeightInit.Constant(0.0))
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [..., H] scaled."""
    # softplus(0) = log(2), so the factor is 1/sqrt(H) where the weight is 0.
    scale = jax.nn.softplus(self.theta.per_dim_scale) / jnp.log(2.0)
    return inputs * (scale * self.dim**-0.5).astype(inputs.dtype)


class _Projection(base_layer.BaseLayer):
  """Base class of projections, whose product a subclass can replace."""

  def product(
    self, equation: str, inputs: jax.Array, weight: jax.Array
  ) -> jax.Array:
    """Returns the product with the weight."""
    return base_ops.weight_product(self, equation, inputs, weight)

  def add_bias(self, projected: jax.Array) -> jax.Array:
    """Returns `projected` plus the bias, if there is one."""
    if not self.use_bias:
      return projected
    bias = self.theta.b
    leading = projected.ndim - bias.ndim
    return ghost_norms.added(self, 'b', projected + bias, leading)


class AttentionProjection(_Projection):
  """A projection into heads, or from heads to the output.

  Attributes:
    input_dim: D.
    num_heads: N.
    dim_per_head: H.
    is_output_projection: whether it maps [..., N, H] to [..., D] instead of
      [..., D] to [..., N, H]. The weight is [D, N, H] in both cases.
    use_bias: whether there is a bias.
    bias_init: initializer of the bias.
    attention_combine_dims: whether N and H are one dimension of the weight.
    use_nhd_shape: whether the weight of an output projection is [N, H, D].
    explicit_fan_in_fan_out_axes: whether the weight is initialised as a matrix
      [D, N * H]; else as in Lingvo, with a fan-in of D * N and a fan-out of
      D * H.
    einsum_tpl: the product; see `base_ops`.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = _SILENT

  input_dim: int = REQUIRED
  num_heads: int = REQUIRED
  dim_per_head: int = REQUIRED
  is_output_projection: bool = False
  use_bias: bool = True
  bias_init: WeightInit = WeightInit.Constant(0.0)
  attention_combine_dims: bool = False
  use_nhd_shape: bool = False
  explicit_fan_in_fan_out_axes: bool = False
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('einsum', self.einsum_tpl.clone())
    dims, heads = self.input_dim, (self.num_heads, self.dim_per_head)
    nhd = self.use_nhd_shape and self.is_output_projection
    self.shape = (*heads, dims) if nhd else (dims, *heads)
    split = _split_of(self)
    split_dims, split_heads = None, None
    if split is not None:
      split_dims = [split[2] if nhd else split[0]]
      split_heads = split[:2] if nhd else split[1:]
    shape = self.shape
    if self.attention_combine_dims:
      shape, split = _merged(shape, split, first=0 if nhd else 1)
    self.create_variable(
      'w',
      WeightHParams(
        shape,
        _projection_init(self),
        tensor_split_dims_mapping=split,
        heads_dim=0 if nhd else 1,
      ),
    )
    if self.use_bias:
      out = self.is_output_projection
      self.create_variable(
        'b',
        WeightHParams(
          [dims] if out else heads,
          self.bias_init,
          tensor_split_dims_mapping=split_dims if out else split_heads,
        ),
      )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps [..., D] to [..., N, H], or [..., N, H] to [..., D]."""
    equation = '...d,dnh->...nh'
    if self.is_output_projection:
      equation = '...nh,nhd->...d' if self.use_nhd_shape else '...nh,dnh->...d'
    weight = self.theta.w.reshape(self.shape)
    projected = self.product(
      equation, inputs.astype(self.compute_dtype), weight
    )
    return self.add_bias(projected)


class OneHeadedAttentionProjection(_Projection):
  """A projection into a single head.

  Attributes:
    input_dim: D.
    output_dim: H.
    use_bias: whether there is a bias, initialised to 0.
    einsum_tpl: the product; see `base_ops`.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = _SILENT

  input_dim: int = REQUIRED
  output_dim: int = REQUIRED
  use_bias: bool = True
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('einsum', self.einsum_tpl.clone())
    split = self.weight_split_dims_mapping.wt
    self.create_variable(
      'w',
      WeightHParams(
        [self.input_dim, self.output_dim], tensor_split_dims_mapping=split
      ),
    )
    if self.use_bias:
      self.create_variable(
        'b',
        WeightHParams(
          [self.output_dim],
          WeightInit.Constant(0.0),
          tensor_split_dims_mapping=split and split[1:],
        ),
      )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps [..., D] to [..., H]."""
    weight = self.theta.w
    projected = self.product(
      '...d,dh->...h', inputs.astype(self.compute_dtype), weight
    )
    return self.add_bias(projected)


class CombinedQKVProjectionLayer(_Projection):
  """Projections of queries, keys and values with one weight [3, D, N, H].

  `weight_split_dims_mapping.wt` is the mapping of [D, N, H]; the first
  dimension is never split.

  Attributes:
    input_dim: D.
    num_heads: N.
    dim_per_head: H.
    use_bias: whether there is a bias [3, N, H], initialised to 0.
    attention_combine_dims: whether N and H are one dimension of the weights.
    explicit_fan_in_fan_out_axes: whether each of the three is initialised as a
      matrix [D, N * H]; else as in Lingvo, with a fan-in of 3 * D * N and a
      fan-out of 3 * D * H.
    einsum_tpl: the product; see `base_ops`.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = _SILENT

  input_dim: int = REQUIRED
  num_heads: int = REQUIRED
  dim_per_head: int = REQUIRED
  use_bias: bool = True
  attention_combine_dims: bool = False
  explicit_fan_in_fan_out_axes: bool = False
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('einsum', self.einsum_tpl.clone())
    heads = (self.num_heads, self.dim_per_head)
    shape, split = (self.input_dim, *heads), _split_of(self)
    if self.attention_combine_dims:
      shape, split = _merged(shape, split, first=1)
    self.create_variable(
      'w',
      WeightHParams(
        [3, *shape],
        _projection_init(self),
        tensor_split_dims_mapping=split and [None, *split],
        heads_dim=2,
      ),
    )
    if self.use_bias:
      self.create_variable(
        'b',
        WeightHParams(
          [3, *shape[1:]],
          WeightInit.Constant(0.0),
          tensor_split_dims_mapping=split and [None, *split[1:]],
        ),
      )

  def __call__(
    self, inputs: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Maps [..., D] to queries, keys and values, each [..., N, H]."""
    heads = (self.num_heads, self.dim_per_head)
    weight = self.theta.w.reshape(3, self.input_dim, *heads)
    projected = self.product(
      '...d,kdnh->k...nh', inputs.astype(self.compute_dtype), weight
    )
    if self.use_bias:
      ones = (1,) * (inputs.ndim - 1)
      projected += self.theta.b.reshape(3, *ones, *heads)
      leading = inputs.ndim - 1
      projected = ghost_norms.added(self, 'b', projected, leading, before=1)
    query, key, value = projected
    return query, key, value


def _split_of(layer: base_layer.BaseLayer) -> list | None:
  """Returns the mapping of a layer's weight of three dimensions."""
  split = layer.weight_split_dims_mapping.wt
  if split is not None and len(split) != 3:
    raise errors.UserError(
      f'{type(layer).__name__}: the weight of three dimensions has the split'
      f' mapping {list(split)}; expected one entry for each dimension'
    )
  return None if split is None else list(split)


def _merged(
  shape: Sequence[int], split: list | None, first: int
) -> tuple[list[int], list | None]:
  """Returns shape and mapping with dimensions `first` and the next merged."""
  second = first + 1
  shape = list(shape)
  shape[first : second + 1] = [shape[first] * shape[second]]
  if split is not None:
    axes = []
    for entry in split[first : second + 1]:
      if isinstance(entry, str):
        axes.append(entry)
      elif entry not in (None, -1):
        axes.extend(entry)
    split = [*split[:first], tuple(axes) or None, *split[second + 1 :]]
  return shape, split


def _projection_init(layer) -> WeightInit | None:
  """Returns the initializer of a projection's weight; None for the default."""
  if not layer.explicit_fan_in_fan_out_axes:
    return None
  return layer.params_init.for_shape(
    (layer.input_dim, layer.num_heads * layer.dim_per_head)
  )
