"""Maps the arrays of a training state to the tensors of a checkpoint.

The task's `VariableMap` maps weights and non-trainable variables, such as a
moving mean; `slots` maps optimizer state, and `counts` maps step counts.

For example, with the weight of a projection trained with Adam:

    >>> from adaptors.checkpoints import mapping
    >>> from adaptors.checkpoints.metadata import CheckpointMetadata
    >>> from adaptors.checkpoints.slots import OptimizerMetadata
    >>> from adaptors.translate.variables import Variable, VariableMap
    >>> from pax_compat import optimizers
    >>> adam = OptimizerMetadata(
    ...   learner_path='opt_state', key='', weights='', theta='',
    ...   config=optimizers.Adam.config(), name='Adam', scope='', task='mt',
    ...   learner='loss')
    >>> metadata = CheckpointMetadata(
    ...   variables=VariableMap([Variable(('proj.w',), 'proj/w')]),
    ...   names={'proj.w': 'mt/proj/w/var'}, optimizers=(adam,))
    >>> moments = {'proj': {'w': np.zeros([2, 3])}}
    >>> state = {
    ...   'step': 0, 'mdl_vars': {'params': {'proj': {'w': np.ones([2, 3])}}},
    ...   'opt_state': {'optimizer': {
    ...     'count': 0, 'mu': moments, 'nu': moments}}}
    >>> for leaf in mapping.leaves_of(state, metadata):
    ...   print(leaf.path, *leaf.tensors)
    mdl_vars.params.proj.w mt/proj/w/var
    opt_state.optimizer.mu.proj.w mt/proj/w/var/Adam
    opt_state.optimizer.nu.proj.w mt/proj/w/var/Adam_1
    >>> tensors = ['mt/proj/w/var', 'mt/proj/w/var/Adam', 'mt/old/w/var']
    >>> plan = mapping.plan(state, metadata, tensors)
    >>> plan.missing['opt_state.optimizer.nu.proj.w']
    ('mt/proj/w/var/Adam_1',)
    >>> plan.unused
    ('mt/old/w/var',)
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from adaptors.checkpoints import constants
from adaptors.checkpoints.constants import SUM_OF_WEIGHTS, Constant
from adaptors.checkpoints.counts import SAVE_COUNTER, Counts, Number
from adaptors.checkpoints.metadata import CheckpointMetadata
from adaptors.checkpoints.slots import OptimizerMetadata
from adaptors.translate.variables import Identity, OfDtype, Variable
from pax_compat import base_layer, checkpoints, errors

_AVERAGE = 'ExponentialMovingAverage'
_VARIABLES = 'mdl_vars'
# Path of the moving averages in a state.
_AVERAGES = 'average.ema'
# Path of those of non-trainable variables.
_MOVING = 'average.variables'
# Paths of a learner's gradient norm statistics, in a state and in Lingvo.
_NORMS, _TRACKER = 'norms', 'learners[0].grad_norm_tracker'
# Likewise of the states of schedules that depend on evaluations.
_SCHEDULES, _SCHEDULE = 'schedules', 'learners[0].lr_schedule'


@dataclasses.dataclass(frozen=True)
class Leaf:
  """An array of the state that is in a checkpoint.

  Attributes:
    path: in the state, with dots.
    tensors: names of the tensors that it is made from.
    transform: of `Variable`: converts the tensors to the array and back.
    initial_value: of a slot's elements; 0 for a variable.
    weights: of a slot: the names of the variables that it belongs to.
  """

  path: str
  tensors: tuple[str, ...]
  transform: Any
  initial_value: float = 0.0
  weights: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a checkpoint and a state correspond.

  Attributes:
    leaves: the arrays that are in the checkpoint.
    counts: the state's counts.
    numbers: names of the checkpoint's tensors that determine the counts.
    copies: tensors that duplicate other ones, as a map of names.
    constants: tensors of the checkpoint without a counterpart in the state.
    missing: tensors that the checkpoint lacks, by path in the state.
    unused: tensors that the state does not need.
  """

  leaves: tuple[Leaf, ...]
  counts: Counts
  numbers: Mapping[Number, str]
  copies: Mapping[str, str]
  constants: tuple[Constant, ...]
  missing: Mapping[str, tuple[str, ...]]
  unused: tuple[str, ...]


