"""Makes a task's Params comparable: without randomness, in 32 bits.

The two frameworks draw different random numbers, and round differently in 16
bits. Both sides are built from the Params returned here.
"""

import collections
from typing import Any

from adaptors.params import params_trees, shrinking

# Substrings of the names of dropout and keep probabilities.
_DROPPED = ('dropout', 'droppath', 'dropconnect', 'zo_prob')
_DROPPED_SUFFIXES = ('_prob', '_rate')
_KEPT_SUFFIXES = ('keep_prob', 'survival_prob')
# Of the variational noise of layers.
_NOISE_SWITCHES = ('global_vn', 'per_step_vn')
_EXPERTS = 'second_expert_policy'


def equalize(params: Any) -> tuple[Any, list[str]]:
  """Returns Params without randomness that compute in 32 bits, and notes.

  Args:
    params: of a task; not modified.

  Returns:
    A modified copy, and a description of each change.
  """
  wide = shrinking.in_float32(params)
  notes = []
  if wide.ToText() != params.ToText():
    notes.append('it computes in 32 bits')
  off = collections.Counter()
  # Masks of the input are part of the batches, which both sides share.
  for node in params_trees.all_params(wide, without=('input',)):
    for name, value in node.IterParams():
      quiet = _without_randomness(name, value)
      if quiet is not value:
        node.Set(**{name: quiet})
        off[f'{name} {value}'] += 1
  notes += [f'off: {what} ({n} place(s))' for what, n in sorted(off.items())]
  places = _remove_noise(wide)
  if places:
    notes.append(f'off: variational noise ({places} place(s))')
  return wide, notes


def _without_randomness(name: str, value: Any) -> Any:
  """Returns the value of a field that turns its randomness off."""
  if name == _EXPERTS and value not in (None, 'all'):
    return 'all'
  if name.endswith(_KEPT_SUFFIXES):
    nothing_random = 1.0
  elif any(p in name for p in _DROPPED) and name.endswith(_DROPPED_SUFFIXES):
    nothing_random = 0.0
  else:
    return value
  if _is_number(value):
    return value if value == nothing_random else nothing_random
  is_list = isinstance(value, (list, tuple)) and all(map(_is_number, value))
  if is_list and any(v != nothing_random for v in value):
    return type(value)([nothing_random] * len(value))
  return value


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _remove_noise(params: Any) -> int:
  """Turns variational noise off; returns the number of places where it was."""
  places = 0
  if params_trees.get(params.train, 'vn_std'):
    params.train.vn_std = 0.0
    places += 1
  for node in params_trees.all_params(params, without=('input',)):
    for switch in _NOISE_SWITCHES:
      if params_trees.get(node, switch):
        node.Set(**{switch: False})
        places += 1
  return places
