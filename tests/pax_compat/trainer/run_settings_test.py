"""The effects of an experiment's settings on its runs, in this process."""

import contextlib
import functools
import gc
import itertools
import re
import types

import jax
import numpy as np
import pytest

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.layers import models
from pax_compat.metrics import progress
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.reporting import progress_report
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines, sequences, tiny


def _losses(folder):
  found = lines.metrics(folder, 'train')
  return [value for (_, name), value in found.items() if name == 'loss']


def test_steps_are_those_of_gradient_descent(tmp_path):
  lines.train(tmp_path, num_train_steps=5, summary_interval_steps=1)
  want, _, _ = lines.losses(5, w=np.full(lines.DIMS, 0.5), b=0.0)
  np.testing.assert_allclose(_losses(tmp_path), want, rtol=1e-5)


@pytest.mark.parametrize('limit', [0, 1, 5])
def test_steps_in_flight_do_not_change_results(tmp_path, limit):
  lines.train(
    tmp_path,
    num_train_steps=5,
    summary_interval_steps=1,
    max_inflight_steps=limit,
  )
  want, _, _ = lines.losses(5, w=np.full(lines.DIMS, 0.5), b=0.0)
  np.testing.assert_allclose(_losses(tmp_path), want, rtol=1e-5)


def test_checkpoints_at_intervals_and_at_the_end(tmp_path):
  lines.train(
    tmp_path, num_train_steps=7, save_interval_steps=2, save_max_to_keep=2
  )
  assert trainer_runs.steps_saved(tmp_path) == [6, 7]


@pytest.mark.parametrize(
  ('seconds', 'steps'), [(1e-6, [1, 2, 3]), (1e6, [3]), (None, [3])]
)
def test_checkpoints_by_the_clock(tmp_path, seconds, steps):
  lines.train(
    tmp_path,
    num_train_steps=3,
    save_interval_steps=None,
    save_interval_seconds=seconds,
  )
  assert trainer_runs.steps_saved(tmp_path) == steps


@pytest.mark.parametrize(
  ('rule', 'steps'),
  [
    ({'save_keep_interval_duration': '0s'}, [1, 2, 3, 4, 5]),
    ({'save_keep_interval_steps': 2}, [2, 4, 5]),
  ],
)
def test_checkpoints_that_are_kept_for_good(tmp_path, rule, steps):
  lines.train(
    tmp_path,
    num_train_steps=5,
    save_interval_steps=1,
    save_max_to_keep=1,
    **rule,
  )
  assert trainer_runs.steps_saved(tmp_path) == steps


@pytest.mark.parametrize(('capture', 'num_steps'), [(0, 2), (3, 1)])
def test_a_profile_while_training(tmp_path, capture, num_steps):
  lines.train(
    tmp_path,
    num_train_steps=6,
    profiler_capture_step=capture,
    profiler_num_steps=num_steps,
    profiler_min_duration_sec=0.0,
    eval_interval_steps=0,
  )
  [profile] = (tmp_path / 'summaries' / 'train').rglob('*.xplane.pb')
  # The steps that it has are numbered from 1.
  found = [n for n in range(1, 7) if _has_step(profile, n)]
  assert found == [capture + 1 + i for i in range(num_steps)]


@pytest.mark.parametrize('of_host', [True, False])
def test_a_profile_may_contain_python_calls(tmp_path, of_host):
  lines.train(
    tmp_path,
    num_train_steps=2,
    profiler_capture_step=0,
    profiler_num_steps=1,
    profiler_min_duration_sec=0.0,
    profiler_capture_host_profile=of_host,
    eval_interval_steps=0,
  )
  [profile] = (tmp_path / 'summaries' / 'train').rglob('*.xplane.pb')
  data = jax.profiler.ProfileData.from_file(str(profile))
  names = {
    event.name
    for plane in data.planes
    for line in plane.lines
    for event in line.events
  }
  assert any(re.search(r'\bloop.py.* _steps', n) for n in names) == of_host