def plan(
  state: Any, metadata: CheckpointMetadata, tensors: Collection[str]
) -> Plan:
  """Returns which tensors of a checkpoint a state is made from.

  Args:
    state: arrays or their shapes, such as `TaskProgram.abstract_state`.
    metadata: of the task.
    tensors: names of the checkpoint's tensors.

  Raises:
    UserError: an array has no counterpart in Lingvo's checkpoints.
  """
  names = _Names(tensors)
  metadata = located(state, metadata, tensors)
  leaves, missing = [], {}
  for leaf in leaves_of(state, metadata):
    absent = tuple(t for t in leaf.tensors if names.found(t) is None)
    if absent:
      missing[leaf.path] = absent
      continue
    found = tuple(map(names.found, leaf.tensors))
    leaves.append(dataclasses.replace(leaf, tensors=found))
  counts = counts_of(state, metadata)
  numbers = found_numbers(counts, tensors)
  for number, paths in counts.numbers().items():
    for path in paths if number not in numbers else ():
      missing[path] = (*missing.get(path, ()), number.name)
  copies = {
    found: names.found(of)
    for name, of in copies_of(state, metadata).items()
    if (found := names.found(name)) is not None
  }
  used = {t for leaf in leaves for t in leaf.tensors} | set(numbers.values())
  fixed = tuple(
    dataclasses.replace(constant, name=found)
    for constant in constants_of(state, metadata)
    if (found := names.found(constant.name)) is not None
  )
  used |= {constant.name for constant in fixed}
  unused = set(tensors) - used - set(copies) - {SAVE_COUNTER}
  return Plan(
    leaves=tuple(leaves),
    counts=counts,
    numbers=numbers,
    copies=copies,
    constants=fixed,
    missing=missing,
    unused=tuple(sorted(unused)),
  )


def found_numbers(
  counts: Counts, tensors: Collection[str]
) -> dict[Number, str]:
  """Returns which of `tensors` determines each number of the counts."""
  names = _Names(tensors)
  found = {number: names.found_number(number) for number in counts.numbers()}
  return {number: name for number, name in found.items() if name is not None}


def counts_of(state: Any, metadata: CheckpointMetadata) -> Counts:
  """Returns the counts of a state."""
  return Counts(checkpoints.state_paths(state), metadata)


def leaves_of(state: Any, metadata: CheckpointMetadata) -> Iterator[Leaf]:
  """Yields the arrays of a state that a Lingvo checkpoint of it contains.

  Raises:
    UserError: an array has no counterpart in Lingvo's checkpoints, or tasks
      share a variable that several of their optimizers have slots of.
  """
  arrays = checkpoints.state_paths(state)
  counts = set(counts_of(state, metadata).paths)
  finder = _Finder(metadata, arrays)
  slots: set[str] = set()
  for path in arrays:
    leaf = None if path in counts else finder.leaf(path)
    if leaf is None:
      continue
    if leaf.weights and not slots.isdisjoint(leaf.tensors):
      raise errors.UserError(
        f'{", ".join(leaf.weights)}: several tasks share it, and have optimizer'
        ' state of it; Lingvo cannot build a model whose tasks do; expected'
        ' only one of them to train it, or optimizers without state, such as'
        ' SGD'
      )
    slots.update(leaf.tensors if leaf.weights else ())
    yield leaf


def unique_leaves_of(
  state: Any, metadata: CheckpointMetadata
) -> Iterator[Leaf]:
  """Yields the leaves of a state, one for each tensor.

  Tasks may share variables; each has a copy here, with the same values.

  Raises:
    UserError: as of `leaves_of`.
  """
  seen = set()
  for leaf in leaves_of(state, metadata):
    if not seen.issuperset(leaf.tensors):
      seen.update(leaf.tensors)
      yield leaf


