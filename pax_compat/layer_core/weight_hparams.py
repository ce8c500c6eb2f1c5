"""What a weight is: its shape, its first value, how it is split over devices.

Weights stand in their collections in boxes that carry this, until the trainer
opens the boxes.
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

# A weight whose collections hold this name is not L1/L2-regularised.
SKIP_LP_REGULARIZATION = '__lingvo_skip_lp_regularization'


@dataclasses.dataclass(frozen=True)
class WeightHParams:
  """What a weight is.

  Attributes:
    shape: its dimensions, those of stacked layers in front included.
    init: its first value; None takes the layer's `params_init`.
    dtype: None takes the layer's `dtype`.
    collections: names of groups that it belongs to.
    mesh_shape: devices along each axis of the mesh that the mapping is for;
      None takes the layer's `ici_mesh_shape`.
    tensor_split_dims_mapping: for each dimension the mesh axis (or axes) that
      it is split over, or None for a dimension that is not; None replicates
      the weight.
    fan_in_axes: the dimensions that count as inputs where `init` scales by
      their number; None for the last but one.
    fan_out_axes: those that count as outputs; None for all others. Either both
      are given or none.
    repeat_prefix: the sizes of the leading dimensions along which the weights
      of repeated layers are stacked; () for a weight of a single layer.
  """

  shape: Sequence[int]
  init: WeightInit | None = None
  dtype: Any = None
  collections: Sequence[str] = ()
  mesh_shape: Sequence[int] | None = None
  tensor_split_dims_mapping: Sequence[Any] | None = None
  fan_in_axes: Sequence[int] | None = None
  fan_out_axes: Sequence[int] | None = None
  repeat_prefix: tuple[int, ...] = ()

  def check(self, name: str):
    """Raises a `UserError` if no array can be as the fields say.

    Args:
      name: of the weight, for the message.
    """
    if not all(isinstance(n, numbers.Integral) and n > 0 for n in self.shape):
      raise errors.UserError(
        f'{name} has the shape {tuple(self.shape)}; expected positive whole'
        ' numbers'
      )
    split = self.tensor_split_dims_mapping
    if split is not None and len(split) != len(self.shape):
      raise errors.UserError(
        f'{name} has {len(self.shape)} dimension(s), and'
        f' tensor_split_dims_mapping says {tuple(split)}; expected one mesh'
        ' axis, or None, for each dimension'
      )


class BoxedParam(flax.struct.PyTreeNode, meta.AxisMetadata):
  """A weight together with its `WeightHParams`.

  A scan over layers that stacks their weights says how in its
  `metadata_params`: `x_times`, the number of layers, and `mesh_axis`, the axis
  of the mesh that the stacked dimension is split over (None for none).
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
      )
    )


def is_boxed(x) -> bool:
  """Whether `x` is a boxed weight; for `is_leaf` of tree functions."""
  return isinstance(x, BoxedParam)


def unbox(tree):
  """Returns the tree with every boxed weight replaced by its value."""
  return jax.tree.map(
    lambda x: x.value if is_boxed(x) else x, tree, is_leaf=is_boxed
  )
