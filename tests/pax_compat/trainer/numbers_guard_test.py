"""Tests of numbers that are not finite, in runs."""

import re

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import run_options
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines


class Damaged(lines.Rows):
  """Some of its batches have a number that is not finite.

  Attributes:
    bad: the numbers of these batches.
    field: where it is, in row 2.
    scale: of `x` of these batches; None for a NaN.
  """

  bad: tuple[int, ...] = ()
  field: str = 'x'
  scale: float | None = None

  def get_next(self):
    batch = super().get_next()
    batch.key = np.array([f'row {i}' for i in range(4)])
    if self.read in self.bad:
      if self.scale is None:
        batch[self.field] = batch[self.field].copy()
        batch[self.field][2] = np.nan
      else:
        batch.x = batch.x * np.float32(self.scale)
    return NestedMap(batch)


class Experiment(lines.Lines):
  """Trains on damaged data.

  Attributes:
    fields: of the input.
  """

  fields = {}

  def datasets(self):
    train = Damaged.config(name='train', is_training=True, **self.fields)
    return [train, super().datasets()[1]]


def _train(folder, fields, *, learner=None, train=None, **options):
  task = lines.task(
    **dict(num_train_steps=12, save_interval_steps=4, eval_interval_steps=0)
    | (train or {})
  )
  task.train.learner.set(**learner or {})
  experiment = Experiment(task)
  experiment.fields = fields
  experiment.train(folder, options=run_options.RunOptions(**options))
  return experiment


@pytest.mark.parametrize('field', ['x', 'eval_sample_weights'])
@pytest.mark.parametrize('skips', [True, False])
def test_a_run_stops_at_a_loss_that_is_not_finite(tmp_path, field, skips):
  """Whether the learner leaves out the step or not."""
  with pytest.raises(errors.UserError) as e:
    _train(
      tmp_path,
      dict(bad=(8,), field=field),
      learner=dict(enable_skip_step_on_gradient_anomalies=skips),
    )
  text = str(e.value)
  assert re.match(
    'step 8: the loss is nan and the gradient norm is nan; before: step 5 loss'
    r' [\d.]+, gradient norm [\d.]+, step 6 .*, step 7 ',
    text,
  )
  assert (
    f"Its batch, of the input 'train', has numbers that are not finite: the"
    f" field '{field}' has some in rows 2 (key row 2). The last good checkpoint"
    ' is that of step 4. --on_nan=skip leaves out' in text
  )
  assert trainer_runs.steps_saved(tmp_path) == [4]


def test_steps_are_left_out(tmp_path, caplog):
  learner = dict(enable_skip_step_on_gradient_anomalies=False)
  _train(tmp_path, dict(bad=(3, 4, 8)), learner=learner, on_nan='skip')
  for step in (3, 4, 8):
    assert f'step {step}: the loss is nan' in caplog.text
  assert caplog.text.count('The step is left out (--on_nan=skip)') == 3
  assert trainer_runs.steps_saved(tmp_path) == [4, 8, 12]
  # As if these batches had not been there.
  w, b = np.full(lines.DIMS, 0.5), 0.0
  for step in range(12):
    if step + 1 not in (3, 4, 8):
      batch = lines.rows(step * lines.BATCH)
      error = batch.x @ w + b - batch.y
      w = w - 0.1 * 2 * batch.x.T @ error / lines.BATCH
      b = b - 0.1 * 2 * np.mean(error)
  state = trainer_runs.state(tmp_path, 12)
  np.testing.assert_allclose(state['mdl_vars.params.w'], w, rtol=1e-5)
  assert state['step'] == 12
  with pytest.raises(errors.UserError, match='So were 100 steps in a row'):
    _train(
      tmp_path / 'all',
      dict(bad=range(5, 200)),
      on_nan='skip',
      train=dict(num_train_steps=200),
    )


def test_what_is_not_finite_is_never_saved(tmp_path, caplog):
  learner = dict(enable_skip_step_on_gradient_anomalies=False)
  with pytest.raises(errors.UserError) as e:
    _train(tmp_path, dict(bad=(6,)), learner=learner, on_nan='warn')
  for step in (6, 7, 12):
    assert f'step {step}: the loss is nan' in caplog.text
  assert 'step 8: the state has numbers that are not finite' in caplog.text
  assert str(e.value) == (
    'step 12: the state has numbers that are not finite, in mdl_vars.params.b,'
    ' mdl_vars.params.w; it is not saved. The last good checkpoint is that of'
    ' step 4'
  )
  assert trainer_runs.steps_saved(tmp_path) == [4]


def test_a_gradient_that_the_learner_leaves_out(tmp_path, caplog):
  """The loss is finite, and the norm of the gradient overflows."""
  _train(tmp_path, dict(bad=(6,), scale=1e10))
  assert 'step 6: the gradient norm is inf; before: ' in caplog.text
  assert 'All numbers of its batch are finite. The learner leaves' in (
    caplog.text
  )
  assert trainer_runs.steps_saved(tmp_path) == [4, 8, 12]


def test_a_spike_of_the_loss(tmp_path, caplog):
  fields = dict(bad=(30,), scale=100.0)
  train = dict(num_train_steps=40, save_interval_steps=10)
  _train(tmp_path / 'one', fields, train=train)
  with pytest.raises(errors.UserError, match='step 30: the loss is .* times'):
    _train(tmp_path / 'two', fields, train=train, loss_spike_factor=50.0)
  assert trainer_runs.steps_saved(tmp_path / 'two') == [10, 20]
  _train(
    *(tmp_path / 'three', fields),
    train=train,
    loss_spike_factor=50.0,
    on_nan='warn',
  )
  assert '(--loss_spike_factor)' in caplog.text
