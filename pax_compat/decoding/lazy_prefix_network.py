"""A network whose samples share the cache of their prefix.

Shapes: B rows, P prefix, T positions, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_layer import PREFIX_DECODE_CACHE
from pax_compat.decoding.cached_network import CachedNetwork, Reordered, States
from pax_compat.layer_core import shared_prefixes


class LazyPrefixNetwork(CachedNetwork):
  """Holds the keys and values of a prefix once, not for each continuation.

  What `begin` has read is constant from then on, in a collection of variables
  that the network's attention reads beside its decode states; these have the
  positions after it. It must be one of `layers.attentions.lazy_prefix`.
  """

  def begin(
    self, ids: jax.Array, length: int, repeats: int, **positions
  ) -> tuple[jax.Array, States]:
    prefix = ids.shape[1]
    positions['mask'] = positions['mask'][..., :prefix]
    logits, states = super().begin(ids, prefix, 1, **positions)
    empty = self.init_states(length - prefix, repeats)
    if repeats > 1:
      logits = jnp.repeat(logits, repeats, axis=0)
    shared = self._shared(states)
    for variables in (self._variables, self._loop_variables):
      variables[PREFIX_DECODE_CACHE] = shared
    states = jax.tree.map(
      lambda new, old, time: new if time >= 0 else old,
      empty,
      self.repeat(states, repeats),
      self._dims[1],
    )
    return logits, states

  def reordered(
    self, states: States, hyps: jax.Array, first: int = 0
  ) -> Reordered:
    del first  # The states begin behind the prefix.
    return super().reordered(states, hyps)

  def _shared(self, states: States) -> Any:
    """Returns the keys and values of states, by their names in a prefix."""
    shared: dict[str, Any] = {}

    def add(path, state, batch, time):
      if batch < 0 or time < 0:
        return
      *parents, name = (key.key for key in path)
      if name not in shared_prefixes.SHARED_STATES:
        raise errors.UserError(
          'lazy_prefix_broadcast: the decode state'
          f' {"/".join([*parents, name])} cannot be shared by samples; expected'
          ' keys and values only'
        )
      node = shared
      for parent in parents:
        node = node.setdefault(parent, {})
      node[shared_prefixes.prefix_name(name, 0)] = state

    jax.tree_util.tree_map_with_path(add, states, *self._dims)
    if not shared:
      raise errors.UserError(
        'lazy_prefix_broadcast: the network caches no keys and values that'
        ' samples could share'
      )
    return shared
