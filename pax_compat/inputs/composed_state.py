"""What an input that is made of others says of itself, from what they say.

Its state is text, with theirs in it.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pax_compat import base_input, errors


def composed(inputs: Mapping[str, base_input.BaseInput], **own: Any) -> bytes:
  """Returns a state that has those of some inputs in it.

  It is the same on all hosts where theirs are.

  Args:
    inputs: the inputs by name.
    **own: what else the state has, as JSON values.

  Raises:
    NotImplementedError: one of them has no state; the text says which.
    UserError: one of them has, but cannot tell it now.
  """
  states = {}
  for name, data in inputs.items():
    try:
      states[name] = base64.b64encode(data.get_state()).decode()
    except NotImplementedError as e:
      told = f'its part {name!r}, a {type(data).__name__},'
      raise NotImplementedError(told) from e
  return json.dumps({**own, 'inputs': states}, sort_keys=True).encode()


def decomposed(
  state: bytes,
  inputs: Mapping[str, base_input.BaseInput],
  *,
  of: str,
  own: Sequence[str] = (),
) -> list[Any]:
  """Takes inputs to where they stood; returns the values of what else it has.

  Args:
    state: what `composed` returned.
    inputs: the inputs by name.
    of: whose state it should be, for the message.
    own: the names of what else it has.

  Raises:
    UserError: the state is not of these inputs. None of them was touched then,
      unless it is one of them that says so.
  """
  try:
    found = json.loads(state)
    states = {
      name: base64.b64decode(text, validate=True)
      for name, text in found['inputs'].items()
    }
    values = [found[name] for name in own]
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise errors.UserError(
      f'the state of {of} cannot be read: {e!r}; expected what its get_state()'
      ' returned'
    ) from e
  if states.keys() != inputs.keys():
    raise errors.UserError(
      f'the state of {of} is of the inputs {", ".join(sorted(states))}; it has'
      f' {", ".join(sorted(inputs))}'
    )
  for name, data in inputs.items():
    data.set_state(states[name])
  return values


def fit_any_hosts(inputs: Mapping[str, base_input.BaseInput]) -> bool:
  """Returns whether the states of all inputs are good for any hosts."""
  return all(data.state_fits_any_hosts for data in inputs.values())


def order_digest(inputs: Mapping[str, base_input.BaseInput]) -> bytes | None:
  """Returns 8 bytes that tell what those inputs have read that can tell."""
  digests = [data.order_digest() for data in inputs.values()]
  known = [digest for digest in digests if digest is not None]
  if not known:
    return None
  return hashlib.blake2b(b''.join(known), digest_size=8).digest()


def after_restart(inputs: Mapping[str, base_input.BaseInput]) -> str:
  """Returns what each input says of how it goes on after a restart."""
  return '; '.join(f'{k}: {data.after_restart()}' for k, data in inputs.items())
