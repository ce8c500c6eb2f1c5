"""Which tensors of a checkpoint each array of a run's state is made of.

A weight is made of Lingvo's variables, by the task's `VariableMap`. What an
optimizer keeps of a variable TensorFlow calls by the variable and the
optimizer, and numbers in the order of creation: `lm/w/var/Adam` and
`lm/w/var/Adam_1` are Adam's two moments. All counts of a state are the step.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from adaptors.translate import as_in_lingvo, optimizers
from adaptors.translate.variables import Same, Stack, Variable, VariableMap
from pax_compat import checkpoints, errors
from pax_compat import optimizers as pax_optimizers
from pax_compat.config import Config

GLOBAL_STEP = 'global_step'
# Powers of Adam's decays, which follow from the step.
BETA_POWERS = ('beta1_power', 'beta2_power')
# Numbers that no state is made of; the last one counts checkpoints by objects.
_NUMBERS = (GLOBAL_STEP, *BETA_POWERS, 'save_counter')
_AVERAGE = 'ExponentialMovingAverage'
_PARAMS = 'mdl_vars.params.'
# What an optimizer keeps of each variable, in the order of its creation. Of
# Adafactor it depends on the variable.
_SLOTS = {
  pax_optimizers.Adagrad: ('sum_of_squares',),
  pax_optimizers.Adam: ('mu', 'nu'),
  pax_optimizers.Sgd: ('trace',),
}


@dataclasses.dataclass(frozen=True)
class Facts:
  """What of a translated task the tensors' names depend on.

  Attributes:
    variables: which weights are which of Lingvo's variables.
    names: of Lingvo's variables by theta path, without ':0'.
    optimizer: config of the optimizer here.
    optimizer_name: what Lingvo calls it, such as 'Adam'.
  """

  variables: VariableMap
  names: Mapping[str, str]
  optimizer: Config
  optimizer_name: str


@dataclasses.dataclass(frozen=True)
class Leaf:
  """An array of the state that a checkpoint has.

  Attributes:
    path: in the state, with dots.
    tensors: names of the tensors that it is made of.
    transform: how, as of a `Variable`.
  """

  path: str
  tensors: tuple[str, ...]
  transform: Any


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a checkpoint and a state correspond.

  Attributes:
    leaves: the arrays that the checkpoint has.
    steps: paths of the state's counts, which are the global step.
    missing: tensors that are wanted and not there, by the state's path.
    unused: tensors that are there and not wanted.
  """

  leaves: tuple[Leaf, ...]
  steps: tuple[str, ...]
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
    absent = tuple(t for t in leaf.tensors if t not in names)
    if absent:
      missing[leaf.path] = absent
    else:
      leaves.append(leaf)
  used = {names.found(t) for leaf in leaves for t in leaf.tensors}
  used |= {t for t in tensors if t.split('/')[-1] in _NUMBERS}
  unused = set(tensors) - used
  if GLOBAL_STEP not in tensors:
    missing['step'] = (GLOBAL_STEP,)
  leaves = [
    dataclasses.replace(leaf, tensors=tuple(map(names.found, leaf.tensors)))
    for leaf in leaves
  ]
  return Plan(tuple(leaves), _steps(state), missing, tuple(sorted(unused)))


def _steps(state: Any) -> tuple[str, ...]:
  """Returns the paths of the counts of a state."""
  paths = checkpoints.state_paths(state)
  return tuple(p for p in paths if p == 'step' or p.endswith('.count'))


def leaves_of(state: Any, facts: Facts) -> Iterator[Leaf]:
  """Yields the arrays of a state that Lingvo's checkpoint of it has.

  Raises:
    UserError: the state has something that Lingvo's has not.
  """
  arrays = checkpoints.state_paths(state)
  steps = set(_steps(state))
  for path in arrays:
    leaf = None if path in steps else _leaf(path, arrays, facts)
    if leaf is not None:
      yield leaf


class _Names:
  """Names of tensors, those that eager mode writes included.

  It puts the names of a task and a learner before those of an optimizer's.
  """

  def __init__(self, tensors: Collection[str]):
    self._tensors = set(tensors)
    self._by_end = {}

  def __contains__(self, name: str) -> bool:
    return self.found(name) is not None

  def found(self, name: str) -> str | None:
    """Returns the tensor that is meant, or None."""
    if name in self._tensors:
      return name
    if name not in self._by_end:
      ending = [t for t in self._tensors if t.endswith(f'/{name}')]
      self._by_end[name] = ending[0] if len(ending) == 1 else None
    return self._by_end[name]


def _leaf(path: str, arrays: Mapping[str, Any], facts: Facts) -> Leaf | None:
  """Returns the leaf of a path, or None for what the optimizer does not use."""
  variable = _variable(path, facts.variables)
  if variable is None:
    raise errors.UserError(
      f"the state's {path} has no counterpart in a checkpoint of Lingvo's"
    )
  own = tuple(facts.names[theta] for theta in variable.theta)
  if path.startswith(_PARAMS):
    return Leaf(path, own, variable.transform)
  weight = variable.jax.replace('/', '.')
  before, _, slot = path.removesuffix(f'.{weight}').rpartition('.')
  if slot == 'ema':
    averages = tuple(f'{name}/{_AVERAGE}' for name in own)
    return Leaf(path, averages, variable.transform)
  optimizer = optimizers.wrapped(facts.optimizer)[-1]
  slots = _SLOTS.get(optimizer.__fn_or_cls__)
  transform = variable.transform
  if slots is None:
    v = arrays[f'{before}.v.{weight}']
    slots = ('m',) if optimizer.beta1 else ()
    is_whole = np.size(v) == np.size(arrays[_PARAMS + weight])
    slots += ('v',) if is_whole else ('vr', 'vc')
    # Its state has Lingvo's shapes, but for layers that are stacked.
    transform = Stack() if as_in_lingvo.is_stack(transform) else Same()
  if slot not in slots:
    return None
  number = slots.index(slot)
  end = f'{facts.optimizer_name}_{number}' if number else facts.optimizer_name
  return Leaf(path, tuple(f'{name}/{end}' for name in own), transform)


def _variable(path: str, variables: VariableMap) -> Variable | None:
  """Returns the variable whose path a state's path ends with."""
  by_path = {v.jax.replace('/', '.'): v for v in variables}
  parts = path.split('.')
  ends = ('.'.join(parts[i:]) for i in range(len(parts)))
  return next((by_path[end] for end in ends if end in by_path), None)