def copies_of(state: Any, metadata: CheckpointMetadata) -> dict[str, str]:
  """Returns tensors of a checkpoint that duplicate others, as a map of names.

  Lingvo also writes moving averages of weights that are not trained; these
  equal the weights.
  """
  paths = checkpoints.state_paths(state)
  if not any(f'.{_AVERAGES}.' in path for path in paths):
    return {}
  finder = _Finder(metadata, paths)
  averaged = {
    t
    for path in paths
    if f'.{_AVERAGES}.' in path
    for t in finder.leaf(path).tensors
  }
  own = (
    metadata.names[theta]
    for variable in metadata.variables
    if variable.is_trainable
    for theta in variable.theta
  )
  return {
    f'{n}/{_AVERAGE}': n for n in own if f'{n}/{_AVERAGE}' not in averaged
  }


def constants_of(state: Any, metadata: CheckpointMetadata) -> list[Constant]:
  """Returns the variables of Lingvo without a counterpart in a state."""
  leaves = list(leaves_of(state, metadata))
  return [
    constant
    for one in metadata.optimizers
    for constant in constants.of_optimizer(
      one, metadata.names, _trained(leaves, one)
    )
  ]


def _trained(leaves: Iterable[Leaf], one: OptimizerMetadata) -> list[str]:
  """Returns the names of the weights with slots of an optimizer."""
  prefix = f'{one.path}.'
  found = {
    name: None
    for leaf in leaves
    if leaf.path.startswith(prefix)
    for name in leaf.weights
  }
  return list(found)


def located(
  state: Any, metadata: CheckpointMetadata, tensors: Collection[str]
) -> CheckpointMetadata:
  """Returns metadata with the scopes that Keras' slots have in a checkpoint.

  Args:
    state: arrays or their shapes.
    metadata: of the task.
    tensors: names of the checkpoint's tensors; if it has no slots of an
      optimizer, its scope is not changed.
  """
  if not any(one.keras_scope for one in metadata.optimizers):
    return metadata
  leaves = list(leaves_of(state, metadata))
  found = []
  for one in metadata.optimizers:
    slots = (
      name.removeprefix(one.keras_scope)
      for leaf in leaves
      if one.keras_scope and leaf.weights and one.owns(leaf.path)
      for name in leaf.tensors
      if name.startswith(one.keras_scope)
    )
    suffix = f'/{next(slots, "")}'
    scopes = {t.removesuffix(suffix[1:]) for t in tensors if t.endswith(suffix)}
    if len(scopes) == 1:
      one = dataclasses.replace(one, keras_scope=scopes.pop())
    found.append(one)
  return dataclasses.replace(metadata, optimizers=tuple(found))


class _Names:
  """Looks up tensor names of graph mode in a checkpoint of either mode.

  Eager mode prefixes the names of optimizer slots with task and learner.
  """

  def __init__(self, tensors: Collection[str]):
    self._tensors = set(tensors)
    # Names by each of their suffixes that starts after a slash.
    self._by_suffix: dict[str, list[str]] = {}
    for tensor in tensors:
      components = tensor.split('/')
      for start in range(1, len(components)):
        suffix = '/'.join(components[start:])
        self._by_suffix.setdefault(suffix, []).append(tensor)

  def found(self, name: str) -> str | None:
    """Returns the tensor of a name, or None."""
    if name in self._tensors:
      return name
    matches = self._by_suffix.get(name, ())
    return matches[0] if len(matches) == 1 else None

  def found_number(self, number: Number) -> str | None:
    """Returns the tensor of a number, or None."""
    if number.name in self._tensors:
      return number.name
    found = (self.found(suffix) for suffix in number.suffixes)
    return next((name for name in found if name is not None), None)


