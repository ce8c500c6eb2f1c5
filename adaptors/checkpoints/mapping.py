"""Which tensors of a checkpoint each array of a run's state is made of.

A weight is made of Lingvo's variables, by the task's `VariableMap`, and so is a
variable that is not trained, such as a moving mean. What optimizers keep beside
them `slots` knows, and counts `counts`.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from adaptors.checkpoints.counts import SAVE_COUNTER, Counts, Number
from adaptors.checkpoints.facts import Facts
from adaptors.checkpoints.slots import OptimizerFacts
from adaptors.translate.variables import Identity, Variable
from pax_compat import base_layer, checkpoints, errors

_AVERAGE = 'ExponentialMovingAverage'
_VARIABLES = 'mdl_vars'
# Where a state has the moving averages.
_AVERAGES = 'average.ema'
# Where a state and Lingvo's task have what a learner knows of norms.
_NORMS, _TRACKER = 'norms', 'learners[0].grad_norm_tracker'


@dataclasses.dataclass(frozen=True)
class Leaf:
  """An array of the state that a checkpoint has.

  Attributes:
    path: in the state, with dots.
    tensors: names of the tensors that it is made of.
    transform: how, as of a `Variable`.
    first: what a slot's elements start with; 0 for a variable.
  """

  path: str
  tensors: tuple[str, ...]
  transform: Any
  first: float = 0.0


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a checkpoint and a state correspond.

  Attributes:
    leaves: the arrays that the checkpoint has.
    counts: the state's counts.
    numbers: names of the tensors that say the counts, where they are there.
    copies: tensors that are there and hold what other ones do, by their names.
    missing: tensors that are wanted and not there, by the state's path.
    unused: tensors that are there and not wanted.
  """

  leaves: tuple[Leaf, ...]
  counts: Counts
  numbers: Mapping[Number, str]
  copies: Mapping[str, str]
  missing: Mapping[str, tuple[str, ...]]
  unused: tuple[str, ...]


def plan(state: Any, facts: Facts, tensors: Collection[str]) -> Plan:
  """Says which tensors make a state.

  Args:
    state: arrays or their shapes, as of `TaskProgram.abstract_state`.
    facts: of the task.
    tensors: names of those that a checkpoint has.

  Raises:
    UserError: the optimizer's state cannot be told from its tensors.
  """
  names = _Names(tensors)
  leaves, missing = [], {}
  for leaf in leaves_of(state, facts):
    absent = tuple(t for t in leaf.tensors if names.found(t) is None)
    if absent:
      missing[leaf.path] = absent
      continue
    found = tuple(map(names.found, leaf.tensors))
    leaves.append(dataclasses.replace(leaf, tensors=found))
  counts = counts_of(state, facts)
  numbers = found_numbers(counts, tensors)
  for number, paths in counts.numbers().items():
    for path in paths if number not in numbers else ():
      missing[path] = (*missing.get(path, ()), number.name)
  copies = {
    found: names.found(of)
    for name, of in copies_of(state, facts).items()
    if (found := names.found(name)) is not None
  }
  used = {t for leaf in leaves for t in leaf.tensors} | set(numbers.values())
  unused = set(tensors) - used - set(copies) - {SAVE_COUNTER}
  return Plan(
    leaves=tuple(leaves),
    counts=counts,
    numbers=numbers,
    copies=copies,
    missing=missing,
    unused=tuple(sorted(unused)),
  )


def found_numbers(
  counts: Counts, tensors: Collection[str]
) -> dict[Number, str]:
  """Returns the tensors that say counts, of those that there are."""
  names = _Names(tensors)
  found = {number: names.found_number(number) for number in counts.numbers()}
  return {number: name for number, name in found.items() if name is not None}


def counts_of(state: Any, facts: Facts) -> Counts:
  """Returns the counts of a state."""
  return Counts(checkpoints.state_paths(state), facts)


def leaves_of(state: Any, facts: Facts) -> Iterator[Leaf]:
  """Yields the arrays of a state that Lingvo's checkpoint of it has.

  Raises:
    UserError: the state has something that Lingvo's has not.
  """
  arrays = checkpoints.state_paths(state)
  counts = set(counts_of(state, facts).paths)
  finder = _Finder(facts, arrays)
  for path in arrays:
    leaf = None if path in counts else finder.leaf(path)
    if leaf is not None:
      yield leaf


def copies_of(state: Any, facts: Facts) -> dict[str, str]:
  """Returns tensors of a checkpoint that hold what others do, by their names.

  These are moving averages of weights that are not trained, of which Lingvo
  keeps them too.
  """
  paths = checkpoints.state_paths(state)
  if not any(f'.{_AVERAGES}.' in path for path in paths):
    return {}
  finder = _Finder(facts, paths)
  averaged = {
    t
    for path in paths
    if f'.{_AVERAGES}.' in path
    for t in finder.leaf(path).tensors
  }
  own = (
    facts.names[theta]
    for variable in facts.variables
    if variable.is_trainable
    for theta in variable.theta
  )
  return {
    f'{n}/{_AVERAGE}': n for n in own if f'{n}/{_AVERAGE}' not in averaged
  }


