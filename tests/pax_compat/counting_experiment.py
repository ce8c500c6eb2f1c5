"""A tiny native experiment, for the tests of whole runs.

Its settings can be changed from outside, as if its author had edited them: by a
JSON object in the environment variable `COUNTING`.
"""

import json
import os
import pathlib
import time

import numpy as np

from pax_compat import (
  base_experiment,
  base_input,
  experiment_registry,
  optimizers,
  tasks_lib,
)
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap

VOCAB = 16


class CountingInput(base_input.BaseInput):
  """Rows that count up from a random number, which batch number and row give.

  Attributes:
    batch_size: rows of the batches of all processes together.
    lengths: the batches' lengths, in turn.
    end: how many batches there are; None for no end.
    last_rows: rows of the last batch that count, the others only fill it; None
      for all.
    wait_at: the number of the batch that is held back until there is a file.
    wait_for: that file; beside it `<name>.waits` tells that it is waited for.
    slow_from: the number of the batch from which on each takes two more
      seconds.
    fail_at: the number of the batch at which an error is raised.
    returned: what that batch is replaced by, in place of an error: `list`,
      `None`, or the name of a field that loses rows.
    fails_in: the only process in which it is raised; None for all.
  """

  batch_size: int = 8
  lengths: tuple[int, ...] = (8,)
  end: int | None = None
  last_rows: int | None = None
  wait_at: int | None = None
  wait_for: str = ''
  slow_from: int | None = None
  fail_at: int | None = None
  returned: str = ''
  fails_in: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._done = 0

  def get_next(self) -> NestedMap:
    """Returns the next batch: this process's rows of it."""
    if self._done == self.end:
      raise StopIteration
    self._done += 1
    if self._done == self.wait_at:
      self._wait()
    if self.slow_from is not None and self._done >= self.slow_from:
      time.sleep(2)
    fails = self.fails_in in (None, self.infeed_host_index)
    if self._done == self.fail_at and self.returned in ('list', 'None'):
      return [] if self.returned == 'list' else None
    if self._done == self.fail_at and fails and not self.returned:
      raise ArithmeticError(f'batch {self._done} cannot be counted')
    rows = self.last_rows if self._done == self.end else None
    batch = counted_batch(
      self._done,
      rows=self.batch_size,
      length=self.lengths[self._done % len(self.lengths)],
      rows_that_count=rows,
    )
    if self._done == self.fail_at and self.returned:
      batch[self.returned] = batch[self.returned][:3]
    part = self.batch_size // self.num_infeed_hosts
    mine = slice(
      part * self.infeed_host_index, part * (self.infeed_host_index + 1)
    )
    return NestedMap({name: array[mine] for name, array in batch.items()})

  def _wait(self):
    pathlib.Path(f'{self.wait_for}.waits').touch()
    while not pathlib.Path(self.wait_for).exists():
      time.sleep(0.01)

  def reset(self):
    self._done = 0

  def resume_at(self, step: int):
    self._done = step


def counted_batch(
  number: int, *, rows: int, length: int, rows_that_count: int | None = None
) -> NestedMap:
  """Returns a batch of shape [rows, length]; its number is its seed."""
  start = np.random.default_rng(number).integers(0, VOCAB, (rows, 1))
  ids = ((start + np.arange(length + 1)) % VOCAB).astype(np.int32)
  weights = np.ones([rows, length], np.float32)
  weights[rows if rows_that_count is None else rows_that_count :] = 0
  return NestedMap(
    ids=ids[:, :-1], labels=ids[:, 1:], paddings=1 - weights, weights=weights
  )


@experiment_registry.register
class Counting(base_experiment.BaseExperiment):
  """Counts up, in a decoder of one layer.

  The second line is not listed.
  """

  MODEL = models.LanguageModel
  SETTINGS = dict(
    model_dims=8,
    train={},
    dev={},
    num_train_steps=12,
    save_interval_steps=5,
    save_max_to_keep=2,
    summary_interval_steps=1,
    eval_interval_steps=5,
  )

  def __init__(self):
    changed = json.loads(os.environ.get('COUNTING', '{}'))
    assert changed.keys() <= self.SETTINGS.keys(), changed
    self._settings = self.SETTINGS | changed

  def task(self):
    settings = dict(self._settings)
    model = self.MODEL.config()
    model.lm_tpl.set(vocab_size=VOCAB, model_dims=settings.pop('model_dims'))
    stack = model.lm_tpl.stacked_transformer_tpl.set(num_layers=1)
    stack.set(hidden_dims=16, num_heads=2)
    del settings['train'], settings['dev']
    task = tasks_lib.SingleTask.config(model=model)
    task.train.set(**settings)
    task.train.learner.optimizer = optimizers.Adam.config(learning_rate=0.01)
    return task

  def datasets(self):
    train = {'is_training': True, **self._settings['train']}
    dev = {'reset_for_eval': True, 'end': 3, 'last_rows': 5}
    return [
      CountingInput.config(name='train', **train),
      CountingInput.config(name='dev', **dev | self._settings['dev']),
    ]


@experiment_registry.register
class CountingTwice(Counting):
  """Counts up again, under another name."""
