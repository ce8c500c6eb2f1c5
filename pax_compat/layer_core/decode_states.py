"""Decode states: what a layer keeps from one decoding step to the next."""

import dataclasses
from typing import Any

import jax

from pax_compat import errors

DECODE_CACHE = 'decoder_cache'  # The collection of these variables.


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
      UserError: there is no such state.
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
