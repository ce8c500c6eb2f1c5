"""The fields of every input, and the checks of their values."""

import numbers
import re
from typing import Any

from pax_compat import errors
from pax_compat.config import Config

_NAME = re.compile(r'[a-zA-Z0-9.:_+-]+')


class _UnsetText(str):
  """Default of a string field, distinct from an equal value of the user."""


class _UnsetNumber(int):
  """The default of a number field, as `_UnsetText`."""


UNSET_NAME = _UnsetText('input')
UNSET_ONE = _UnsetNumber(1)


def is_unset(x: Any) -> bool:
  """Returns whether a field still has its default."""
  return isinstance(x, (_UnsetText, _UnsetNumber))


def is_int(x: Any) -> bool:
  """Returns whether `x` is an int and not a bool."""
  return isinstance(x, numbers.Integral) and not isinstance(x, bool)


def give_name(fields: Any):
  """Sets the default name of an input, or of its config, if it has no name."""
  cls = fields.cls if isinstance(fields, Config) else type(fields)
  if hasattr(cls, 'default_name') and is_unset(fields.name):
    fields.name = cls.default_name(fields)


def eval_batches(fields: Any) -> int | None:
  """Returns the number of batches of an evaluation; None for all."""
  count = fields.eval_loop_num_batches
  if is_unset(count):
    return None if fields.reset_for_eval else 1
  return None if count == -1 else count


def check(fields: Any, *, label: str, can_reset: bool):
  """Checks the fields of a `BaseInput`, or of a config of one.

  Args:
    fields: the input, or its config.
    label: how messages start.
    can_reset: whether the class defines `reset`.

  Raises:
    UserError: a value is not allowed, or two values contradict each other.
  """
  for is_valid, message in (
    *_batches(fields),
    *_sizes(fields),
    (
      not fields.reset_for_eval or fields.is_training or can_reset,
      f'reset_for_eval of {fields.name} is set, but the class has no method'
      ' `reset`; expected one that restarts at the first batch',
    ),
  ):
    if not is_valid:
      raise errors.UserError(f'{label}: {message}')


def _batches(fields: Any) -> list[tuple[bool, str]]:
  """Returns conditions on the name and the batches, with their messages."""
  name, count = fields.name, eval_batches(fields)
  return [
    (
      bool(_NAME.fullmatch(name)),
      f'name is {name!r}; expected only letters, digits and the characters'
      ' .:_+-',
    ),
    (
      count is None or count >= 1,
      f'eval_loop_num_batches of {name} is {count}; expected at least 1, or'
      ' None or -1 for all batches',
    ),
    (
      count is not None or fields.reset_for_eval or fields.is_training,
      f'eval_loop_num_batches of {name} is None without reset_for_eval: the'
      ' second evaluation would find nothing; set reset_for_eval=True to read'
      ' all of the data each time, or a number to read the next batches each'
      ' time',
    ),
  ]


def _sizes(fields: Any) -> list[tuple[bool, str]]:
  """Returns conditions on the sizes, with their messages."""
  name, size = fields.name, fields.batch_size
  hosts, host = fields.num_infeed_hosts, fields.infeed_host_index
  return [
    (
      size is None or (is_int(size) and size >= 1),
      f'batch_size of {name} is {size!r}; expected the number of examples'
      ' in a batch of one host',
    ),
    (
      0 <= host < hosts,
      f'infeed_host_index of {name} is {host}; expected one of {hosts} hosts',
    ),
    (
      fields.batch_padding_size >= 0,
      f'batch_padding_size of {name} is {fields.batch_padding_size}; expected 0'
      ' or more rows',
    ),
  ]
