"""What a warm start needs of a checkpoint, whoever wrote it.

Names of arrays are paths joined by slashes. Those of variables begin with their
collection: `params/lm/softmax/w`.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Request:
  """An array to read.

  Attributes:
    name: its name in the checkpoint; see `Source.arrays`.
    like: the shape, dtype and sharding it gets.
  """

  name: str
  like: jax.ShapeDtypeStruct


class Source(abc.ABC):
  """One checkpoint, opened for reading. Nothing in it is ever executed.

  Attributes:
    path: of the checkpoint, for messages.
    step: the number of steps it was trained for; None if it does not say.
    arrays: shape of each array, by its name.
    variables: names in `arrays` of variables, by name.
    averages: names in `arrays` of moving averages, by the variable's name.
    opt_states: names in `arrays` of the optimizer's state.
    slots: names in `arrays` of the optimizer's arrays that belong to a weight,
      by slot, such as `mu`, and name of the weight.
  """

  path: str
  step: int | None
  arrays: Mapping[str, tuple[int, ...]]
  variables: Mapping[str, str]
  averages: Mapping[str, str]
  opt_states: tuple[str, ...] = ()
  slots: Mapping[tuple[str, str], str] = {}

  def array_of(self, name: str) -> str | None:
    """Returns the name in `arrays` of a source that a rule names, or None."""
    if name.startswith('ema/'):
      return self.averages.get(name.removeprefix('ema/'))
    return self.variables.get(name)

  def opt_state_of(self, name: str) -> str | None:
    """Returns the name in `arrays` of `opt_states/...` of a rule, or None."""
    for array in (name, name.replace('opt_states/', 'opt_state/', 1)):
      if array in self.opt_states:
        return array
    return None

  def known(self) -> list[str]:
    """Returns the names that rules may use."""
    return [*self.variables, *(f'ema/{name}' for name in self.averages)]

  @abc.abstractmethod
  def read(self, requests: Mapping[str, Request]) -> dict[str, jax.Array]:
    """Returns arrays, each by the key of its request.

    Each process reads its own shards only. Shapes have been compared before.
    """


def sharded(values: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
  """Returns values as an array with the dtype and sharding of `like`."""
  return jax.make_array_from_callback(
    like.shape,
    like.sharding,
    lambda index: np.asarray(values[index]).astype(like.dtype),
  )


def check_fits(
  source: Source, requests: Mapping[str, Request], instead: str
) -> None:
  """Raises a UserError over arrays of another shape than they get.

  Args:
    source: the checkpoint.
    requests: by the name of their target.
    instead: the end of the message: what to do.
  """
  lines = [
    f'{target} {list(one.like.shape)} from {one.name}'
    f' {list(source.arrays[one.name])}'
    for target, one in requests.items()
    if tuple(source.arrays[one.name]) != tuple(one.like.shape)
  ]
  if lines:
    raise errors.UserError(
      f'{source.path} has arrays of other shapes:\n  '
      + '\n  '.join(errors.listed(lines, _MAX_LISTED))
      + f'\n{instead}'
    )


_MAX_LISTED = 8


def longest_suffix(path: str, names: Mapping[str, Any]) -> str | None:
  """Returns the longest of some names that a path ends with, or None.

  >>> longest_suffix('optimizer/0/mu/lm/w', {'w': 1, 'lm/w': 2})
  'lm/w'
  """
  parts = path.split('/')
  for start in range(len(parts)):
    name = '/'.join(parts[start:])
    if name in names:
      return name
  return None