def test_rates_are_of_the_last_steps(tmp_path, monkeypatch):
  made, rates = progress.Progress, []
  for steps in (1, 10):
    task = lines.task(
      num_train_steps=8,
      summary_interval_steps=8,
      eval_interval_steps=0,
      compute_steps_per_sec_interval_steps=steps,
      async_summary_writing=False,  # A look at the clock for each step.
    )
    # On this clock each step takes longer than the one before.
    clock = functools.partial(next, (i**2 for i in itertools.count()))
    monkeypatch.setattr(
      progress, 'Progress', functools.partial(made, clock=clock)
    )
    lines.Lines(task).train(tmp_path / str(steps))
    found = lines.metrics(tmp_path / str(steps), 'train')
    rates.append(found[8, 'steps_per_second'])
  # From the 10th look at the clock back to the 9th, and to the 3rd.
  assert rates == pytest.approx([1 / (81 - 64), 7 / (81 - 4)])


def _has_step(profile, number):
  data = jax.profiler.ProfileData.from_file(str(profile))
  return any(
    event.name == 'train' and dict(event.stats).get('step_num') == number
    for plane in data.planes
    for line in plane.lines
    for event in line.events
  )


def test_garbage_is_collected_at_its_interval(tmp_path):
  seen = []

  class Watching(lines.Lines):
    def train(self, folder):
      super().train(folder)
      seen.append(gc.isenabled())

  def early_stopping_fn(*unused):
    seen.append(gc.isenabled())
    return False

  for every in (2, 0):
    task = lines.task(
      num_train_steps=2, eval_interval_steps=1, gc_interval_steps=every
    )
    task.early_stopping_fn = early_stopping_fn
    Watching(task).train(tmp_path / str(every))
  assert seen == [False, False, True, True, True, True]


def test_a_progress_line_breaks_the_silence(tmp_path, monkeypatch):
  monkeypatch.setattr(progress_report, '_SECONDS_OF_SILENCE', 0)
  counts = []
  for hook in (False, True):
    run = lines.train(
      tmp_path / str(hook), num_train_steps=5, report_progress_hook=hook
    )
    counts.append(sum('  loss ' in line for line in run.printed))
  assert counts == [2, 5]


def test_the_seed_decides_random_numbers(tmp_path):
  found = []
  for name, seed in (('a', 1), ('b', 1), ('c', 2)):
    task = lines.task(
      model=dict(noise=1.0),
      num_train_steps=3,
      random_seed=seed,
      summary_interval_steps=1,
    )
    lines.Lines(task).train(tmp_path / name)
    found.append(_losses(tmp_path / name))
  assert found[0] == found[1] != found[2]
  assert len(set(found[0])) == 3


class Specs(config_lib.Configurable):
  """Declares specs of batches."""

  rows: int = lines.BATCH

  def get_input_specs(self):
    return NestedMap(
      x=jax.ShapeDtypeStruct([self.rows, lines.DIMS], np.float32),
      y=jax.ShapeDtypeStruct([self.rows], np.float32),
      eval_sample_weights=jax.ShapeDtypeStruct([self.rows], np.float32),
    )


@pytest.mark.parametrize(
  ('rows', 'enforced', 'passes'),
  [(lines.BATCH, True, True), (5, True, False), (5, False, True)],
)
def test_batches_have_the_declared_specs(tmp_path, rows, enforced, passes):
  task = lines.task(num_train_steps=1, enforce_input_specs=enforced)
  experiment = lines.Lines(task)
  experiment.get_input_specs_provider_params = lambda: Specs.config(rows=rows)
  if passes:
    experiment.train(tmp_path / 'run')
    return
  with pytest.raises(
    errors.UserError,
    match=r'enforce_input_specs=False.*\n  eval_sample_weights: expected'
    r' float32\[5\], got float32\[4\]\n  x: expected float32\[5,3\], got',
  ):
    experiment.train(tmp_path / 'run')
  assert not lines.metrics(tmp_path / 'run', 'train')


def test_ids_that_the_model_does_not_know_are_refused(tmp_path):
  data = sequences.Sequences.config(
    name='train', is_training=True, batch_size=4, count=8
  )
  task = tiny.task(num_train_steps=1)
  task.model.lm_tpl.vocab_size = tiny.VOCAB - 2
  experiment = lines.Lines(task)
  experiment.datasets = lambda: [data]
  with pytest.raises(
    errors.UserError, match="'train': .* ids has the id 1[45] .* ids below 14"
  ):
    experiment.train(tmp_path)
  assert not trainer_runs.steps_saved(tmp_path)


