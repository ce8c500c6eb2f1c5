"""Inputs that read from other inputs, their children."""

import base64
import hashlib
import json
import types
from collections.abc import Mapping
from typing import Any

from pax_compat import base_input, errors
from pax_compat.config import Config
from pax_compat.nested_map import NestedMap


class ComposedInput(base_input.BaseInput):
  """Base of inputs whose batches contain a batch of each of some children.

  Subclasses call `_build` in their `__post_init__`. The state is JSON with the
  states of the children in it.
  """

  # The children by name, which is the key of their batches.
  _inputs = types.MappingProxyType({})

  def _build(self, configs: Mapping[str, Config]):
    """Builds the children; closes those that exist if one cannot be built."""
    self._inputs: dict[str, base_input.BaseInput] = {}
    try:
      for name, config in configs.items():
        self._inputs[name] = config.Instantiate(
          num_infeed_hosts=self.num_infeed_hosts,
          infeed_host_index=self.infeed_host_index,
          input_checkpointing_enabled=self.input_checkpointing_enabled,
        )
    except BaseException:
      self.close()
      raise

  @property
  def state_fits_any_hosts(self) -> bool:
    return all(data.state_fits_any_hosts for data in self._inputs.values())

  def children(self):
    return self._inputs.values()

  def reset(self):
    for data in self._inputs.values():
      data.reset()

  def resume_at(self, step: int):
    for data in self._inputs.values():
      data.resume_at(step)

  def after_restart(self) -> str:
    return '; '.join(
      f'{name}: {data.after_restart()}' for name, data in self._inputs.items()
    )

  def order_digest(self) -> bytes | None:
    """Returns a digest of the children's, of those that have one."""
    digests = [data.order_digest() for data in self._inputs.values()]
    known = [digest for digest in digests if digest is not None]
    if not known:
      return None
    return hashlib.blake2b(b''.join(known), digest_size=8).digest()

  def is_host_field(self, path, leaf):
    name, _, rest = path.partition('.')
    if name not in self._inputs:
      return super().is_host_field(path, leaf)
    return self._inputs[name].is_host_field(rest, leaf)

  def tokenizers(self) -> dict[str, str]:
    return {
      f'{child} {name}'.strip(): description
      for child, data in self._inputs.items()
      for name, description in data.tokenizers().items()
    }

  def _next_of(self, names) -> NestedMap:
    """Returns the next batches of some children, by name."""
    return NestedMap({n: self._inputs[n].get_next_padded() for n in names})

  def _own_state(self) -> dict[str, Any]:
    """Returns the state in addition to the children's, as JSON values."""
    return {}

  def _set_own_state(self, values: Mapping[str, Any]):
    """Moves to the position of `_own_state`."""
    del values

  def _get_state_internal(self) -> bytes:
    states = {}
    for name, data in self._inputs.items():
      try:
        states[name] = base64.b64encode(data.get_state()).decode()
      except NotImplementedError as e:
        raise NotImplementedError(
          f'its child {name!r}, a {type(data).__name__},'
        ) from e
    state = {**self._own_state(), 'inputs': states}
    return json.dumps(state, sort_keys=True).encode()

  def _set_state_internal(self, state: bytes):
    try:
      found = json.loads(state)
      states = {
        name: base64.b64decode(text, validate=True)
        for name, text in found['inputs'].items()
      }
      own = {name: found[name] for name in self._own_state()}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
      raise errors.UserError(
        f'the state of {self.name} cannot be read: {e!r}; expected what its'
        ' get_state() returned'
      ) from e
    if states.keys() != self._inputs.keys():
      raise errors.UserError(
        f'the state of {self.name} is of the inputs'
        f' {", ".join(sorted(states))}; it has'
        f' {", ".join(sorted(self._inputs))}'
      )
    for name, data in self._inputs.items():
      data.set_state(states[name])
    self._set_own_state(own)
