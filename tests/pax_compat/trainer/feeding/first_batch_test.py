"""Tests of the example that initialises a model before the first batch."""

import logging
import threading

import jax
import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import first_batch
from tests.pax_compat.trainer import lines, tiny


class Known(base_input.BaseInput):
  """Batches whose specs may be known in advance.

  Attributes:
    known: the length in the specs; None without specs.
    length: the length of the batches.
  """

  batch_size: int = 2
  known: int | None = 3
  length: int = 3

  def __post_init__(self):
    super().__post_init__()
    self.num_read = 0

  def get_next(self):
    self.num_read += 1
    if self.num_read > 2:
      raise StopIteration
    return NestedMap(
      x=np.full([2, self.length], self.num_read), text=np.array(['a', 'b'])
    )

  def batch_specs(self):
    if self.known is None:
      return None
    return NestedMap(x=jax.ShapeDtypeStruct((2, self.known), np.int64))


class Merging(Known):
  """Needs a batch for its example."""

  def example_batch(self, first):
    return NestedMap({**first, 'y': first.x})


class _Experiment:
  """Has the specs of a separate input."""

  def __init__(self, config):
    self._config = config

  def get_input_specs_provider_params(self):
    if self._config is None:
      return None
    return base_input.DatasetInputSpecsProvider.config(input_p=self._config)


def _first(cls=Known, *, enforced=True, asked=True, **fields):
  config = cls.config(name='train', is_training=True, **fields)
  data = config.Instantiate()
  experiment = _Experiment(config if asked else None)
  return data, first_batch.FirstBatch(experiment, data, enforced=enforced)


def _next(data, first):
  """Returns the next batch, as the pipeline does."""
  batch = data.get_next_padded()
  first.check(batch)
  return batch


def _values(data, first) -> list[int]:
  return [int(_next(data, first).x[0, 0]) for _ in range(2)]


def test_specs_cost_no_batch():
  data, first = _first()
  assert first.is_known_before and data.num_read == 0
  assert first.example == NestedMap(x=jax.ShapeDtypeStruct((2, 3), np.int64))
  assert _values(data, first) == [1, 2]
  with pytest.raises(StopIteration):
    _next(data, first)


@pytest.mark.parametrize(
  ('cls', 'fields', 'names'),
  [
    (Known, dict(asked=False), {'x'}),
    (Known, dict(enforced=False), {'x'}),
    (Merging, {}, {'x', 'y'}),
  ],
)
def test_otherwise_the_first_batch_is_peeked_at(cls, fields, names):
  data, first = _first(cls, **fields)
  assert not first.is_known_before and data.num_read == 1
  assert first.example.keys() == names
  assert _values(data, first) == [1, 2]


def test_a_batch_of_the_provider_is_not_taken_from_the_input():
  data, first = _first(known=None)
  assert first.is_known_before and data.num_read == 0
  assert first.example.x.shape == (2, 3)
  assert _values(data, first) == [1, 2]


def test_the_first_batch_is_compared_with_the_specs():
  data, first = _first(length=4)
  with pytest.raises(
    errors.UserError,
    match=r'Train.enforce_input_specs=False.*\n  x: expected int64\[2,3\], got'
    r' int64\[2,4\]$',
  ):
    _next(data, first)
  with pytest.raises(errors.UserError, match='enforce_input_specs'):
    _first(Merging, length=4)


def test_an_input_without_a_batch():
  with pytest.raises(errors.UserError, match="dataset 'train' has no batch"):
    _first(_Ended, asked=False)


class _Ended(Known):
  """Has no batch."""

  def get_next(self):
    raise StopIteration


def test_the_step_that_was_compiled_ahead_is_the_one_that_runs(caplog):
  batch = tiny.batch()
  made = tiny.make_program()
  state, on_devices = made.init_state(batch), made.put(batch)
  with jax.log_compiles():
    made.compile_train_step(batch)
    assert 'Compiling' in caplog.text
    caplog.clear()
    made.train_step(state, on_devices, np.bool_(0))
  assert 'Compiling' not in caplog.text


class _Compiled(logging.Handler):
  """Records that a train step was compiled."""

  def __init__(self):
    super().__init__()
    self.done = threading.Event()

  def emit(self, record):
    if 'compiled shape 1 in' in record.getMessage():
      self.done.set()


def test_a_run_compiles_while_the_first_batch_is_read(
  tmp_path, monkeypatch, caplog
):
  compiled = _Compiled()
  task = lines.task(num_train_steps=2)
  experiment = lines.Lines(task)
  experiment.get_input_specs_provider_params = lambda: (
    base_input.DatasetInputSpecsProvider.config(
      input_p=experiment.training_dataset()
    )
  )
  data = experiment.training_dataset().cls
  read = data.get_next

  def get_next(self):
    if self.is_training:
      assert compiled.done.wait(300), 'nothing was compiled without a batch'
    return read(self)

  batch = experiment.training_dataset().Instantiate().get_next()
  monkeypatch.setattr(data, 'batch_specs', lambda self: self.specs_of(batch))
  monkeypatch.setattr(data, 'get_next', get_next)
  logger = logging.getLogger('absl')
  logger.addHandler(compiled)
  try:
    with caplog.at_level(logging.INFO, logger='absl'):
      experiment.train(tmp_path)
  finally:
    logger.removeHandler(compiled)
  assert 'compiled for 1 shape(s)' in experiment.printed[-1]
