"""Optimizers of weights with several stacked layers.

A repeated layer keeps the weights of its n layers in one array [n, ...]. Most
optimizers would treat it as one weight: one trust ratio, one root mean square,
factors over the wrong dimensions. So weights are grouped by their stacked
dimensions, and each group is optimized by the same transformation, mapped
(`jax.vmap`) over these dimensions. State that belongs to no weight, such as
counts, exists once per group.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import optax

from pax_compat import errors, optimizers
from pax_compat.learners.state import state_leaves
from pax_compat.learners.variable_names import as_tree, by_path

NO_PREFIX = 'no_prefix'


@dataclasses.dataclass(frozen=True)
class StackedTransformation:
  """A transformation of weights, some of which are stacks of layers.

  All methods take and return weights as {path: array}. The state is that of
  the transformation, or, if some weights are stacks, a dict of such states:
  'no_prefix' for the weights of single layers, 'p#4' for stacks of 4 layers,
  'p#2.3' for stacks of 2 times 3.

  A transformation gets trees with the keys of all weights of the model, so that
  masks can be such trees. Weights outside the group are `optax.MaskedNode`.

  Attributes:
    transformation: the transformation of weights of single layers.
    prefixes: sizes of the stacked dimensions of each weight, by path.
    all_paths: paths of all weights of the model, also of other ones.
    separator: the '#' in the names of groups.
    always_groups: whether the state is a dict of groups even without stacks.
  """

  transformation: optax.GradientTransformation
  prefixes: Mapping[str, tuple[int, ...]]
  all_paths: Collection[str]
  separator: str = '#'
  always_groups: bool = False

  def init(self, weights: dict[str, jax.Array]) -> Any:
    """Returns the initial state."""
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
    **others: Any,
  ) -> tuple[dict[str, jax.Array], Any]:
    """Returns the updates of weights, by path, and the next state.

    Args:
      gradients: by path.
      state: of `init` or the last step.
      weights: by path.
      **others: extra arguments of the transformation; they are not mapped over
        stacked layers.
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
    """Returns the optimizer's step count []."""
    return self._grouped(state)[NO_PREFIX][-1].count

  def states(self, state: Any) -> list[Any]:
    """Returns the states of groups."""
    return list(self._grouped(state).values())

  def map_groups(self, state: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a state with `function` applied to that of each group."""
    groups = self._grouped(state).items()
    return self._ungrouped({name: function(one) for name, one in groups})

  def with_shardings(
    self,
    state: Any,
    weights: dict[str, jax.ShapeDtypeStruct],
    optimizer: optimizers.BaseOptimizer,
    replicated: jax.sharding.Sharding | None,
  ) -> Any:
    """Returns a state's shapes and dtypes with shardings.

    Args:
      state: shapes and dtypes.
      weights: shapes, dtypes and shardings.
      optimizer: whose transformation it is.
      replicated: the sharding of leaves that belong to no weight.
    """
    states = self._grouped(state)
    for name, prefix, members in self._groups(weights):
      leaves, structure = jax.tree.flatten(states[name])
      owners = state_leaves.owners(states[name], self._tree(members))
      with_sharding = [
        jax.ShapeDtypeStruct(
          leaf.shape,
          leaf.dtype,
          sharding=replicated
          if owner is None
          else state_leaves.leaf_sharding(
            leaf.shape,
            weights[owner.path],
            len(prefix),
            owner.field,
            optimizer,
          ),
        )
        for leaf, owner in zip(leaves, owners, strict=True)
      ]
      states[name] = jax.tree.unflatten(structure, with_sharding)
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
    """Returns the tree of all weights, masked except for `leaves`."""
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
    UserError: when called, if state that belongs to no weight depends on the
      layer.
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
        'the optimizer has state of all weights together, which cannot be'
        ' computed for each layer of a repeated layer; set'
        ' Learner.vectorize_on_repeat_prefix=False to treat the layers together'
      ) from e

  return checked
