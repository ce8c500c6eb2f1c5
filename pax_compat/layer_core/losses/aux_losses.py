"""Auxiliary losses: what layers add to the loss, beside their outputs.

A layer adds one with `add_aux_loss`, an `AuxLossStruct` in the collection
`aux_loss`. As in Pax, a network sums those of the layers in it, and adds them
to its own loss. The trainer adds those that no layer has read.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

AUX_LOSS = 'aux_loss'  # The collection of these variables.

# Key of `_Read` beside the losses of a layer that has read them.
_READ = '_read'


class AuxLossStruct(flax.struct.PyTreeNode):
  """An auxiliary loss.

  Attributes:
    value: [], what is added to the loss. Scanned modules stack theirs, [N].
    weight: the same shape. It does not change the loss: networks report the sum
      of all weights as `aux_loss_weight`.
  """

  value: jax.Array
  weight: jax.Array


class _Read(flax.struct.PyTreeNode):
  """Marks losses that a layer has read; a tree without leaves."""


def is_aux_loss(x: Any) -> bool:
  """Whether `x` is an auxiliary loss; for `is_leaf` of tree functions."""
  return isinstance(x, AuxLossStruct)


def total(tree: Any) -> AuxLossStruct:
  """Returns the sum [] of all values, and of all weights, in float32.

  Args:
    tree: the collection, or a part of it. A plain array counts as a value.
  """
  value = weight = jnp.float32(0.0)
  for x in jax.tree.leaves(tree, is_leaf=is_aux_loss):
    if not is_aux_loss(x):
      x = AuxLossStruct(x, jnp.ones_like(x))
    value = value + jnp.sum(x.value)
    weight = weight + jnp.sum(x.weight)
  return AuxLossStruct(value, weight)


def unread(tree: Any) -> Any:
  """Returns the losses of the collection that no layer has read.

  Args:
    tree: the collection, or a part of it.
  """
  if not isinstance(tree, Mapping):
    return tree
  if _READ in tree:
    return {}
  return {name: unread(x) for name, x in tree.items()}


def _without_marks(tree: Any) -> Any:
  if not isinstance(tree, Mapping):
    return tree
  return {k: _without_marks(x) for k, x in tree.items() if k != _READ}


class AuxLosses:
  """Methods of a layer that add and read auxiliary losses."""

  def add_aux_loss(
    self, name: str, value: jax.Array, weight: jax.Array | None = None
  ):
    """Adds `value` [] to the loss if the collection `aux_loss` is mutable.

    Values and weights of several calls are summed. They are added to the loss
    by the network around this layer, such as `TransformerLm`; if no layer has
    read them, by the trainer.

    Args:
      name: name of the loss within the layer.
      value: [].
      weight: [], no effect on the loss, see `AuxLossStruct`; None for 1.
    """
    if weight is None:
      weight = jnp.ones_like(value)
    self.sow(
      AUX_LOSS,
      name,
      AuxLossStruct(value, weight),
      init_fn=lambda: AuxLossStruct(0.0, 0.0),
      reduce_fn=lambda x, y: jax.tree.map(jnp.add, x, y),
    )

  def total_aux_loss(self) -> AuxLossStruct:
    """Returns the sum of the auxiliary losses of this layer and those in it.

    The trainer no longer adds them: who calls this does. It is 0 if they are
    not collected.
    """
    return total(self.variables.get(AUX_LOSS, {}))

  @property
  def variables(self) -> dict[str, Any]:
    """The variables of this layer and those in it, by collection.

    Who reads the auxiliary losses adds them to a loss; see `total_aux_loss`.
    """
    found = super().variables
    return _Variables(found, self) if found.get(AUX_LOSS) else found

  def _mark_aux_losses(self):
    """Marks the losses as read by a layer."""
    if self.is_mutable_collection(AUX_LOSS):
      self.put_variable(AUX_LOSS, _READ, _Read())


class _Variables(dict):
  """The variables of a layer, which marks its auxiliary losses once read."""

  def __init__(self, found: Mapping[str, Any], layer: AuxLosses):
    super().__init__(found)
    self._layer = layer
    self[AUX_LOSS] = _without_marks(found[AUX_LOSS])

  def __getitem__(self, collection: str) -> Any:
    if collection == AUX_LOSS:
      self._layer._mark_aux_losses()
    return super().__getitem__(collection)

  def get(self, collection: str, default: Any = None) -> Any:
    return self[collection] if collection in self else default


# As a pytree it is a dict.
jax.tree_util.register_pytree_with_keys(
  _Variables,
  lambda x: (
    [(jax.tree_util.DictKey(k), dict.__getitem__(x, k)) for k in sorted(x)],
    tuple(sorted(x)),
  ),
  lambda keys, values: dict(zip(keys, values, strict=True)),
)
