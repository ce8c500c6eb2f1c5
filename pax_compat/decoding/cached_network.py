"""A network and its decode states as functions of arrays.

Decoders copy, reorder and enlarge decode states. A network does not tell which
dimensions of a state are those of the batch and of the positions: they are the
ones that change with the number of rows and with the length.

Shapes: B rows, L new tokens, T positions, V vocabulary.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.layer_core import constraints, decode_states, jax_context

# (network, length, repeats): initialises decode states of `length` positions,
# each row `repeats` times.
InitStatesFn = Callable[[Any, int, int], None]
# (network, ids [B, L], *, time_step, causal, **positions) -> logits [B, L, V].
# With `fprop_for_prefix`, the positions are `segment_pos` and `mask`; see
# `TransformerLm.extend_step`. With a parameter `last_only`, true where only the
# logits after the last token are read, it may return these alone, [B, 1, V].
ExtendStepFn = Callable[..., jax.Array]
States = Any
# States, and those of later positions that are to replace theirs, or None.
Reordered = tuple[States, list[jax.Array | None]]
# Numbers of positions that do not look alike, whatever they are rounded to.
_LENGTHS = (128, 256)


class CachedNetwork:
  """A network whose decode states are arguments and results.

  States are a tree of arrays.
  """

  def __init__(
    self,
    network: base_layer.BaseLayer,
    init_states: InitStatesFn,
    extend_step: ExtendStepFn,
  ):
    """Takes a network.

    Args:
      network: a bound layer.
      init_states: initialises its decode states.
      extend_step: computes the logits of the next tokens.
    """
    self.module, variables = network.unbind()
    self._variables = {
      name: values
      for name, values in variables.items()
      if name not in (base_layer.DECODE_CACHE, base_layer.SUMMARIES)
    }
    self._loop_variables = self._variables
    self._loop_axes: dict[str, str] | None = None
    self._init_states = init_states
    self._extend_step = extend_step
    parameters = inspect.signature(extend_step).parameters
    self._takes_last_only = 'last_only' in parameters
    self._rngs = {}
    if network.has_rng(base_layer.RANDOM):
      self._rngs = {base_layer.RANDOM: network.make_rng(base_layer.RANDOM)}

  def with_loop_axes(self, axes: dict[str, str], metas: Any) -> Self:
    """Returns the network with other mesh axes in all steps after the prefix.

    A mesh that suits the one long step of the prefix may not suit the many
    short ones. Weights are moved once, before them.

    Args:
      axes: the mesh axis that stands for another one, by name.
      metas: `WeightHParams` of the variables, {collection: tree}.
    """

    def moved(x: jax.Array, meta: base_layer.WeightHParams) -> jax.Array:
      split = meta.full_split_dims_mapping
      return constraints.maybe_shard(x, split, self.module.mesh_axis_names)

    other = copy.copy(self)
    other._loop_axes = axes
    with _mesh_axes(axes):
      other._loop_variables = {
        name: jax.tree.map(moved, values, metas[name])
        if name in metas
        else values
        for name, values in self._variables.items()
      }
    return other

  def init_states(self, length: int, repeats: int = 1) -> States:
    """Returns the states of `length` positions, of `repeats` times B rows."""
    _, updated = self._apply(
      lambda module: self._init_states(module, length, repeats), {}
    )
    return updated

  def begin(
    self,
    ids: jax.Array,
    length: int,
    repeats: int,
    *,
    causal: bool,
    **positions,
  ) -> tuple[jax.Array, States]:
    """Reads prefixes in one step, each of which is continued several times.

    Args:
      ids: [B, P], the prefixes.
      length: number of positions of the states.
      repeats: number of continuations of each row.
      causal: whether attention within the prefix is causal.
      **positions: further arguments of `extend_step`.

    Returns:
      Logits [B * repeats, V] after the last token, and states of as many rows.
    """
    logits, states = self.step(
      self.init_states(length),
      ids,
      jnp.asarray(0, jnp.int32),
      in_loop=False,
      causal=causal,
      **positions,
    )
    if repeats > 1:
      logits = jnp.repeat(logits, repeats, axis=0)
    return logits, self.repeat(states, repeats)

  def step(
    self,
    states: States,
    ids: jax.Array,
    time_step: jax.Array,
    *,
    in_loop: bool = True,
    **positions,
  ) -> tuple[jax.Array, States]:
    """Reads tokens.

    Args:
      states: the states.
      ids: [B, L], the new tokens.
      time_step: [], the position of the first of them.
      in_loop: whether the mesh axes are those of the loop; see
        `with_loop_axes`.
      **positions: further arguments of `extend_step`.

    Returns:
      Logits [B, V] after the last token, float32; and the new states.
    """
    if self._takes_last_only and ids.shape[1] > 1:
      positions['last_only'] = True
    logits, updated = self._read(
      states, ids, time_step, positions, in_loop=in_loop
    )
    return logits[:, -1], updated

  def _read(
    self,
    states: States,
    ids: jax.Array,
    time_step: jax.Array,
    positions: dict,
    *,
    in_loop: bool = True,
  ) -> tuple[jax.Array, States]:
    """Returns the logits [B, L, V] of a step, float32, and the new states."""
    logits, updated = self._apply(
      lambda module: self._extend_step(
        module, ids, time_step=time_step, **positions
      ),
      states,
      in_loop=in_loop,
    )
    return logits.astype(jnp.float32), updated

  def per_row(self, states: States) -> States:
    """Returns states for `step_rows`.

    What all rows share, each row has from now on: such states get a first
    dimension B.
    """
    batch_dims = jax.tree.leaves(self._dims[0])
    [rows] = {
      x.shape[dim]
      for x, dim in zip(jax.tree.leaves(states), batch_dims, strict=True)
      if dim >= 0
    }
    return self.transform(
      states,
      lambda x, batch, _: (
        x if batch >= 0 else jnp.broadcast_to(x, (rows, *x.shape))
      ),
    )

  def step_rows(
    self, states: States, ids: jax.Array, time_steps: jax.Array, **positions
  ) -> tuple[jax.Array, States]:
    """Reads tokens, in each row at its own position; attention is causal.

    Args:
      states: of `per_row`.
      ids: [B, L], the new tokens.
      time_steps: [B], the position of the first of them.
      **positions: further arguments of `extend_step`, [B, ...].

    Returns:
      Logits [B, L, V], float32; and the new states.
    """

    def read(states, ids, time_step, positions):
      states = self.transform(
        states,
        lambda x, batch, _: x if batch < 0 else jnp.expand_dims(x, batch),
      )
      given = {name: value[None] for name, value in positions.items()}
      logits, states = self._read(
        states, ids[None], time_step, {'causal': True, **given}
      )
      states = self.transform(
        states, lambda x, batch, _: x if batch < 0 else jnp.squeeze(x, batch)
      )
      return logits[0], states

    axes = self.transform(states, lambda _, batch, __: max(batch, 0))
    return jax.vmap(read, in_axes=(axes, 0, 0, 0), out_axes=(0, axes))(
      states, ids, time_steps, positions
    )

  def put_row(self, states: States, row: States, index: jax.Array) -> States:
    """Returns states of `per_row` with another row at `index` [].

    Args:
      states: of B rows.
      row: of one row, of the same number of positions.
      index: [].
    """
    return jax.tree.map(
      lambda x, new, batch: jax.lax.dynamic_update_slice_in_dim(
        x, new.astype(x.dtype), index, axis=max(batch, 0)
      ),
      states,
      row,
      self._dims[0],
    )

  def state(self, states: States, name: str) -> jax.Array | None:
    """Returns the first state of this name; None if there is none."""
    for path, value in jax.tree_util.tree_leaves_with_path(states):
      if path[-1] == jax.tree_util.DictKey(name):
        return value
    return None

  def check_rewinds(self, where: str):
    """Raises a UserError unless earlier positions can be read once more.

    A state of positions is overwritten; others have already changed.

    Args:
      where: names the network in the message.
    """

    def check(path, batch, time):
      if batch >= 0 and time < 0:
        raise errors.UserError(
          f'{where}: the decode state {jax.tree_util.keystr(path)} cannot go'
          ' back to an earlier position; expected a network of attention layers'
          ' that cache keys and values'
        )

    jax.tree_util.tree_map_with_path(check, *self._dims)

  def _apply(
    self, method: Callable, states: States, *, in_loop: bool = False
  ) -> tuple[Any, States]:
    variables = self._loop_variables if in_loop else self._variables
    axes = self._loop_axes if in_loop else None
    with _mesh_axes(axes) if axes else contextlib.nullcontext():
      result, updated = self.module.apply(
        {**variables, base_layer.DECODE_CACHE: states},
        method=method,
        rngs=self._rngs,
        mutable=[base_layer.DECODE_CACHE],
      )
    return result, updated[base_layer.DECODE_CACHE]

  def transform(self, states: States, change: decode_states.StateFn) -> States:
    """Changes the states.

    Args:
      states: the states.
      change: see `StateFn`.
    """
    return jax.tree.map(change, states, *self._dims)

  @functools.cached_property
  def _dims(self) -> tuple[Any, Any]:
    """The dimensions of the batch, and of the positions, of each state."""
    few, twice, longer = self._shapes
    find = functools.partial(jax.tree.map, _changed_dim, few)
    return find(twice), find(longer)

  @functools.cached_property
  def _by_position(self) -> Any:
    """Whether index t of each state's positions is position t."""
    few, _, longer = self._shapes
    return jax.tree.map(
      lambda x, y, time: (
        time >= 0 and (x.shape[time], y.shape[time]) == _LENGTHS
      ),
      few,
      longer,
      self._dims[1],
    )

  @functools.cached_property
  def _shapes(self) -> tuple[Any, Any, Any]:
    """Shapes of states: of B rows, of twice as many, of more positions."""

    def shapes(length: int, repeats: int) -> Any:
      return jax.eval_shape(lambda: self.init_states(length, repeats))

    few, many = _LENGTHS
    return shapes(few, 1), shapes(few, 2), shapes(many, 1)

  def repeat(self, states: States, repeats: int) -> States:
    """Returns states in which each row is there `repeats` times."""
    if repeats == 1:
      return states
    return self.transform(states, decode_states.repeat_rows(repeats))

  def reordered(
    self, states: States, hyps: jax.Array, first: int = 0
  ) -> Reordered:
    """Reorders the states, as other continuations of the same examples.

    States that continuations share are left where they are.

    Args:
      states: the states, of B * K rows.
      hyps: [B, K], the continuations of each example.
      first: a position; earlier ones are the same in all continuations of an
        example, such as those of a prefix.

    Returns:
      What `settled` takes.
    """

    def move(state, batch, time, by_position):
      if decode_states.is_shared(state) or batch < 0:
        return state, None
      if not by_position or not 0 < first < state.shape[time]:
        return of_hypotheses(state, hyps, batch), None
      later = jax.lax.slice_in_dim(state, first, None, axis=time)
      return state, of_hypotheses(later, hyps, batch)

    leaves, tree = jax.tree.flatten(states, is_leaf=decode_states.is_shared)
    of_leaves = (*self._dims, self._by_position)
    moved = list(map(move, leaves, *map(tree.flatten_up_to, of_leaves)))
    return tree.unflatten([x for x, _ in moved]), [x for _, x in moved]

  def settled(self, reordered: Reordered, first: int = 0) -> States:
    """Returns the states after `reordered`, in the next step of a loop.

    If one step moved positions of a state and put them back, XLA would join
    both, and copy all positions.

    Args:
      reordered: the result of `reordered`.
      first: as given there.
    """
    states, later = reordered
    leaves, tree = jax.tree.flatten(states, is_leaf=decode_states.is_shared)
    times = tree.flatten_up_to(self._dims[1])
    return tree.unflatten(
      state
      if new is None
      else jax.lax.dynamic_update_slice_in_dim(state, new, first, axis=time)
      for state, new, time in zip(leaves, later, times, strict=True)
    )

  def grow(self, states: States, positions: int) -> States:
    """Returns states with room for more positions."""

    def pad(x, _, time):
      if time < 0:
        return x
      widths = [(0, positions if dim == time else 0) for dim in range(x.ndim)]
      return jnp.pad(x, widths)

    return self.transform(states, pad)


