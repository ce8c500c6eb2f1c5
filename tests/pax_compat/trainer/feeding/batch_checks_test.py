"""Tests of batches and inputs that are not as they should be."""

import importlib.util
import sys

import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import batch_checks, pipeline, sources
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines

GOOD = NestedMap(x=np.zeros([4, 2]), of=NestedMap(text=np.array(['a'] * 4)))


class Given(base_input.BaseInput):
  """Has no batches of its own."""


def _after(first, second):
  check = batch_checks.BatchCheck(Given())
  check(first)
  check(second)


@pytest.mark.parametrize(
  ('batch', 'message'),
  [
    (NestedMap(), 'the batch is empty: it has no fields'),
    (NestedMap(x=[1, 2]), "field 'x' is a list of int; expected a NumPy array"),
    (NestedMap(a=NestedMap(x='s')), "the field 'a.x' is a str; expected"),
    (NestedMap(x=np.zeros([0, 3])), r"'x' of shape \[0, 3\] has no rows"),
    (
      NestedMap(x=np.array([[1], [1, 2]], object)),
      "'x' is an array of objects, list; expected numbers, in rows of one",
    ),
  ],
)
def test_what_no_batch_may_be(batch, message):
  with pytest.raises(errors.UserError, match=message):
    batch_checks.BatchCheck(Given())(batch)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(x=np.zeros([3, 2])), 'numbers of rows: of.text 4, x 3; expected one'),
    (dict(x=np.zeros([4])), r"'x' has 1 dimension\(s\) of floats; expected 2"),
    (dict(x=np.zeros([4, 2], int)), '2 dimension.* of integers; expected 2 of'),
    (dict(y=np.zeros([4])), "has a new field 'y'; expected the fields of the"),
    (dict(of=NestedMap()), "lacks the field 'of.text'; expected the fields of"),
  ],
)
def test_what_differs_from_the_first_batch(changes, message):
  with pytest.raises(errors.UserError, match=message):
    _after(GOOD, NestedMap({**GOOD, **changes}))


def test_what_may_differ():
  longer = NestedMap(
    x=np.zeros([2, 7], np.float32),
    of=NestedMap(text=np.array([b'abc', 'd'], object)),
  )
  _after(GOOD, longer)
  unequal = NestedMap(x=np.zeros([4]), table=np.zeros([9]))
  _after(unequal, NestedMap(x=np.zeros([5]), table=np.zeros([9])))


def test_numbers_that_devices_cannot_hold_are_logged_once(caplog):
  data = Given(name='train')
  check = batch_checks.BatchCheck(data)
  small = NestedMap(a=np.array([2**31 - 1, -(2**31)]), b=np.array([2**32 - 1]))
  small.b = small.b.astype(np.uint64)
  with caplog.at_level('WARNING', logger='absl'):
    check(small)
    assert not caplog.records
    for _ in range(2):
      check(NestedMap(a=small.a * 2, b=small.b))
    check = batch_checks.BatchCheck(data)  # Of the next evaluation.
    check(NestedMap(a=small.a * 2, b=small.b))
    check(NestedMap(a=small.a, b=small.b + np.uint64(1)))
  first, second = (record.getMessage() for record in caplog.records)
  assert first.startswith(
    "the field 'a' of the dataset 'train' has numbers from -4294967296 to"
    ' 4294967294, which are other numbers in the int32 of the devices'
  )
  assert second.startswith("the field 'b'") and 'uint32' in second


def test_a_field_may_have_rows_without_numbers():
  check = batch_checks.BatchCheck(Given(name='train'))
  check(NestedMap(ids=np.zeros([2, 0], np.int64)))


_MINE = """
import sys
import numpy as np
from pax_compat.nested_map import NestedMap
from tests.pax_compat.trainer import lines

class Mine(lines.Rows):
  what: str = ''

  def get_next(self):
    batch = super().get_next()
    if self.read == 3:
      if self.what == 'exit':
        sys.exit('no more')
      if self.what == 'list':
        batch.x = [1.0]
      if self.what == 'raise':
        raise KeyError('seqlen')
      if self.what == 'nothing':
        return None
    return batch
"""