class _Finder:
  """Finds the tensors of a state's arrays."""

  def __init__(self, metadata: CheckpointMetadata, arrays: Mapping[str, Any]):
    self._metadata = metadata
    self._arrays = arrays
    self._variables = {
      f'{_VARIABLES}.{_collection(v)}.{_dotted(v.jax)}': v
      for v in metadata.variables
    }
    # By the prefix of their paths, then by the rest of them.
    self._weights = {
      optimizer.weights: {
        _dotted(v.jax.removeprefix(optimizer.weights)): v
        for v in metadata.variables
        if v.is_trainable and v.jax.startswith(optimizer.weights)
      }
      for optimizer in metadata.optimizers
    }

  def leaf(self, path: str) -> Leaf | None:
    """Returns the leaf at a path; None for a slot that the optimizer ignores.

    Raises:
      UserError: it has no counterpart in Lingvo's checkpoints.
    """
    variable = self._variables.get(path)
    if variable is not None:
      return Leaf(path, self._own(variable), variable.transform)
    for optimizer in self._metadata.optimizers:
      if path.startswith(f'{optimizer.learner_path}.{_AVERAGES}.'):
        return self._average(path, optimizer)
      moving = f'{optimizer.learner_path}.{_MOVING}.'
      if path.startswith(moving):
        kind, _, own = path.removeprefix(moving).partition('.')
        below = _dotted(optimizer.weights)
        variable = self._variables[f'{_VARIABLES}.{kind}.{below}{own}']
        tensors = tuple(f'{n}/{_AVERAGE}' for n in self._own(variable))
        return Leaf(path, tensors, variable.transform)
      if path.startswith(f'{optimizer.learner_path}.{_NORMS}.'):
        field = path.rpartition('.')[2]
        name = self._metadata.names[f'{optimizer.theta}{_TRACKER}.{field}']
        return Leaf(path, (name,), Identity())
      if path.startswith(f'{optimizer.learner_path}.{_SCHEDULES}.'):
        return self._schedule(path, optimizer)
      if optimizer.owns(path):
        name = optimizer.other(path)
        if optimizer.is_sum_of_weights(path):
          name = self._metadata.names[optimizer.theta_of(SUM_OF_WEIGHTS)]
        if name is not None:
          return Leaf(path, (name,), Identity())
        return self._slot(path, optimizer)
    raise _unknown(path)

  def _own(self, variable: Variable) -> tuple[str, ...]:
    return tuple(self._metadata.names[theta] for theta in variable.theta)

  def _average(self, path: str, optimizer: OptimizerMetadata) -> Leaf:
    variable, _ = self._weight(path, optimizer)
    tensors = tuple(f'{name}/{_AVERAGE}' for name in self._own(variable))
    return Leaf(path, tensors, variable.transform)

  def _schedule(self, path: str, optimizer: OptimizerMetadata) -> Leaf | None:
    """Returns a leaf of the state of a schedule; see `DevBased`.

    The best evaluation is not in Lingvo's checkpoints, but in other files.
    """
    field = path.rpartition('.')[2]
    name = self._metadata.names.get(f'{optimizer.theta}{_SCHEDULE}.{field}')
    if name is None:
      return None
    is_step = field.endswith('_step')
    return Leaf(path, (name,), OfDtype('int64') if is_step else Identity())

  def _slot(self, path: str, optimizer: OptimizerMetadata) -> Leaf | None:
    variable, before = self._weight(path, optimizer)
    weight = path.removeprefix(f'{before}.')
    before, _, slot = before.rpartition('.')
    if slot.isdigit():
      before, _, name = before.rpartition('.')
      slot = f'{name}.{slot}'
    shapes = {'': np.shape(self._arrays[self._path_of(variable)])}
    for whole in ('v', 'sum_squares'):
      if (array := self._arrays.get(f'{before}.{whole}.{weight}')) is not None:
        shapes[whole] = np.shape(array)
    own = self._own(variable)
    found = optimizer.tensors(slot, variable, own, shapes)
    if found is None:
      return None
    initial_value = optimizer.initial_value(slot)
    return Leaf(path, *found, initial_value=initial_value, weights=own)

  def _weight(
    self, path: str, optimizer: OptimizerMetadata
  ) -> tuple[Variable, str]:
    """Returns the weight whose path is a suffix of `path`, and the prefix."""
    weights = self._weights[optimizer.weights]
    components = path.split('.')
    for start in range(1, len(components)):
      found = weights.get('.'.join(components[start:]))
      if found is not None:
        return found, '.'.join(components[:start])
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
    f"the state's {path} has no counterpart in Lingvo's checkpoints"
  )