class _Names:
  """Names of tensors, those that eager mode writes included.

  It puts the names of a task and a learner before those of an optimizer's.
  """

  def __init__(self, tensors: Collection[str]):
    self._tensors = set(tensors)
    # By each end of the names that begins with a part of them.
    self._by_end: dict[str, list[str]] = {}
    for tensor in tensors:
      parts = tensor.split('/')
      for start in range(1, len(parts)):
        self._by_end.setdefault('/'.join(parts[start:]), []).append(tensor)

  def found(self, name: str) -> str | None:
    """Returns the tensor that is meant, or None."""
    if name in self._tensors:
      return name
    ending = self._by_end.get(name, ())
    return ending[0] if len(ending) == 1 else None

  def found_number(self, number: Number) -> str | None:
    """Returns the tensor of a number, or None."""
    if number.name in self._tensors:
      return number.name
    found = (self.found(end) for end in number.ends)
    return next((name for name in found if name is not None), None)


class _Finder:
  """Finds what the arrays of a state are."""

  def __init__(self, facts: Facts, arrays: Mapping[str, Any]):
    self._facts = facts
    self._arrays = arrays
    self._variables = {
      f'{_VARIABLES}.{_collection(v)}.{_dotted(v.jax)}': v
      for v in facts.variables
    }
    # By what their paths begin with, by the rest of their paths.
    self._weights = {
      optimizer.weights: {
        _dotted(v.jax.removeprefix(optimizer.weights)): v
        for v in facts.variables
        if v.is_trainable and v.jax.startswith(optimizer.weights)
      }
      for optimizer in facts.optimizers
    }

  def leaf(self, path: str) -> Leaf | None:
    """Returns the leaf of a path, None for what an optimizer does not use.

    Raises:
      UserError: a checkpoint has nothing like it.
    """
    variable = self._variables.get(path)
    if variable is not None:
      return Leaf(path, self._own(variable), variable.transform)
    for optimizer in self._facts.optimizers:
      if path.startswith(f'{optimizer.learner_path}.{_AVERAGES}.'):
        return self._average(path, optimizer)
      if path.startswith(f'{optimizer.learner_path}.{_NORMS}.'):
        field = path.rpartition('.')[2]
        name = self._facts.names[f'{optimizer.theta}{_TRACKER}.{field}']
        return Leaf(path, (name,), Identity())
      if path.startswith(f'{optimizer.path}.'):
        return self._slot(path, optimizer)
    raise _unknown(path)

  def _own(self, variable: Variable) -> tuple[str, ...]:
    return tuple(self._facts.names[theta] for theta in variable.theta)

  def _average(self, path: str, optimizer: OptimizerFacts) -> Leaf:
    variable, _ = self._weight(path, optimizer)
    tensors = tuple(f'{name}/{_AVERAGE}' for name in self._own(variable))
    return Leaf(path, tensors, variable.transform)

  def _slot(self, path: str, optimizer: OptimizerFacts) -> Leaf | None:
    variable, before = self._weight(path, optimizer)
    before, _, slot = before.rpartition('.')
    weight = path.removeprefix(f'{before}.{slot}.')
    sizes = {'': np.size(self._arrays[self._path_of(variable)])}
    whole = f'{before}.v.{weight}'
    if whole in self._arrays:
      sizes['v'] = np.size(self._arrays[whole])
    found = optimizer.tensors(slot, variable, self._own(variable), sizes)
    if found is None:
      return None
    return Leaf(path, *found, first=optimizer.first(slot))

  def _weight(
    self, path: str, optimizer: OptimizerFacts
  ) -> tuple[Variable, str]:
    """Returns the weight whose path a path ends with, and what is before it."""
    weights = self._weights[optimizer.weights]
    parts = path.split('.')
    for start in range(1, len(parts)):
      found = weights.get('.'.join(parts[start:]))
      if found is not None:
        return found, '.'.join(parts[:start])
    raise _unknown(path)

  def _path_of(self, variable: Variable) -> str:
    return f'{_VARIABLES}.{_collection(variable)}.{_dotted(variable.jax)}'


def _collection(variable: Variable) -> str:
  if variable.is_trainable:
    return base_layer.PARAMS
  return base_layer.NON_TRAINABLE


def _dotted(path: str) -> str:
  return path.replace('/', '.')


def _unknown(path: str) -> errors.UserError:
  return errors.UserError(
    f"the state's {path} has no counterpart in a checkpoint of Lingvo's"
  )