def _mesh_axes(axes: dict[str, str]) -> jax_context.JaxContext:
  """Returns the current context, but with other mesh axes."""
  context = jax_context.JaxContext.top()
  kind = jax_context.JaxContext.HParams
  settings = context.hparams if context else kind()
  return jax_context.JaxContext.new_context(
    hparams=dataclasses.replace(settings, mesh_axes_transpose=axes)
  )


def _changed_dim(x: jax.ShapeDtypeStruct, y: jax.ShapeDtypeStruct) -> int:
  """Returns the dimension in which two shapes differ, or -1."""
  changed = [
    i for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=False)) if a != b
  ]
  if len(changed) > 1 or len(x.shape) != len(y.shape):
    raise errors.UserError(
      f'a decode state has the shapes {x.shape} and {y.shape}; expected at most'
      ' one dimension to depend on the number of rows, and one on the length'
    )
  return changed[0] if changed else -1


def of_hypotheses(x: jax.Array, hyps: jax.Array, axis: int) -> jax.Array:
  """Returns `x` with the rows of the hypotheses `hyps` [B, K].

  Examples are apart from each other in it, so that no device needs rows of
  another one where examples are distributed.

  Args:
    x: an array with a dimension B * K.
    hyps: [B, K], indices in 0..K-1.
    axis: that dimension.
  """
  shape = x.shape
  x = x.reshape(*shape[:axis], *hyps.shape, *shape[axis + 1 :])
  take = functools.partial(jnp.take, axis=axis, mode='clip')
  return jax.vmap(take, (axis, 0), axis)(x, hyps).reshape(shape)
