"""How far a run is: the numbers in Lingvo's checkpoints, and a state's counts.

Most counts of a state are batches. An optimizer that collects gradients of
several batches also counts its updates. Adam counts its own steps, which are
fewer where several tasks are trained in turns; Lingvo says them as powers of
Adam's decays.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from adaptors.checkpoints.facts import Facts
from adaptors.checkpoints.slots import OptimizerFacts
from adaptors.translate.training import optimizers
from pax_compat import errors
from pax_compat import optimizers as pax_optimizers

GLOBAL_STEP = 'global_step'
# Of batches, by an optimizer that collects gradients.
UPDATE_COUNT = 'update_count'
# The decay of moving averages in the step before, where a schedule sets it.
DECAY = 'ema_decay/var'
# What eager mode counts checkpoints by.
SAVE_COUNTER = 'save_counter'
_POWERS = ('beta1_power', 'beta2_power')
_STEP = 'step'
_COUNTS = ('count', 'mini_step', 'gradient_step')
# Where a model that runs in Lingvo has the global step.
_VARIABLES, _OF_MODEL = 'mdl_vars.', '.global_step'
# The smallest number that is not subnormal.
_TINY = np.finfo(np.float32).tiny


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of Lingvo's checkpoints.

  Attributes:
    name: in graph mode.
    ends: what its name may end with in eager mode.
  """

  name: str
  ends: tuple[str, ...] = ()