@pytest.fixture(scope='module')
def mine(tmp_path_factory):
  """Returns the module of a user."""
  path = tmp_path_factory.mktemp('mine') / 'my_input.py'
  path.write_text(_MINE)
  spec = importlib.util.spec_from_file_location('my_input', path)
  module = importlib.util.module_from_spec(spec)
  sys.modules['my_input'] = module
  spec.loader.exec_module(module)
  yield module
  del sys.modules['my_input']


def test_an_error_names_input_step_and_line(mine):
  for what, expected in (
    (
      'list',
      "the field 'x' is a list of float; expected a NumPy array [B, ...",
    ),
    (
      'exit',
      "SystemExit('no more') was raised by batch 3 of the input 'train'",
    ),
    ('raise', 'seqlen'),
    ('nothing', 'get_next of train returned a NoneType; expected a NestedMap'),
  ):
    data = mine.Mine(name='train', what=what)
    check = batch_checks.BatchCheck(data)
    made = pipeline.Pipeline(
      [pipeline.read(data.get_next_padded), pipeline.check_arrays(check)],
      sources.Source(data, first_step=11),
    )
    made.next()
    made.next()
    with pytest.raises((errors.UserError, KeyError)) as e:
      made.next()
    text = '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())])
    assert expected in text
    where = f"batch 3 of the input 'train', for step 13 ({mine.__file__}:10)"
    assert where in text
    if what == 'exit':
      at = errors.location_in_user_code(e.value)
      assert at == f'{mine.__file__}:14'


class Broken(lines.Lines):
  """Has an eval dataset or a decoder that fails.

  Attributes:
    what: what fails.
  """

  what = ''

  def task(self):
    task = super().task()
    task.model = BrokenLine.config(what=self.what)
    return task

  def datasets(self):
    train, dev = super().datasets()
    if self.what == 'empty':
      dev.end = 0
    return [train, dev]


class BrokenLine(lines.Line):
  what: str = ''

  def compute_loss(self, predictions, input_batch):
    metrics, rows = super().compute_loss(predictions, input_batch)
    if self.do_eval and self.what == 'metric':
      metrics.wrong = 'text'
    return metrics, rows

  def decode(self, input_batch):
    if self.what == 'decoder':
      input_batch.seqlen  # noqa: B018 (there is no such field)
    return super().decode(input_batch)


@pytest.mark.parametrize(
  ('what', 'kind', 'message', 'where'),
  [
    ('empty', errors.UserError, "the dataset 'dev' has no batch", 'evaluation'),
    ('metric', errors.UserError, "the metric 'wrong' of the", 'evaluation'),
    ('decoder', AttributeError, 'seqlen', 'decoding'),
  ],
)
def test_evaluations_are_checked_before_the_first_step(
  tmp_path, what, kind, message, where
):
  experiment = Broken(lines.task(decode_interval_steps=4, num_train_steps=4))
  experiment.what = what
  with pytest.raises(kind, match=message) as e:
    experiment.train(tmp_path)
  text = '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())])
  name = 'few' if where == 'decoding' else 'dev'
  assert f'in the {where} of {name!r}, which is checked before the' in text
  assert not experiment.printed


@pytest.mark.slow
@pytest.mark.parametrize(
  ('changed', 'words'),
  [
    (
      {'train': {'fail_at': 1, 'returned': 'list'}},
      ['get_next of train returned a list; expected', "1 of the input 'train'"],
    ),
    (
      {'train': {'fail_at': 3, 'returned': 'None'}},
      ['train returned a NoneType', "batch 3 of the input 'train', for step 3"],
    ),
    (
      {'dev': {'fail_at': 1, 'returned': 'ids'}},
      ['fields of the batch have different numbers of rows', 'ids int32[3,8]'],
    ),
  ],
)
def test_a_run_names_the_input_and_the_batch(tmp_path, changed, words):
  done = trainer_runs.forked(
    *trainer_runs.flags(tmp_path / 'run'), settings=changed
  )
  trainer_runs.assert_mistake(done, *words)
