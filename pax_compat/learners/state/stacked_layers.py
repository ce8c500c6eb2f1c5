"""Optimizers of weights in which several layers are stacked.

A repeated layer keeps the weights of its n layers in one array [n, ...]. Most
optimizers would treat it as one weight: one trust ratio, one root mean square,
factors over the wrong dimensions. So weights are put into groups by how they
are stacked, and each group is optimized by the same transformation, mapped over
its stacked dimensions. What a transformation remembers beside weights, such as
counts, is there once for a group.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import optax

from pax_compat import errors
from pax_compat.learners.state import state_leaves
from pax_compat.learners.variable_names import as_tree, by_path

NO_PREFIX = 'no_prefix'


@dataclasses.dataclass(frozen=True)
class StackedTransformation:
  """A transformation of weights, some of which are stacks of layers.

  All methods take and return weights as {path: array}. The state is that of
  the transformation, or, if some weights are stacks, a dict of such states:
  'no_prefix' has that of the weights of single layers, 'p#4' that of weights of
  4 layers, 'p#2.3' that of 2 times 3.

  A transformation is given trees with the keys of all weights of the model, so
  that masks can be such trees; `optax.MaskedNode` stands where a weight is not
  of the group.

  Attributes:
    transformation: of weights of single layers.
    prefixes: sizes of the stacked dimensions of each weight, by path.
    all_paths: those of all weights of the model, others than these included.
    separator: what stands for '#' in the names of groups.
    always_groups: whether the state is a dict of groups even without stacks.
  """

  transformation: optax.GradientTransformation
  prefixes: Mapping[str, tuple[int, ...]]
  all_paths: Collection[str]
  separator: str = '#'
  always_groups: bool = False

  def init(self, weights: dict[str, jax.Array]) -> Any:
    """Returns the first state."""
    return self._ungrouped(
      {
        name: self._init_group(prefix, self._tree(members))
        for name, prefix, members in self._groups(weights)
      }
    )

  def update(
    self,
    gradients: dict[str, jax.Array],
    state: Any,
    weights: dict[str, jax.Array],
    **others: jax.Array,
  ) -> tuple[dict[str, jax.Array], Any]:
    """Returns the updates of weights, by path, and the next state.

    Args:
      gradients: by path.
      state: of `init` or the last step.
      weights: by path.
      **others: what else is told to transformations that take more; it belongs
        to no weight.
    """
    states, updates = self._grouped(state), {}
    for name, prefix, members in self._groups(weights):
      tree = self._tree(members)
      own = self._tree({path: gradients[path] for path in members})
      step = self._mapped_update(prefix, tree, states[name], others)
      moves, states[name] = step(own, states[name], tree)
      updates |= by_path(moves)
    return updates, self._ungrouped(states)

  def count(self, state: Any) -> jax.Array:
    """Returns how many steps were made [], as the optimizer counts them."""
    return self._grouped(state)[NO_PREFIX][-1].count

  def rested(self, state: Any, rest: Callable[[Any], Any]) -> Any:
    """Returns a state with `rest` applied to that of each group."""
    groups = self._grouped(state).items()
    return self._ungrouped({name: rest(one) for name, one in groups})

  def placed(
    self,
    state: Any,
    weights: dict[str, jax.ShapeDtypeStruct],
    reduced_dim: state_leaves.ReducedDim,
    elsewhere: jax.sharding.Sharding | None,
  ) -> Any:
    """Returns a state's shapes and dtypes with shardings.

    Args:
      state: shapes and dtypes.
      weights: shapes, dtypes and shardings.
      reduced_dim: see `state_leaves.leaf_sharding`.
      elsewhere: the sharding of leaves that belong to no weight.
    """
    states = self._grouped(state)
    for name, prefix, members in self._groups(weights):
      leaves, structure = jax.tree.flatten(states[name])
      owners = state_leaves.owners(states[name], self._tree(members))
      placed = [
        jax.ShapeDtypeStruct(
          leaf.shape,
          leaf.dtype,
          sharding=elsewhere
          if owner is None
          else state_leaves.leaf_sharding(
            leaf.shape,
            weights[owner.path],
            len(prefix),
            owner.field,
            reduced_dim,
          ),
        )
        for leaf, owner in zip(leaves, owners, strict=True)
      ]
      states[name] = jax.tree.unflatten(structure, placed)
    return self._ungrouped(states)

  def _groups(self, weights) -> list[tuple[str, tuple[int, ...], dict]]:
    """Returns (name, stacked sizes, weights by path) of each group."""
    members: dict[tuple[int, ...], dict] = {(): {}}
    for path, weight in weights.items():
      members.setdefault(tuple(self.prefixes[path]), {})[path] = weight
    return [
      (self._group_name(prefix), prefix, members[prefix])
      for prefix in sorted(members)
    ]

  def _tree(self, leaves: dict[str, Any]) -> dict[str, Any]:
    """Returns the tree of all weights, masked but for some."""
    masked = dict.fromkeys(self.all_paths, optax.MaskedNode())
    return as_tree(masked | leaves)

  def _group_name(self, prefix: tuple[int, ...]) -> str:
    sizes = '.'.join(map(str, prefix))
    return f'p{self.separator}{sizes}' if prefix else NO_PREFIX

  @property
  def _has_groups(self) -> bool:
    return self.always_groups or any(self.prefixes.values())

  def _grouped(self, state) -> dict[str, Any]:
    return dict(state) if self._has_groups else {NO_PREFIX: state}

  def _ungrouped(self, states: dict[str, Any]) -> Any:
    return states if self._has_groups else states[NO_PREFIX]

  def _init_group(self, prefix, weights):
    single = jax.tree.map(
      lambda w: jax.ShapeDtypeStruct(w.shape[len(prefix) :], w.dtype), weights
    )
    abstract = jax.eval_shape(self.transformation.init, single)
    axes = _axes(abstract, single)

    def init(w):
      return jax.tree.leaves(self.transformation.init(w))

    leaves = _mapped(init, prefix, (0,), axes)(weights)
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves)

  def _mapped_update(self, prefix, weights, state, others):
    structure = jax.tree.structure(state)
    axes = _axes(state, weights)
    transformation = optax.with_extra_args_support(self.transformation)

    def update(gradients, leaves, weights):
      state = jax.tree.unflatten(structure, leaves)
      updates, state = transformation.update(
        gradients, state, weights, **others
      )
      return updates, jax.tree.leaves(state)

    mapped = _mapped(update, prefix, (0, axes, 0), (0, axes))

    def whole(gradients, state, weights):
      updates, leaves = mapped(gradients, jax.tree.leaves(state), weights)
      return updates, jax.tree.unflatten(structure, leaves)

    return whole


def _axes(state, weights) -> list[int | None]:
  """Returns along which axis each leaf of a state is stacked, if at all."""
  owners = state_leaves.owners(state, weights)
  return [None if owner is None else 0 for owner in owners]


def _mapped(function, prefix, in_axes, out_axes) -> Callable[..., Any]:
  """Returns a function mapped over the leading dimensions of a group.

  Raises:
    UserError: when called, if what belongs to no weight depends on the layer.
  """
  if not prefix:
    return function
  for _ in prefix:
    function = jax.vmap(function, in_axes=in_axes, out_axes=out_axes)

  def checked(*args):
    try:
      return function(*args)
    except ValueError as e:
      if 'out_axes' not in str(e):
        raise
      raise errors.UserError(
        'the optimizer remembers something of all weights together, which has'
        ' no meaning for each layer of a repeated layer; set'
        ' Learner.vectorize_on_repeat_prefix=False to let it treat the layers'
        ' together'
      ) from e

  return checked
