"""Lingvo's schedule that decays when an evaluation stops improving."""

import numpy as np
import pytest

from adaptors.checkpoints import mapping, task_metadata
from adaptors.equivalents import lingvo_schedules
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, Report
from pax_compat import errors
from pax_compat.trainer import partitioning, program
from tests.adaptors import small_experiments
from tests.adaptors.translate import parity, tiny_task

_HISTORIES = {
  'stays': [5.0, 4.0, 4.0, 4.0, 4.0, 3.0, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5],
  'creeps': [4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3, 3.2, 3.1, 3.0, 2.9],
  'rounds': [4.0, 3.9999999, 3.9999997, 3.9999996, 3.9999995, 3.9999994],
  'breaks': [float('nan'), 4.0, 3.0, float('nan'), float('nan'), 5.0],
}


def _params(folder, **fields):
  params = tiny_task.schedule('DevBasedSchedule', window=20, decay=0.3)
  params.Set(name='by_dev', min_factor=0.05, **fields)
  return params.Set(
    metric_history=params.metric_history.Copy().Set(
      jobname='eval_dev', logdir=str(folder), local_filesystem=True
    )
  )


def _of_lingvo(params, folder, values):
  """Returns the factor after each evaluation; each is seen by two steps."""
  path = folder / 'eval_dev' / 'log_pplx.history.txt'
  path.parent.mkdir()
  with small_experiments.graph_of_lingvo() as tf, tf.Session() as session:
    schedule = params.Instantiate()
    factor = schedule.Value()
    session.run(tf.global_variables_initializer())
    found = []
    for index, value in enumerate(values):
      with path.open('a', encoding='utf-8') as file:
        file.write(f'{10 * (index + 1)} {value:f}\n')
      session.run(factor)
      found.append(float(session.run(factor)))
  return found


@pytest.mark.parametrize(
  'history,tolerance',
  [
    ('stays', 0.0),
    *(
      pytest.param(history, tolerance, marks=pytest.mark.slow)
      for history in _HISTORIES
      for tolerance in (0.0, 0.15)
    ),
  ],
)
def test_the_factor_is_lingvos(tmp_path, history, tolerance):
  values = _HISTORIES[history]
  params = _params(tmp_path, tolerance=tolerance)
  want = _of_lingvo(params, tmp_path, values)
  config = parity.translate(params)
  assert config.cls is lingvo_schedules.DevBased
  schedule = config.set(split='eval_Dev').Instantiate()
  state, found = schedule.initial_state(), []
  for index, value in enumerate(values):
    measured = {'eval_Dev': {'log_pplx': value}, 'eval_Test': {}}
    state = schedule.next_state(state, 10 * (index + 1), measured)
    found.append(float(schedule.value_of(state)))
  np.testing.assert_allclose(found, want, rtol=1e-6)
  assert (min(found) < 1) == (history != 'creeps')


def test_a_metric_that_is_not_there():
  schedule = lingvo_schedules.DevBased(split='eval_Dev')
  with pytest.raises(errors.UserError, match='eval_Dev does not have'):
    schedule.next_state(
      schedule.initial_state(), 10, {'eval_Dev': {'log_ppl': 1.0}}
    )


def test_lingvos_does_not_read_minimize(tmp_path):
  params = _params(tmp_path)
  params.metric_history.minimize = False
  assert _of_lingvo(params, tmp_path, [3.0, 2.0, 1.0, 0.5])[-1] == 1.0
  report = Report()
  registry.translate(ParamsView(params, 'train.lr_schedule', report))
  assert not report.issues
  [note] = [n for n in report.notes if 'minimize' in n]
  assert 'does not read it' in note


def test_its_state_in_checkpoints():
  params = tiny_task.params(lr_schedule=tiny_task.schedule('DevBasedSchedule'))
  translated = tiny_task.translate(params)
  metadata = task_metadata.of(params, translated)
  batch = tiny_task.batches()[0]
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), batch
  )
  leaves = {
    leaf.path.rpartition('.')[2]: leaf
    for leaf in mapping.leaves_of(made.abstract_state, metadata)
    if '.schedules.' in leaf.path
  }
  # What was best is in Lingvo's history files.
  assert set(leaves) == {'cur_factor', 'ref_step'}
  [name] = leaves['ref_step'].tensors
  assert name.endswith('/ref_step/var')
  [value] = leaves['ref_step'].transform.to_lingvo(np.int32(7))
  assert (value, value.dtype) == (7, np.int64)
