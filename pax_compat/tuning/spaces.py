"""Search spaces: what differs between the trials of a study.

>>> space = parsed(['task.train.learner.optimizer.learning_rate=log:1e-4..1e-2',
...                 'attr:NUM_LAYERS=2,4,8'])
>>> space.names
('task.train.learner.optimizer.learning_rate', 'NUM_LAYERS')
>>> for flag in space.flags({space.names[0]: 0.003, 'NUM_LAYERS': '4'}):
...   print(flag)
--set=task.train.learner.optimizer.learning_rate=0.003
--attr=NUM_LAYERS=4
>>> parsed(['attr:NUM_LAYERS=2,4', 'attr:DIMS=8..10']).size
6

The values of a trial are a dict from the name of a parameter to a number, or to
the label of a choice.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pax_compat import errors

Values = Mapping[str, Any]
ATTR = 'attr:'
_EXPECTED = (
  'expected values such as 2,4,8, or a range such as 1..8, 0.1..0.5 or'
  ' log:1e-4..1e-2'
)
_BRACKETS = {'(': 1, '[': 1, '{': 1, ')': -1, ']': -1, '}': -1}


@dataclasses.dataclass(frozen=True)
class Choice:
  """One value of a parameter.

  Attributes:
    label: the value in tables and files.
    flags: of the run that has it.
  """

  label: str
  flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Choices:
  """A parameter that has one of several values.

  Attributes:
    name: unique within the space.
    choices: with different labels.
  """

  name: str
  choices: tuple[Choice, ...]

  @property
  def size(self) -> int:
    return len(self.choices)

  @property
  def labels(self) -> list[str]:
    return [choice.label for choice in self.choices]

  def values(self) -> list[str]:
    """Returns all values."""
    return self.labels

  def flags(self, value: str) -> list[str]:
    """Returns the flags of the run that has a value."""
    return list(self.choices[self.labels.index(value)].flags)

  def extremes(self) -> list[str]:
    """Returns values whose check checks the parameter."""
    return self.labels

  def __str__(self) -> str:
    return ','.join(self.labels)


@dataclasses.dataclass(frozen=True)
class Range:
  """A parameter that has a number within limits.

  Attributes:
    name: unique within the space.
    low: the smallest value.
    high: the largest value.
    flag: the flag that sets it, up to its value: `--set=path=`.
    log: whether the logarithm of the value is uniform.
    whole: whether values are integers.
  """

  name: str
  low: float
  high: float
  flag: str
  log: bool = False
  whole: bool = False

  @property
  def size(self) -> int | None:
    return int(self.high - self.low) + 1 if self.whole else None

  def values(self) -> list[int]:
    """Returns all values of a range of integers."""
    return list(range(int(self.low), int(self.high) + 1))

  def flags(self, value: float) -> list[str]:
    """Returns the flags of the run that has a value."""
    return [f'{self.flag}{value!r}']

  def extremes(self) -> list[float]:
    """Returns values whose check checks the parameter."""
    return [self.low, self.high]

  def __str__(self) -> str:
    return f'{"log:" if self.log else ""}{self.low!r}..{self.high!r}'


Parameter = Choices | Range


@dataclasses.dataclass(frozen=True)
class Space:
  """The parameters of a study, with unique names."""

  parameters: tuple[Parameter, ...]

  @property
  def names(self) -> tuple[str, ...]:
    return tuple(one.name for one in self.parameters)

  @property
  def size(self) -> int | None:
    """The number of combinations; None if it is not finite."""
    sizes = [one.size for one in self.parameters]
    return None if None in sizes else math.prod(sizes)

  def combinations(self) -> Iterator[Values]:
    """Yields all combinations of a finite space, in the order of a product."""
    for values in itertools.product(*(one.values() for one in self.parameters)):
      yield dict(zip(self.names, values, strict=True))

  def flags(self, values: Values) -> list[str]:
    """Returns the flags of the run that has the values."""
    return [
      flag for one in self.parameters for flag in one.flags(values[one.name])
    ]

  def described(self) -> dict[str, str]:
    """Returns the text of each parameter, as `--tune` has it."""
    return {one.name: str(one) for one in self.parameters}


def parsed(specs: Sequence[str]) -> Space:
  """Returns the space of the values of `--tune`.

  Args:
    specs: strings `path=values` or `attr:NAME=values`.

  Raises:
    UserError: one of them is invalid, or two are of the same setting.
  """
  found: dict[str, Parameter] = {}
  for spec in specs:
    parameter = _parameter(spec)
    if parameter.name in found:
      raise errors.UserError(
        f'--tune={spec}: {parameter.name} is given twice; expected one --tune'
        ' for each setting'
      )
    found[parameter.name] = parameter
  return Space(tuple(found.values()))


def texts(text: str) -> list[str]:
  """Splits a list at its commas, but not at those within brackets.

  >>> texts('[1,2],[3,4]')
  ['[1,2]', '[3,4]']
  """
  found, depth = [''], 0
  for letter in text:
    depth += _BRACKETS.get(letter, 0)
    if letter == ',' and not depth:
      found.append('')
    else:
      found[-1] += letter
  return [one.strip() for one in found]


def _parameter(spec: str) -> Parameter:
  target, equals, text = (part.strip() for part in spec.partition('='))
  if not equals or not target or not text:
    raise errors.UserError(
      f'--tune={spec}: expected path=values, as in'
      ' task.train.learner.optimizer.learning_rate=log:1e-4..1e-2, or'
      ' attr:NAME=values'
    )
  is_attribute = target.startswith(ATTR)
  name = target.removeprefix(ATTR)
  flag = f'--{"attr" if is_attribute else "set"}={name}='
  if '..' in text:
    return _range(spec, name, flag, text)
  if text.startswith('log:'):
    raise errors.UserError(f'--tune={spec}: log: needs a range; {_EXPECTED}')
  labels = texts(text)
  if '' in labels:
    raise errors.UserError(f'--tune={spec} has an empty value; {_EXPECTED}')
  twice = next((one for one in labels if labels.count(one) > 1), None)
  if twice is not None:
    raise errors.UserError(f'--tune={spec} has the value {twice} twice')
  return Choices(name, tuple(Choice(one, (flag + one,)) for one in labels))


def _range(spec: str, name: str, flag: str, text: str) -> Range:
  log = text.startswith('log:')
  ends = text.removeprefix('log:').split('..')
  whole = all(re.fullmatch(r'\s*[+-]?\d+\s*', end) for end in ends)
  try:
    low, high = (int(end) if whole else float(end) for end in ends)
  except ValueError:
    raise errors.UserError(
      f'--tune={spec}: {text} is not a range of numbers; {_EXPECTED}'
    ) from None
  if not (math.isfinite(low) and math.isfinite(high) and low < high):
    raise errors.UserError(
      f'--tune={spec}: expected a range from a smaller to a larger number'
    )
  if log and low <= 0:
    raise errors.UserError(
      f'--tune={spec}: a logarithmic range begins above 0, not at {low}'
    )
  return Range(name, low, high, flag, log, whole)
