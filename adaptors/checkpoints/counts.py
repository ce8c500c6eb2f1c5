"""Step counts: of a training state, and as numbers in Lingvo's checkpoints.

Most counts of a state count batches. An optimizer that accumulates gradients
also counts its updates. Adam counts its own steps, which are fewer when tasks
take turns; Lingvo stores them as powers of Adam's decays, and Keras as they
are.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from adaptors.checkpoints.metadata import CheckpointMetadata
from adaptors.checkpoints.slots import OptimizerMetadata
from adaptors.translate.training import optimizers
from pax_compat import errors
from pax_compat import optimizers as pax_optimizers

GLOBAL_STEP = 'global_step'
# Number of batches, kept by an optimizer that accumulates gradients.
UPDATE_COUNT = 'update_count'
# The decay of moving averages in the previous step, if a schedule sets it.
DECAY = 'ema_decay/var'
# Eager mode's number of checkpoints.
SAVE_COUNTER = 'save_counter'
_POWERS = ('beta1_power', 'beta2_power')
# Keras' number of updates.
_ITERATIONS = 'iter'
# Lingvo's number of updates by weighted batches.
_WEIGHTED_UPDATES = 'param_update_step'
_STEP = 'step'
_COUNTS = ('count', 'mini_step', 'gradient_step')
# Path of the global step of a bridged model.
_VARIABLES, _OF_MODEL = 'mdl_vars.', '.global_step'
# The smallest normal number.
_TINY = np.finfo(np.float32).tiny


@dataclasses.dataclass(frozen=True)
class Number:
  """A scalar tensor of Lingvo's checkpoints.

  Attributes:
    name: in graph mode.
    suffixes: possible suffixes of its name in eager mode.
    dtype: in checkpoints; for those that are copied as they are.
  """

  name: str
  suffixes: tuple[str, ...] = ()
  dtype: Callable[..., Any] = np.float32


class Counts:
  """Converts the counts of a task's state to checkpoint numbers and back.

  Attributes:
    paths: of the counts in the state.
  """

  def __init__(self, paths: Collection[str], metadata: CheckpointMetadata):
    """Finds the counts.

    Args:
      paths: of all arrays of the state.
      metadata: of the task.
    """
    self.paths = tuple(p for p in paths if _is_count(p))
    self._metadata = metadata
    self._accumulating = next(
      (one for one in metadata.optimizers if one.counts_by_itself), None
    )
    # The Adam optimizers that have weights, with the paths of their counts.
    adams = [
      (one, own)
      for one in metadata.optimizers
      if one.kind is pax_optimizers.Adam
      if (own := self._of_adam(one, paths))
    ]
    self._adams = [(one, own) for one, own in adams if not one.keras_scope]
    # The numbers of updates that Lingvo stores, with the paths of their counts.
    self._stored = [
      *(
        (Number(metadata.names[one.theta_of(_WEIGHTED_UPDATES)]), own)
        for one in metadata.optimizers
        if (own := self._of_weighted(one, paths))
      ),
      *(
        (Number(f'{one.keras_scope}{_ITERATIONS}', dtype=np.int64), own)
        for one, own in adams
        if one.keras_scope
      ),
    ]

  def started(self, read: Callable[[Number], Any | None]) -> dict[str, int]:
    """Returns the counts of a new run with some numbers of a checkpoint.

    Args:
      read: returns the value of a number, or None for that of a new run.

    Raises:
      UserError: Adam's powers belong to different numbers of steps.
    """
    batches = int(read(Number(GLOBAL_STEP)) or 0)
    counts = {path: self._count(path, batches) for path in self.paths}
    for number, own in self._stored:
      counts |= dict.fromkeys(own, int(read(number) or 0))
    for powers, (one, own) in zip(self._powers(), self._adams, strict=True):
      found = [read(power) for power in powers]
      steps = 0 if None in found else _steps_from_powers(_betas(one), found)
      counts |= dict.fromkeys(own, steps)
    return counts

  def numbers(self) -> dict[Number, tuple[str, ...]]:
    """Returns the paths of the counts that each number determines."""
    paths = {Number(GLOBAL_STEP): (_STEP,)}
    if self._accumulating:
      paths[self._update_count] = (_STEP,)
    if self._metadata.scheduled_decay is not None:
      paths[Number(DECAY)] = (_STEP,)
    for number, own in self._stored:
      paths[number] = own[-1:]
    for powers, own in zip(self._powers(), self._adams, strict=True):
      paths |= dict.fromkeys(powers, own[1])
    return paths

  def read(self, read: Callable[[Number], Any | None]) -> dict[str, int]:
    """Returns the counts.

    Args:
      read: returns the value of a number, or None if the checkpoint lacks it;
        its counts then keep their initial values.

    Raises:
      UserError: numbers contradict each other.
    """
    batches = self.batches(read)
    if batches is None:
      return {}
    counts = {path: self._count(path, batches) for path in self.paths}
    for number, own in self._stored:
      counts |= dict.fromkeys(own, int(read(number) or 0))
    for powers, (one, own) in zip(self._powers(), self._adams, strict=True):
      found = [read(power) for power in powers]
      if None not in found:
        counts |= dict.fromkeys(own, _steps_from_powers(_betas(one), found))
    return counts

  def batches(self, read: Callable[[Number], Any | None]) -> int | None:
    """Returns the number of batches trained on; arguments as of `read`."""
    step = read(Number(GLOBAL_STEP))
    if step is None or not self._accumulating:
      return None if step is None else int(step)
    batches = read(self._update_count)
    if batches is None:
      return None
    expected = self._global_step(int(batches))
    if step != expected:
      raise errors.UserError(
        f'the checkpoint has {GLOBAL_STEP} {step} and {UPDATE_COUNT}'
        f' {batches}; expected {GLOBAL_STEP} {expected} after {batches} batches'
      )
    return int(batches)

  def written(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the numbers of a checkpoint of a state.

    Args:
      arrays: the state's arrays by path.
    """
    batches = int(arrays[_STEP])
    numbers = {GLOBAL_STEP: np.int64(self._global_step(batches))}
    if self._accumulating:
      numbers[UPDATE_COUNT] = np.float32(batches)
    if self._metadata.scheduled_decay is not None:
      before = self._global_step(batches) - (not self._metadata.defers_steps)
      step = np.float32(max(before, 0))
      warm = (np.float32(1) + step) / (np.float32(10) + step)
      numbers[DECAY] = min(warm, np.float32(self._metadata.scheduled_decay))
    for number, own in self._stored:
      numbers[number.name] = number.dtype(arrays[own[-1]])
    for powers, (one, own) in zip(self._powers(), self._adams, strict=True):
      steps = int(arrays[own[0]])
      for power, beta in zip(powers, _betas(one), strict=True):
        numbers[power.name] = _power(beta, steps + 1)
    return numbers

  @property
  def _update_count(self) -> Number:
    one = self._accumulating
    return Number(UPDATE_COUNT, (f'{one.scope}{one.learner}/{UPDATE_COUNT}',))

  def _global_step(self, batches: int) -> int:
    if not self._accumulating:
      return batches
    updates = batches // self._accumulating.batches_per_update
    return updates + (0 if self._metadata.defers_steps else batches)

  def _count(self, path: str, batches: int) -> int:
    """Returns a count, assuming that Adam counts every batch or update."""
    if path.startswith(_VARIABLES):
      return self._global_step(batches)
    owner = next(
      (o for o in self._metadata.optimizers if path.startswith(f'{o.path}.')),
      None,
    )
    if owner is None:
      return batches
    each, name = owner.batches_per_update, path.rpartition('.')[2]
    if name == 'mini_step':
      return batches % each
    is_inner = name == 'gradient_step' or '.inner_opt_state.' in path
    return batches // each if is_inner else batches

  def _of_adam(self, adam: OptimizerMetadata, paths) -> tuple[str, ...]:
    """Returns the paths of the counts next to Adam's moments."""
    found = (p.partition('.mu.') for p in paths if adam.owns(p))
    siblings = {f'{before}.count' for before, mu, _ in found if mu}
    return tuple(p for p in self.paths if p in siblings and adam.owns(p))

  def _of_weighted(self, one: OptimizerMetadata, paths) -> tuple[str, ...]:
    """Returns the paths of the counts of updates by weighted batches."""
    found = [p for p in paths if one.owns(p) and one.is_sum_of_weights(p)]
    if not found:
      return ()
    # Those of wrapped optimizers, and that next to the sums.
    sums = found[0].rpartition('.')[0]
    own = f'{sums.rpartition(".")[0]}.1.count'
    wrapped = f'{sums}.wrapped.'
    return tuple(p for p in self.paths if p == own or p.startswith(wrapped))

  def _powers(self) -> list[list[Number]]:
    """Returns the two powers of each Adam optimizer."""
    return [
      [
        Number(
          f'{name}_{index}' if index else name,
          tuple(
            f'{one.scope}{one.learner}/{within}{name}'
            # Accumulators update in a conditional.
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


def _betas(adam: OptimizerMetadata) -> tuple[float, float]:
  config = optimizers.wrapped(adam.config)[-1]
  return config.beta1, config.beta2


def _steps_from_powers(betas: Sequence[float], powers: Sequence[Any]) -> int:
  """Returns the number of steps after which Adam's powers have these values.

  A power that has underflowed gives a lower bound only.

  Raises:
    UserError: no number of steps fits all powers.
  """
  ranges = [_exponents(b, p) for b, p in zip(betas, powers, strict=True)]
  least = max(first for first, _ in ranges)
  if any(not first <= least <= last for first, last in ranges):
    values = ' and '.join(
      f'{power} of {beta}' for power, beta in zip(powers, betas, strict=True)
    )
    raise errors.UserError(
      f"the checkpoint has Adam's powers {values}, which belong to different"
      " numbers of steps; expected the optimizer's decays to be those of the"
      ' run'
    )
  return int(least) - 1


def _exponents(base: float, power: Any) -> tuple[float, float]:
  """Returns the smallest and the largest exponent that give a power.

  If there is none, the smallest is infinite and the largest is 0.
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
  """Returns a power, rounded after each multiplication as in training."""
  base = result = np.float32(base)
  for _ in range(exponent - 1):
    before, result = result, _without_subnormal(result * base)
    if result == before:
      break
  return result


def _without_subnormal(x: np.float32) -> np.float32:
  """Flushes a subnormal number to zero, as TensorFlow does."""
  return x if abs(x) >= _TINY else np.float32(0)
