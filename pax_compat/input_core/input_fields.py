"""The fields that every input has, and which of them go together."""

import numbers
import re
from typing import Any

from pax_compat import errors
from pax_compat.config import Config

_NAME = re.compile(r'[a-zA-Z0-9.:_+-]+')


class _UnsetText(str):
  """A text that can be told from one that somebody has set."""


class _UnsetNumber(int):
  """A number that can be told from one that somebody has set."""


UNSET_NAME = _UnsetText('input')
UNSET_ONE = _UnsetNumber(1)


def is_unset(x: Any) -> bool:
  """Returns whether nobody has set a field."""
  return isinstance(x, (_UnsetText, _UnsetNumber))


def is_int(x: Any) -> bool:
  """Returns whether `x` is a whole number, and not a truth value."""
  return isinstance(x, numbers.Integral) and not isinstance(x, bool)


def give_name(fields: Any):
  """Gives an input, or a config of one, its default name, if it has none."""
  cls = fields.cls if isinstance(fields, Config) else type(fields)
  if hasattr(cls, 'default_name') and is_unset(fields.name):
    fields.name = cls.default_name(fields)


def eval_batches(fields: Any) -> int | None:
  """Returns how many batches an evaluation has; None for all."""
  count = fields.eval_loop_num_batches
  if is_unset(count):
    return None if fields.reset_for_eval else 1
  return None if count == -1 else count


def check(fields: Any, *, told: str, can_reset: bool):
  """Checks the fields of a `BaseInput`, or of a config of one.

  Args:
    fields: the input, or its config.
    told: what messages begin with.
    can_reset: whether its class has a method `reset`.

  Raises:
    UserError: they are none of what the class says of them.
  """
  for holds, wrong in (
    *_batches(fields),
    *_sizes(fields),
    (
      not fields.reset_for_eval or fields.is_training or can_reset,
      f'reset_for_eval of {fields.name} is set, and there is no method `reset`;'
      ' expected one that starts again at the first batch',
    ),
  ):
    if not holds:
      raise errors.UserError(f'{told}: {wrong}')


def _batches(fields: Any) -> list[tuple[bool, str]]:
  """Returns what must hold of the name and the batches, each with a message."""
  name, count = fields.name, eval_batches(fields)
  return [
    (
      bool(_NAME.fullmatch(name)),
      f'name is {name!r}; only letters, digits and the characters .:_+- may be'
      ' in it',
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
  """Returns what must hold of the sizes, each with a message."""
  name, size = fields.name, fields.batch_size
  hosts, host = fields.num_infeed_hosts, fields.infeed_host_index
  return [
    (
      size is None or (is_int(size) and size >= 1),
      f'batch_size of {name} is {size!r}; expected how many examples of one'
      ' host make a batch',
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
