"""Decode states: what a layer keeps from one decoding step to the next."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors

DECODE_CACHE = 'decoder_cache'  # The collection of these variables.

# (state, batch dimension, time dimension) -> state, between decoding steps; a
# dimension that a state does not have is -1.
StateFn = Callable[[jax.Array, int, int], jax.Array]


def repeat_rows(repeats: int) -> StateFn:
  """Returns a function that repeats each row of states."""

  def repeat(x, batch_dim, time_dim):
    del time_dim
    return x if batch_dim < 0 else jnp.repeat(x, repeats, axis=batch_dim)

  return repeat


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedState:
  """A decode state that all continuations of an example have in common.

  It depends on the example alone, such as the keys of the source of an
  encoder-decoder, and no step changes it. A beam search does not reorder it.

  Attributes:
    value: the state, an array or a tree of them.
  """

  value: Any


def is_shared(state: Any) -> bool:
  """Whether a node of a tree of decode states is a `SharedState`."""
  return isinstance(state, SharedState)


class DecodeStates:
  """Methods of a layer that read and store its decode states."""

  def get_decode_state(self, name: str) -> jax.Array:
    """Returns the decode state `name`, set in an earlier decoding step.

    Raises:
      UserError: the state is missing.
    """
    if not self.has_variable(DECODE_CACHE, name):
      raise errors.UserError(
        f'{type(self).__name__} has no decode state {name!r}; call'
        ' init_states() first'
      )
    state = self.get_variable(DECODE_CACHE, name)
    return state.value if is_shared(state) else state

  def update_decode_state(
    self, name: str, new_state: jax.Array, *, shared: bool = False
  ):
    """Stores `new_state` for the next step, if the collection is mutable.

    Args:
      name: of the state.
      new_state: an array, or a tree of them.
      shared: whether it is the same for all continuations of an example, and
        in all steps; see `SharedState`.
    """
    if self.is_mutable_collection(DECODE_CACHE):
      state = SharedState(new_state) if shared else new_state
      self.put_variable(DECODE_CACHE, name, state)

  def _own_decode_states(self) -> dict[str, Any]:
    """Returns the decode states of this layer, without those of children."""
    return {
      name: state
      for name, state in self.variables.get(DECODE_CACHE, {}).items()
      if not isinstance(state, Mapping)
    }

  def _transform_own_states(self, change: StateFn, timed: Collection[str] = ()):
    """Changes the decode states of this layer; their first dimension is B.

    Args:
      change: see `StateFn`; scalars are left as they are.
      timed: names of the states [B, T, ...].
    """
    for name, state in self._own_decode_states().items():
      time_dim = 1 if name in timed else -1

      def changed(x, time_dim=time_dim):
        return change(x, 0, time_dim) if jnp.ndim(x) else x

      self.update_decode_state(
        name,
        jax.tree.map(changed, self.get_decode_state(name)),
        shared=is_shared(state),
      )


class ForwardsDecodeStates:
  """Methods of a layer whose children have decode states that can be changed.

  They are Pax's, for decoders that call them between steps. Our own decoders
  change decode states from outside, without them.

  Attributes:
    STATES_BY_POSITION: names of own decode states [B, T, ...]; others are
      [B, ...] or scalars.
  """

  STATES_BY_POSITION: Collection[str] = ()

  def _layers_with_states(self) -> Sequence[Any]:
    """Returns the children whose decode states are those of decoded tokens."""
    raise NotImplementedError

  def transform_decode_state(self, transform_fn: StateFn):
    """Changes all decode states, such as to enlarge, repeat or reorder them.

    Args:
      transform_fn: see `StateFn`.
    """
    self._transform_own_states(transform_fn, self.STATES_BY_POSITION)
    self._for_layers('transform_decode_state', transform_fn)

  def lazy_broadcast_prefix(self, num_suffix_samples: int, suffix_length: int):
    """Makes what is cached so far the prefix of several samples.

    Args:
      num_suffix_samples: number of samples of each row of the cache.
      suffix_length: number of positions that are cached for each.

    Raises:
      UserError: an attention does not read shared prefixes.
    """
    self._transform_own_states(repeat_rows(num_suffix_samples))
    self._for_layers('lazy_broadcast_prefix', num_suffix_samples, suffix_length)

  def right_align_decode_state_with_prefix(
    self, max_prefix_size: int, right_align_fn: StateFn
  ):
    """Puts shared prefixes before the states of each sample, and aligns them.

    Args:
      max_prefix_size: number of last positions of the prefixes that are kept.
      right_align_fn: aligns states of these positions and their own.
    """
    self._for_layers(
      'right_align_decode_state_with_prefix', max_prefix_size, right_align_fn
    )

  def _for_layers(self, method: str, *args):
    for layer in self._layers_with_states():
      if not hasattr(layer, method):
        raise errors.UserError(
          f'{type(self).__name__}: {type(layer).__name__} has no {method}(),'
          ' which decoding calls'
        )
      getattr(layer, method)(*args)