class Counts:
  """The counts of a task's states, and the numbers that say them.

  Attributes:
    paths: of the counts.
  """

  def __init__(self, paths: Collection[str], facts: Facts):
    """Finds the counts.

    Args:
      paths: of all arrays of the state.
      facts: of the task.
    """
    self.paths = tuple(p for p in paths if _is_count(p))
    self._facts = facts
    self._collecting = next(
      (one for one in facts.optimizers if one.counts_by_itself), None
    )
    # Adams that have weights, with the paths of their own counts.
    self._adams = [
      (one, own)
      for one in facts.optimizers
      if one.kind is pax_optimizers.Adam
      if (own := self._of_adam(one, paths))
    ]

  def numbers(self) -> dict[Number, tuple[str, ...]]:
    """Returns the numbers that say the counts, with the paths of these."""
    said = {Number(GLOBAL_STEP): (_STEP,)}
    if self._collecting:
      said[self._update_count] = (_STEP,)
    if self._facts.scheduled_decay is not None:
      said[Number(DECAY)] = (_STEP,)
    for powers, own in zip(self._powers(), self._adams, strict=True):
      said |= dict.fromkeys(powers, own[1])
    return said

  def read(self, read: Callable[[Number], Any | None]) -> dict[str, int]:
    """Returns the counts.

    Args:
      read: returns a number, None for one that is not there: what it would say
        starts anew.

    Raises:
      UserError: numbers contradict each other.
    """
    batches = self.batches(read)
    if batches is None:
      return {}
    counts = {path: self._count(path, batches) for path in self.paths}
    for powers, (one, own) in zip(self._powers(), self._adams, strict=True):
      found = [read(power) for power in powers]
      if None not in found:
        counts |= dict.fromkeys(own, _steps_of(_betas(one), found))
    return counts

  def batches(self, read: Callable[[Number], Any | None]) -> int | None:
    """Returns how many batches there were; as `read`."""
    step = read(Number(GLOBAL_STEP))
    if step is None or not self._collecting:
      return None if step is None else int(step)
    batches = read(self._update_count)
    if batches is None:
      return None
    expected = self._global_step(int(batches))
    if step != expected:
      raise errors.UserError(
        f'the checkpoint has {GLOBAL_STEP} {step} and {UPDATE_COUNT}'
        f' {batches}; expected {GLOBAL_STEP} {expected} after so many batches'
      )
    return int(batches)

  def written(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the numbers of a state.

    Args:
      arrays: of the state, by path.
    """
    batches = int(arrays[_STEP])
    numbers = {GLOBAL_STEP: np.int64(self._global_step(batches))}
    if self._collecting:
      numbers[UPDATE_COUNT] = np.float32(batches)
    if self._facts.scheduled_decay is not None:
      step = np.float32(max(batches - 1, 0))
      warm = (np.float32(1) + step) / (np.float32(10) + step)
      numbers[DECAY] = min(warm, np.float32(self._facts.scheduled_decay))
    for powers, (one, own) in zip(self._powers(), self._adams, strict=True):
      steps = int(arrays[own[0]])
      for power, beta in zip(powers, _betas(one), strict=True):
        numbers[power.name] = _power(beta, steps + 1)
    return numbers

  @property
  def _update_count(self) -> Number:
    one = self._collecting
    return Number(UPDATE_COUNT, (f'{one.scope}{one.learner}/{UPDATE_COUNT}',))

  def _global_step(self, batches: int) -> int:
    if not self._collecting:
      return batches
    updates = batches // self._collecting.batches_per_update
    return updates + (0 if self._facts.defers_steps else batches)

  def _count(self, path: str, batches: int) -> int:
    """Returns a count, as it is where Adam counts all batches or updates."""
    if path.startswith(_VARIABLES):
      return self._global_step(batches)
    facts = [f for f in self._facts.optimizers if path.startswith(f'{f.path}.')]
    if not facts:
      return batches
    each, name = facts[0].batches_per_update, path.rpartition('.')[2]
    if name == 'mini_step':
      return batches % each
    is_inner = name == 'gradient_step' or '.inner_opt_state.' in path
    return batches // each if is_inner else batches

  def _of_adam(self, facts: OptimizerFacts, paths) -> tuple[str, ...]:
    """Returns the paths of the counts that stand beside Adam's moments."""
    found = (p.partition('.mu.') for p in paths if p.startswith(facts.path))
    beside = {f'{before}.count' for before, mu, _ in found if mu}
    return tuple(
      p for p in self.paths if p in beside and p.startswith(f'{facts.path}.')
    )

  def _powers(self) -> list[list[Number]]:
    """Returns the two powers of each Adam."""
    return [
      [
        Number(
          f'{name}_{index}' if index else name,
          tuple(
            f'{one.scope}{one.learner}/{within}{name}'
            # An accumulator updates on condition.
            for within in ('', 'cond/')
          ),
        )
        for name in _POWERS
      ]
      for index, (one, _) in enumerate(self._adams)
    ]


def _is_count(path: str) -> bool:
  if path.startswith(_VARIABLES):
    return path.endswith(_OF_MODEL)
  return path == _STEP or path.rpartition('.')[2] in _COUNTS


def _betas(facts: OptimizerFacts) -> tuple[float, float]:
  adam = optimizers.wrapped(facts.config)[-1]
  return adam.beta1, adam.beta2


def _steps_of(betas: Sequence[float], powers: Sequence[Any]) -> int:
  """Returns how many steps made the powers.

  A power that has become too small to change says the least number that there
  can be.

  Raises:
    UserError: the powers are of different numbers of steps, or of none.
  """
  said = [_exponents(b, p) for b, p in zip(betas, powers, strict=True)]
  least = max(first for first, _ in said)
  if any(not first <= least <= last for first, last in said):
    told = ' and '.join(
      f'{power} of {beta}' for power, beta in zip(powers, betas, strict=True)
    )
    raise errors.UserError(
      f"the checkpoint has Adam's powers {told}, which are not those of one"
      " number of steps; expected the optimizer's decays to be those of the run"
    )
  return int(least) - 1


def _exponents(base: float, power: Any) -> tuple[float, float]:
  """Returns the least and the largest exponent that give a power.

  Where none does, the least is infinite and the largest is 0.
  """
  power = _without_subnormal(np.float32(power))
  base = result = np.float32(base)
  exponent = 1
  while result != power:
    before, result = result, _without_subnormal(result * base)
    exponent += 1
    if result == before:
      return np.inf, 0
  is_last = _without_subnormal(result * base) == result
  return exponent, np.inf if is_last else exponent


def _power(base: float, exponent: int) -> np.float32:
  """Returns a power with the rounding errors of one product a step."""
  base = result = np.float32(base)
  for _ in range(exponent - 1):
    before, result = result, _without_subnormal(result * base)
    if result == before:
      break
  return result


def _without_subnormal(x: np.float32) -> np.float32:
  """Returns a number, or 0 where it is so small that TensorFlow makes it 0."""
  return x if abs(x) >= _TINY else np.float32(0)
