"""Tests of trial runs, in the processes in which users start them."""

import pytest

from adaptors.lingvo_registry import lookup
from adaptors.migrate.trial import reduced, trials
from pax_compat.experiment_sources import SourceOptions
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

_MODULE = 'tests.adaptors.migrate.user_experiments'


def _tried(name, *modules):
  return trials.run(
    name,
    SourceOptions(import_modules=modules),
    steps=3,
    timeout_seconds=300,
  )


def test_a_reduced_experiment_differs_in_sizes_and_data_only():
  from adaptors.experiments import lingvo_source

  lookup.import_module(_MODULE)
  name = f'{_MODULE}.Native'
  experiment = lingvo_source.find(name, SourceOptions())
  made = reduced.resolve(experiment, name, steps=3)
  assert made.task.train.num_train_steps == 3
  assert made.task.model.cls is experiment.task().model.cls
  [train, held_out] = made.datasets
  assert train.is_training and not held_out.is_training
  batch = held_out.Instantiate().get_next_padded()
  assert batch.ids.shape == (4, 16)


def test_a_crash_is_a_problem(tmp_path, monkeypatch):
  (tmp_path / 'crashing_module.py').write_text(
    '"""For the experiment_registry."""\nimport os\n'
    'print("about to end", flush=True)\nos.abort()'
  )
  monkeypatch.syspath_prepend(tmp_path)
  tried = _tried('lm.No.Matter', 'crashing_module')
  assert tried.seconds is None
  assert tried.problem == 'its process was ended by SIGABRT: about to end'


@pytest.mark.slow
def test_trials_that_run_and_that_fail():
  native = _tried(f'{_MODULE}.Native', _MODULE)
  assert not native.problem
  assert len(native.losses) == 3 and len(native.eval_losses) == 1
  # Batches are random, so the loss need not fall.
  assert len(set(native.losses)) == 3
  assert all(2 < loss < 8 for loss in native.losses)
  failed = _tried(f'{_MODULE}.Uncompilable', _MODULE)
  assert 'AsString' in failed.problem and not failed.losses
  several = _tried(f'{_MODULE}.Several', _MODULE)
  assert not several.problem and len(several.eval_losses) == 2
