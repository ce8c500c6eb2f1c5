"""Fields that stay on the host reach models and metrics, row by row."""

import json

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.trainer.evaluating import decoding, evaluation
from tests.on_processes import evaluations
from tests.pax_compat import launching
from tests.pax_compat.trainer import lines, named_rows


def test_rows_of_two_processes_keep_their_host_fields(tmp_path):
  """Their rows alternate in a batch, or are replicas."""
  launching.run_on_processes(
    evaluations.train_on_host_fields, 2, devices=2, args=[tmp_path]
  )
  for name in ('interleaved', 'repeated'):
    found = lines.metrics(tmp_path / name, 'eval_dev')
    decoded = lines.metrics(tmp_path / name, 'decode_few')
    assert found[2, 'num_batches'] == (2 if name == 'interleaved' else 3)
    for count, values, prefix in (
      (10, found, 'scoring_eval'),
      (6, decoded, 'decoder'),
    ):
      assert values[2, f'{prefix}/examples'] == count
      assert values[2, f'{prefix}/different'] == count
      assert values[2, f'{prefix}/right'] == 1
    files = (tmp_path / name / 'eval_out' / 'dev').iterdir()
    written = [line for file in files for line in _lines(file)]
    assert len(written) == 10
    for line in written:
      number = line['host_fields']['number']
      assert line['host_fields']['names.text'] == f'é{number}'
      np.testing.assert_array_equal(line['x'], lines.rows(number, count=1).x[0])
    [file] = (tmp_path / name / 'decode_out' / 'few').iterdir()
    counted = {x['key']: x['value']['x'] for x in _lines(file)}
    for number in range(6):
      want = lines.rows(number, count=1).x[0]
      np.testing.assert_array_equal(counted[f'é{number}'], want)
    train = lines.metrics(tmp_path / name, 'train')
    assert {step for step, _ in train} == {1, 2}


def _lines(file):
  return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope='module')
def made():
  return lines.make_program(lines.task())


def _program(**model):
  task = lines.task()
  task.model = named_rows.Echo.config(**model)
  return lines.make_program(task)


def _measured(measure, made, **fields):
  data = named_rows.NamedRows.config(
    name='few', **dict(end=6, reset_for_eval=True) | fields
  ).Instantiate()
  return measure(
    data,
    task_program=made,
    mdl_vars=made.init_state(lines.rows(0)).mdl_vars,
  )


def test_only_inputs_with_example_metrics_are_asked(made, monkeypatch):
  step = made.eval_rows_step
  monkeypatch.setitem(vars(made), 'eval_rows_step', pytest.fail)
  found = _measured(evaluation.evaluate, made, kinds=('decode',))
  assert not [name for name in found if name.startswith('scoring_eval')]
  monkeypatch.setitem(vars(made), 'eval_rows_step', step)
  again = _measured(evaluation.evaluate, made)
  assert again['scoring_eval/examples'] == 6
  assert again['loss'] == found['loss']


@pytest.mark.parametrize(
  ('pairs', 'message'),
  [
    ('one', r'few: .* 1 \(key, value\) pairs of a batch of 4 rows, .* 4 have'),
    ('counted', None),
  ],
)
def test_as_many_pairs_as_rows(tmp_path, pairs, message):
  made = _program(pairs=pairs)

  def decode(data, **fields):
    return decoding.decode(data, path=tmp_path / 'x.jsonl', **fields)

  if message is None:
    assert _measured(decode, made)['decoder/examples'] == 6
    return
  with pytest.raises(errors.UserError, match=message):
    _measured(decode, made)
  # The number does not matter without example metrics.
  assert _measured(decode, made, kinds=())['num_decode_steps'] == 2


class Scarce(named_rows.NamedRows):
  """Has fewer names than rows."""

  def get_next(self):
    batch = super().get_next()
    batch.names.raw = batch.names.raw[1:]
    return batch


def test_a_host_field_with_another_number_of_rows(made):
  data = Scarce.config(end=6, reset_for_eval=True).Instantiate()
  with pytest.raises(
    errors.UserError, match=r"'names.raw' .* \[3\]; expected 4 rows"
  ):
    evaluation.evaluate(
      data,
      task_program=made,
      mdl_vars=made.init_state(lines.rows(0)).mdl_vars,
    )


class Failing(named_rows.NamedRows):
  def example_metrics(self, kind, examples):
    raise ArithmeticError('no such metric')


def test_an_error_of_the_metrics_is_an_error_of_the_evaluation(made):
  data = Failing.config(end=6, reset_for_eval=True).Instantiate()
  with pytest.raises(ArithmeticError, match='no such metric'):
    evaluation.evaluate(
      data,
      task_program=made,
      mdl_vars=made.init_state(lines.rows(0)).mdl_vars,
    )


class Named(named_rows.Echo):
  """Has an output of the reserved name."""

  def decode(self, input_batch):
    weighted, decoded, clu = super().decode(input_batch)
    return weighted, {**decoded, 'host_fields': decoded.y}, clu


def test_a_reserved_name(tmp_path):
  task = lines.task()
  task.model = Named.config()
  with pytest.raises(errors.UserError, match="have the field 'host_fields'"):
    _measured(
      lambda data, **fields: decoding.decode(
        data, path=tmp_path / 'x.jsonl', **fields
      ),
      lines.make_program(task),
    )
