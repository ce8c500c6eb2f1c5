"""Metadata of weights: shape, initializer, sharding.

The variable collections contain weights as `BoxedParam`s with this metadata,
until the trainer unboxes them.
"""

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
from flax.core import meta

from pax_compat import errors
from pax_compat.layer_core.weight_init import WeightInit

# Weights with this name among their `collections` are not L1/L2-regularised.
SKIP_LP_REGULARIZATION = '__lingvo_jax_skip_regularization'


@dataclasses.dataclass(frozen=True)
class Quantized:
  """How the integers of a quantized weight are stored.

  Attributes:
    shape: shape of the floats.
    dims: dimensions that share a scale.
    pack_dim: dimension along which values are packed, if they are.
    params: the layer's `WeightQuantizationParams`.
    is_aqt: whether a `TensorQuantizer` rounds.
  """

  shape: tuple[int, ...]
  dims: tuple[int, ...]
  pack_dim: int
  params: Any
  is_aqt: bool = False


@dataclasses.dataclass(frozen=True)
class WeightHParams:
  """Metadata of a weight.

  Attributes:
    shape: shape, including leading dimensions of stacked layers.
    init: initializer; None takes the layer's `params_init`.
    dtype: None takes the layer's `dtype`.
    collections: names of the groups that the weight belongs to.
    mesh_shape: devices along each axis of the mesh; None takes the layer's
      `ici_mesh_shape`.
    tensor_split_dims_mapping: sharding, as in `BaseLayer.WeightSharding`; None
      replicates the weight.
    fan_in_axes: dimensions of the fan-in, for initializers that scale by it;
      None takes the default of `weight_init.fans`.
    fan_out_axes: likewise for the fan-out. Set both or neither.
    repeat_prefix: sizes of the leading dimensions along which the weights of
      repeated layers are stacked; () for a weight of a single layer.
    heads_dim: the dimension of attention heads, stacked layers included, along
      which auto sharding splits the weight first; None if there is none.
    repeat_prefix_split_dims_mapping: sharding of these dimensions, where they
      are not part of `shape`: in what `unbox_meta` returns.
    repeat_optimizer_dims_mapping: not used; the optimizer's state is split as
      the weights are.
    quantized: how it is stored, if it is an integer with scales; else None.
  """

  shape: Sequence[int]
  init: WeightInit | None = None
  dtype: Any = None
  collections: Sequence[str] = ()
  mesh_shape: Sequence[int] | None = None
  tensor_split_dims_mapping: Sequence[Any] | None = None
  fan_in_axes: Sequence[int] | None = None
  fan_out_axes: Sequence[int] | None = None
  repeat_prefix: Sequence[int] = ()
  quantized: Quantized | None = None
  repeat_prefix_split_dims_mapping: Sequence[Any] | None = None
  repeat_optimizer_dims_mapping: Sequence[Any] | None = None
  heads_dim: int | None = None

  def __post_init__(self):
    if self.collections is None:
      object.__setattr__(self, 'collections', ())
    if self.repeat_optimizer_dims_mapping is not None:
      raise errors.UserError(
        'WeightHParams: repeat_optimizer_dims_mapping is not supported; the'
        " optimizer's state is split as the weights are"
      )

  def replace(self, **fields: Any) -> 'WeightHParams':
    """Returns a copy with other values of some fields."""
    return dataclasses.replace(self, **fields)

  @property
  def full_shape(self) -> tuple[int, ...]:
    """The shape with the leading dimensions of stacked layers."""
    if self.repeat_prefix_split_dims_mapping is None:
      return tuple(self.shape)
    return (*self.repeat_prefix, *self.shape)

  @property
  def full_split_dims_mapping(self) -> tuple[Any, ...]:
    """The sharding of all dimensions of `full_shape`; -1 is not split."""
    split = self.tensor_split_dims_mapping or (-1,) * len(self.shape)
    return (*(self.repeat_prefix_split_dims_mapping or ()), *split)

  def check(self, name: str):
    """Raises a `UserError` if the fields are inconsistent.

    Args:
      name: name of the weight, for the message.
    """
    if not all(isinstance(n, numbers.Integral) and n > 0 for n in self.shape):
      raise errors.UserError(
        f'{name} has the shape {tuple(self.shape)}; expected positive integers'
      )
    split = self.tensor_split_dims_mapping
    if split is not None and len(split) != len(self.shape):
      raise errors.UserError(
        f'{name} has {len(self.shape)} dimension(s), but'
        f' tensor_split_dims_mapping is {tuple(split)}; expected one mesh axis,'
        ' or None, for each dimension'
      )


class BoxedParam(flax.struct.PyTreeNode, meta.AxisMetadata):
  """A weight together with its `WeightHParams`, as a Flax box.

  A scan over layers that stacks their weights sets in its `metadata_params`
  `x_times`, the number of layers, and `mesh_axis`, the mesh axis (or None) that
  the stacked dimension is split over.
  """

  value: Any
  meta: WeightHParams = flax.struct.field(pytree_node=False)

  def unbox(self):
    return self.value

  def replace_boxed(self, val):
    return self.replace(value=val)

  def add_axis(self, index, params):
    weight = self.meta
    shape = list(weight.shape)
    shape.insert(index, params['x_times'])
    mapping = weight.tensor_split_dims_mapping
    if mapping is None and params.get('mesh_axis') is not None:
      mapping = [None] * len(weight.shape)
    if mapping is not None:
      mapping = list(mapping)
      mapping.insert(index, params.get('mesh_axis'))
    return self.replace(
      meta=dataclasses.replace(
        weight,
        shape=tuple(shape),
        tensor_split_dims_mapping=None if mapping is None else tuple(mapping),
        repeat_prefix=(params['x_times'], *weight.repeat_prefix),
        heads_dim=_moved(weight.heads_dim, index, 1),
      )
    )

  def remove_axis(self, index, params):
    weight = self.meta
    shape = list(weight.shape)
    shape.pop(index)
    mapping = weight.tensor_split_dims_mapping
    if mapping is not None:
      mapping = list(mapping)
      mapping.pop(index)
    return self.replace(
      meta=dataclasses.replace(
        weight,
        shape=tuple(shape),
        tensor_split_dims_mapping=None if mapping is None else tuple(mapping),
        repeat_prefix=weight.repeat_prefix[1:],
        heads_dim=_moved(weight.heads_dim, index, -1),
      )
    )


def _moved(dim: int | None, index: int, by: int) -> int | None:
  """Returns a dimension after another one at `index` came or went."""
  return dim if dim is None or dim < index else dim + by


def is_boxed(x) -> bool:
  """Whether `x` is a boxed weight; for `is_leaf` of tree functions."""
  return isinstance(x, BoxedParam)


def unbox(tree):
  """Returns the tree with boxed weights replaced by their values."""
  return jax.tree.map(
    lambda x: x.value if is_boxed(x) else x, tree, is_leaf=is_boxed
  )
