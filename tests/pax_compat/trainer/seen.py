"""Runs whose metrics show which examples each step read."""

import json
import os
import pathlib
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import (
  base_experiment,
  base_input,
  base_model,
  optimizers,
  tasks_lib,
)
from pax_compat.base_layer import WeightHParams
from pax_compat.experiments import resolved
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import run

# Examples in an epoch.
COUNT = 24
BATCH = 2


class Seen(base_model.BaseModel):
  """Has a metric for each example: how often it is in the batch."""

  def setup(self):
    self.create_variable('w', WeightHParams([]))

  def compute_predictions(self, input_batch):
    return input_batch.example - self.theta.w

  def compute_loss(self, predictions, input_batch):
    counts = jnp.sum(jax.nn.one_hot(input_batch.example, COUNT), 0)
    seen = {f'example_{i}': (counts[i], 1.0) for i in range(COUNT)}
    return {'loss': (jnp.mean(predictions**2), 1.0), **seen}, {}


class Shuffled(base_input.BaseInput):
  """Examples by number, each once an epoch, in an order of the epoch's own.

  Attributes:
    batch_size: of this host.
    hold_at: the number of the batch, of those that are read since the start,
      that never comes; a file is created when it is awaited.
    hold_file: that file, with this host's number behind.
    stop_at: the number of the batch at which the process gets a SIGTERM.
    fail_at: the number of the batch at which an error is raised.
  """

  batch_size: int = BATCH
  hold_at: int | None = None
  hold_file: str = ''
  stop_at: int | None = None
  fail_at: int | None = None

  state_fits_any_hosts = True

  def __post_init__(self):
    super().__post_init__()
    self._read = 0
    self._consumed = 0

  def get_next(self):
    self._read += 1
    if self._read == self.fail_at:
      raise ArithmeticError('no such batch')
    if self._read == self.stop_at:
      os.kill(os.getpid(), signal.SIGTERM)
    if self._read == self.hold_at:
      pathlib.Path(f'{self.hold_file}{self.infeed_host_index}').touch()
      time.sleep(600)
    first = self._consumed + self.infeed_host_index * self.batch_size
    self._consumed += self.batch_size * self.num_infeed_hosts
    return NestedMap(example=in_order(first, first + self.batch_size))

  def _get_state_internal(self):
    return b'%d' % self._consumed

  def _set_state_internal(self, state):
    self._consumed = int(state)


class Stateless(Shuffled):
  """Has no state; continues by `resume_at` only."""

  def resume_at(self, step):
    self._consumed = step * self.batch_size * self.num_infeed_hosts

  def _get_state_internal(self):
    raise NotImplementedError


class OfItsHosts(Shuffled):
  """Has a state that is good for as many hosts as it is of."""

  state_fits_any_hosts = False


def in_order(start: int, end: int) -> np.ndarray:
  """Returns the examples from one place of the order of all to another."""
  epochs = range(start // COUNT, -(-end // COUNT))
  order = [np.random.default_rng(e).permutation(COUNT) for e in epochs]
  skipped = start // COUNT * COUNT
  return np.concatenate(order)[start - skipped : end - skipped].astype(np.int32)


class Experiment(base_experiment.BaseExperiment):
  """Trains for 12 steps, and saves every third.

  It evaluates nothing, or the next training batch only.

  Attributes:
    printed: the lines that its runs print.
  """

  def __init__(
    self,
    cls: type = Shuffled,
    *,
    train: Any = None,
    early_stopping_fn: Any = None,
    **data: Any,
  ):
    """Makes it.

    Args:
      cls: of the input.
      train: changed fields of `tasks_lib.Train`, by name.
      early_stopping_fn: of the task.
      **data: fields of the input.
    """
    self._train = dict(
      num_train_steps=12,
      save_interval_steps=3,
      summary_interval_steps=1,
      eval_skip_train=True,
    ) | (train or {})
    self._early_stopping_fn = early_stopping_fn
    self._data = cls.config(name='train', is_training=True, **data)
    self.printed: list[str] = []

  def task(self):
    made = tasks_lib.SingleTask.config(model=Seen.config())
    made.early_stopping_fn = self._early_stopping_fn
    made.train.set(**self._train)
    made.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
    return made

  def datasets(self):
    return [self._data]

  def train(self, folder: pathlib.Path):
    """Runs it, in this process."""
    experiment = resolved.resolve(self, name='seen')
    run.train(
      experiment, job_log_dir=str(folder), print_line=self.printed.append
    )


def examples(folder: pathlib.Path) -> list[list[int]]:
  """Returns the examples that each step saw, in the order of their numbers.

  They are of the steps that count: those of a run that was killed do, up to the
  checkpoint that the next one continued from.
  """
  steps: dict[int, list[int]] = {}
  for line in (folder / 'metrics.jsonl').read_text().splitlines():
    found = json.loads(line)
    name, _, number = found['name'].partition('_')
    if name == 'example' and found['split'] == 'train':
      times = [int(number)] * round(found['value'])
      steps.setdefault(found['step'], []).extend(times)
  assert list(steps) == list(range(1, len(steps) + 1))
  return [sorted(seen) for seen in steps.values()]


def steps_of(*ends: int) -> list[list[int]]:
  """Returns what steps see that end at these places of the order of all."""
  starts = (0, *ends[:-1])
  return [
    sorted(in_order(start, end).tolist())
    for start, end in zip(starts, ends, strict=True)
  ]
