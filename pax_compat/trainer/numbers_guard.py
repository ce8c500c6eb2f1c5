"""Watches the numbers of a run: losses, gradient norms, weights.

Each step returns its loss, gradient norm and learning rate in one small array,
which is copied to the host while later steps run. So a number that is not
finite is reported a step or two late, and nothing waits for it. Before a save,
which waits anyway, all steps are checked, and the state itself.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from pax_compat import base_layer, checkpoints, errors
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.actions import StepContext
from pax_compat.trainer.feeding.pipeline import DeviceBatch
from pax_compat.trainer.step_outputs import WATCHED

STOP, SKIP, WARN = POLICIES = ('stop', 'skip', 'warn')
# After so many steps in a row that are left out, a run ends.
_MAX_SKIPPED = 100
# The losses that a spike is compared with, and how many of them are needed.
_LOSSES, _MIN_LOSSES = 100, 20
# Steps before, rows and fields that a message lists.
_MAX_STEPS, _MAX_ROWS, _MAX_FIELDS = 3, 8, 5


class NotFiniteError(errors.UserError):
  """A number of a step is not finite, or explodes."""


@dataclasses.dataclass(frozen=True)
class _Step:
  number: int
  watched: jax.Array
  batch: DeviceBatch | None


class NumbersGuard:
  """An action that checks the numbers of each step, without waiting for it."""

  def __init__(
    self,
    task_program: program.TaskProgram,
    *,
    policy: str,
    spike_factor: float | None,
    input_name: str,
    last_saved: Callable[[], int | None],
  ):
    """Starts before the first step.

    Args:
      task_program: has the steps.
      policy: what happens if a number is not finite: `STOP` raises, `SKIP` goes
        on with the state before the step, which the program has kept, and
        `WARN` only logs.
      spike_factor: a loss so many times the median of the last ones is treated
        in the same way, but for `SKIP`, which raises; None for no limit.
      input_name: of the training input.
      last_saved: returns the step of the newest checkpoint.
    """
    self._program = task_program
    self._policy = policy
    self._spike_factor = spike_factor
    self._input_name = input_name
    self._last_saved = last_saved
    self._steps: collections.deque[_Step] = collections.deque()
    self._before: collections.deque[tuple] = collections.deque(
      maxlen=_MAX_STEPS
    )
    self._losses: collections.deque[float] = collections.deque(maxlen=_LOSSES)
    self._skipped = 0
    self._check_state = _StateCheck(task_program)

  def __call__(self, context: StepContext):
    """Takes a step, and checks those whose numbers have arrived.

    Raises:
      NotFiniteError: a number is not finite, and the policy is to stop.
    """
    watched = context.outputs.watched
    watched.copy_to_host_async()
    self._steps.append(_Step(context.step, watched, context.batch))
    while self._steps and self._steps[0].watched.is_ready():
      self._check(self._steps.popleft())

  def flush(self):
    """Checks all steps so far.

    Raises:
      NotFiniteError: see above.
    """
    while self._steps:
      self._check(self._steps.popleft())

  def may_save(self, context: StepContext) -> bool:
    """Returns whether the state of a step may be saved.

    Raises:
      NotFiniteError: a number or the state is not finite, and the policy is not
        to warn; or it was the last step.
    """
    self.flush()
    wrong = self._check_state(context.state)
    if not wrong:
      return True
    text = (
      f'step {context.step}: the state has numbers that are not finite, in'
      f' {errors.short_list(wrong, _MAX_FIELDS)}; it is not saved.'
      f' {self._saved()}'
    )
    if self._policy != WARN or context.is_last_step_of_run:
      raise NotFiniteError(text)
    logging.warning('%s', text)
    return False

  def _check(self, step: _Step):
    values = np.asarray(step.watched).tolist()
    wrong = [
      f'the {name} is {value}'
      for name, value in zip(WATCHED, values, strict=True)
      if not math.isfinite(value)
    ]
    loss = values[0]
    if wrong:
      self._report(step, ' and '.join(wrong), values)
    else:
      self._skipped = 0
      self._check_spike(step, loss)
      self._losses.append(loss)
    self._before.append((step.number, *values))

  def _check_spike(self, step: _Step, loss: float):
    if self._spike_factor is None or len(self._losses) < _MIN_LOSSES:
      return
    usual = statistics.median(self._losses)
    if usual <= 0 or loss <= self._spike_factor * usual:
      return
    text = (
      f'step {step.number}: the loss is {loss:.4g}, {loss / usual:.3g} times'
      f' the median of the last {len(self._losses)} (--loss_spike_factor)'
    )
    if self._policy != WARN:
      raise NotFiniteError(f'{text}. {self._saved()}')
    logging.warning('%s', text)

  def _report(self, step: _Step, wrong: str, values: Sequence[float]):
    text = f'step {step.number}: {wrong}'
    if self._before:
      text += '; before: ' + ', '.join(
        f'step {number} loss {loss:.4g}, gradient norm {norm:.4g}'
        for number, loss, norm, _ in self._before
      )
    text += f'. {self._batch_text(step.batch)}'
    # Learners may leave out steps by themselves, and the loss says nothing.
    is_skipped = math.isfinite(values[0]) and self._learner_skips()
    if self._policy == WARN:
      logging.warning('%s', text)
    elif is_skipped:
      logging.warning('%s. The learner leaves out the step', text)
    elif self._policy == SKIP:
      self._skipped += 1
      logging.warning('%s. The step is left out (--on_nan=skip)', text)
      if self._skipped >= _MAX_SKIPPED:
        raise NotFiniteError(
          f'{text}. So were {_MAX_SKIPPED} steps in a row, which were left out.'
          f' {self._saved()}'
        )
    else:
      raise NotFiniteError(
        f'{text}. {self._saved()}. --on_nan=skip leaves out such steps,'
        ' --on_nan=warn goes on'
      )

  def _learner_skips(self) -> bool:
    learner = self._program.learner
    return bool(
      getattr(learner, 'skips_invalid_steps', False)
      or getattr(learner, 'nonfinite_gradients', '') == 'zero'
    )

  def _saved(self) -> str:
    step = self._last_saved()
    if step is None:
      return 'No checkpoint is saved yet'
    return f'The last good checkpoint is that of step {step}'

  def _batch_text(self, batch: DeviceBatch | None) -> str:
    """Returns which numbers of a batch are not finite."""
    if batch is None:
      return 'Its batch is not known'
    found = []
    for path, array in checkpoints.state_paths(batch.arrays).items():
      if not jnp.issubdtype(array.dtype, jnp.floating) or not array.ndim:
        continue
      rows = partitioning.local_rows(array).astype(np.float32)
      wrong = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
      if wrong.any():
        numbers = partitioning.local_row_numbers(array)[wrong]
        found.append(
          f'the field {path!r} has some in rows'
          f' {_listed(numbers)}{self._examples(batch, len(array), numbers)}'
        )
    if not found:
      several = jax.process_count() > 1
      read = ', as far as this process has read it' if several else ''
      return f'All numbers of its batch are finite{read}'
    return (
      f'Its batch, of the input {self._input_name!r}, has numbers that are not'
      f' finite: {"; ".join(found[:_MAX_FIELDS])}'
    )

  def _examples(self, batch: DeviceBatch, rows: int, numbers: Any) -> str:
    """Returns the host fields, such as keys, of rows of the global batch."""
    sharding = self._program.batch_sharding
    of_host = sharding.rows_of_hosts(rows)[sharding.infeed_host_index]
    index = np.searchsorted(of_host, numbers)
    texts = [
      f'{name} {_listed([values[i] for i in index])}'
      for name, values in batch.host.items()
    ]
    return f' ({"; ".join(texts)})' if texts else ''


def _listed(values: Sequence[Any]) -> str:
  texts = [_text(value) for value in values[:_MAX_ROWS]]
  return ', '.join(texts) + ', ...' * (len(values) > _MAX_ROWS)


def _text(value: Any) -> str:
  value = value.decode(errors='replace') if isinstance(value, bytes) else value
  return str(value)[:80]


class _StateCheck:
  """Returns which arrays of a state are not finite.

  Weights must be finite. Other arrays, such as those of optimizers, may have
  infinities, but no NaN.
  """

  def __init__(self, task_program: program.TaskProgram):
    self._replicated = partitioning.replicated(task_program.mesh)
    self._compiled = None

  def __call__(self, state: Any) -> list[str]:
    leaves = {
      path: leaf
      for path, leaf in checkpoints.state_paths(state).items()
      if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and leaf.size
    }
    if not leaves:
      return []
    if self._compiled is None:
      self._compiled = jax.jit(_are_valid, out_shardings=self._replicated)
    valid = np.asarray(self._compiled(leaves))
    names = sorted(leaves)
    return [path for path, ok in zip(names, valid, strict=True) if not ok]


def _are_valid(leaves: dict[str, jax.Array]) -> jax.Array:
  """Returns whether each array is valid, [len(leaves)], in sorted order."""
  weights = f'mdl_vars.{base_layer.PARAMS}.'
  return jnp.stack(
    [
      jnp.isfinite(leaf).all()
      if path.startswith(weights)
      else ~jnp.isnan(leaf).any()
      for path, leaf in sorted(leaves.items())
    ]
  )