def test_an_experiment_is_validated_first(tmp_path):
  def validate(self):
    raise errors.UserError('these two do not go together')

  experiment = lines.Lines(lines.task(num_train_steps=1))
  experiment.validate = types.MethodType(validate, experiment)
  with pytest.raises(errors.UserError, match='do not go together'):
    experiment.train(tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_an_experiment_is_asked_for_its_datasets_once(tmp_path):
  class Counted(lines.Lines):
    asked = 0

    def datasets(self):
      Counted.asked += 1
      return 2 * super().datasets()

  experiment = Counted(lines.task(num_train_steps=1))
  with pytest.raises(errors.UserError, match='several datasets are called'):
    experiment.train(tmp_path)
  assert Counted.asked == 1


def test_an_experiment_that_would_train_otherwise(tmp_path):
  class Partitioned(lines.Lines):
    def partitioner(self):
      return None

  with pytest.raises(errors.UserError, match='Partitioned.partitioner is not'):
    Partitioned(lines.task(num_train_steps=1)).train(tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_required_field_is_named_by_its_full_path(tmp_path):
  task = lines.task(num_train_steps=1)
  task.model = models.LanguageModel.config()
  experiment = lines.Lines(task)
  with pytest.raises(
    errors.UserError, match=r'^task\.model\.lm\.\w+ is required by Trans'
  ):
    experiment.train(tmp_path / 'run')
  task.model = models.ClassificationModel.config()
  with pytest.raises(errors.UserError, match=r'^task\.model\.network_tpl is r'):
    experiment.train(tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_refused_settings_are_found_before_anything_is_built(tmp_path):
  with pytest.raises(
    errors.UserError, match='external_checkpoint_handler .*not s'
  ):
    lines.train(tmp_path / 'run', external_checkpoint_handler='mine')
  assert not (tmp_path / 'run').exists()


def test_inputs_are_split_by_inputs_split_mapping(tmp_path):
  task = lines.task(
    num_train_steps=3,
    summary_interval_steps=1,
    inputs_split_mapping=NestedMap(map_1d=('data',), map_2d=('data', 'mdl')),
  )
  task.model.set(ici_mesh_shape=[1, 1], mesh_axis_names=['data', 'mdl'])
  lines.Lines(task).train(tmp_path)
  want, _, _ = lines.losses(3, w=np.full(lines.DIMS, 0.5), b=0.0)
  np.testing.assert_allclose(_losses(tmp_path), want, rtol=1e-5)


def _compiled_train_steps(caplog) -> int:
  return sum(
    record.getMessage().startswith(
      'Finished XLA compilation of jit(_train_step)'
    )
    for record in caplog.records
  )


@contextlib.contextmanager
def _logged_in_all_threads():
  """As `jax.log_compiles`, which is for one thread."""
  jax.config.update('jax_log_compiles', True)
  try:
    yield
  finally:
    jax.config.update('jax_log_compiles', False)


# A CPU measures nothing.
@pytest.mark.filterwarnings('ignore:PGLE collected an empty trace')
def test_jax_compiles_the_step_again_with_what_it_profiled(tmp_path, caplog):
  """Not a third time, in advance, which it would not profile."""
  with _logged_in_all_threads():
    lines.train(tmp_path / 'plain', num_train_steps=5)
    assert _compiled_train_steps(caplog) == 1
    caplog.clear()
    before = jax.config.jax_pgle_profiling_runs
    jax.config.update('jax_enable_pgle', True)
    jax.config.update('jax_pgle_profiling_runs', 2)
    try:
      lines.train(tmp_path / 'profiled', num_train_steps=5)
    finally:
      jax.config.update('jax_enable_pgle', False)
      jax.config.update('jax_pgle_profiling_runs', before)
  assert _compiled_train_steps(caplog) == 2


def test_a_run_that_is_done_says_what_was_changed(tmp_path, caplog):
  lines.Lines(lines.task(num_train_steps=1)).train(tmp_path)
  assert 'the config differs' not in caplog.text
  again = lines.Lines(lines.task(num_train_steps=1, random_seed=7))
  with caplog.at_level('WARNING', logger='absl'):
    again.train(tmp_path)
  [printed] = again.printed
  assert printed.startswith('all 1 steps are done already')
  assert 'the config differs from that of the last start:' in caplog.text
  assert 'task.train.random_seed = 7' in caplog.text
