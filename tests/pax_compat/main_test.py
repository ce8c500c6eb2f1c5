"""Tests of `python -m pax_compat.main`: commands and invalid flags."""

import importlib.metadata
import shutil
import signal
import subprocess
import sys

import pytest

from tests.pax_compat import trainer_runs
from tests.pax_compat.launching import flags_of_devices

MODULE = 'tests.pax_compat.counting_experiment'


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """Returns the folder of a finished run of `Counting`."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  trainer_runs.train(folder)
  return folder


# Answers.


def test_importing_main_imports_nothing_slow():
  done, imported = trainer_runs.traced('-c', 'import pax_compat.main')
  assert done.returncode == 0
  assert 'absl' in imported
  assert not imported & trainer_runs.SLOW_TO_IMPORT


def test_help():
  done, imported = trainer_runs.traced('-m', 'pax_compat.main', '--help')
  assert done.returncode == 0
  for flag in ('--exp', '--job_log_dir', '--[no]list', '--lingvo_source'):
    assert flag in done.stdout
  assert not imported & trainer_runs.SLOW_TO_IMPORT


@pytest.mark.parametrize('pattern', [(), ('lm.python_docs.*',)])
def test_list(pattern):
  done, imported = trainer_runs.traced(
    '-m', 'pax_compat.main', '--list', *pattern
  )
  assert done.returncode == 0
  assert trainer_runs.LISTED_LINGVO in trainer_runs.listed(done)
  assert not imported & trainer_runs.SLOW_TO_IMPORT


def test_list_after_imports():
  done, imported = trainer_runs.traced(
    *('-m', 'pax_compat.main', '--list', f'--import_modules={MODULE}')
  )
  assert done.returncode == 0
  lines = trainer_runs.listed(done)
  assert f'{MODULE}.Counting Counts up, in a decoder of one layer.' in lines
  assert f'{MODULE}.CountingTwice Counts up again, under another name.' in lines
  assert trainer_runs.LISTED_LINGVO in lines
  assert 'The second line' not in done.stdout
  assert not imported & {'tensorflow', 'lingvo'}


def test_list_of_some():
  done = trainer_runs.main('--list', '*.Counting', f'--import_modules={MODULE}')
  assert done.returncode == 0
  assert done.stdout == (
    f'{MODULE}.Counting  Counts up, in a decoder of one layer.\n'
  )
  trainer_runs.assert_mistake(
    trainer_runs.main('--list', 'lm.pyton*'),
    'no experiment matches',
    trainer_runs.LINGVO,
  )


def test_version():
  done = trainer_runs.main('--version')
  assert done.returncode == 0
  assert done.stdout.startswith('pax-compat ')
  assert f'\n  jax {importlib.metadata.version("jax")}\n' in done.stdout


@pytest.mark.parametrize('flag', ['--list', '--help'])
def test_a_closed_pipe_is_not_an_error(flag):
  command = f'{sys.executable} -m pax_compat.main {flag} | head -c 9'
  script = f'{command}; echo " ${{PIPESTATUS[0]}}"'
  done = subprocess.run(
    ['bash', '-c', script], capture_output=True, text=True, check=True
  )
  assert done.stderr == ''
  # The pipe may have taken all of it before it was closed.
  assert done.stdout.rpartition(' ')[2] in ('0\n', f'{128 + signal.SIGPIPE}\n')


# Mistakes in the flags.


def test_unknown_experiment_imports_nothing_slow(tmp_path):
  done, imported = trainer_runs.traced(
    *('-m', 'pax_compat.main', '--exp=lm.python_docs.TransformerLmTin'),
    f'--job_log_dir={tmp_path / "run"}',
  )
  assert done.returncode == 2
  assert 'Traceback' not in done.stderr
  assert f'did you mean: {trainer_runs.LINGVO}' in done.stderr
  assert not imported & trainer_runs.SLOW_TO_IMPORT
  assert not list(tmp_path.iterdir())


def test_unknown_experiment_has_similar_names_only(tmp_path):
  done = trainer_runs.main(
    f'--exp={MODULE}.Contin',
    f'--job_log_dir={tmp_path / "run"}',
    f'--import_modules={MODULE}',
  )
  near = f'{MODULE}.Counting, {MODULE}.CountingTwice?'
  trainer_runs.assert_mistake(done, f"'{MODULE}.Contin'; did you mean: {near}")
  [line] = [s for s in done.stderr.splitlines() if 'did you mean' in s]
  assert line.partition('did you mean')[2].count(', ') == 1
  assert not list(tmp_path.iterdir())


INVALID_FLAGS = {
  'a topology without its action': (
    ['--exp=x', '--topology=v4:2x2x1'],
    ['--topology is for --compile_only; expected both, or neither'],
  ),
  'slices without their action': (
    ['--exp=x', '--check', '--num_slices=2'],
    ['--num_slices is for --compile_only'],
  ),
  'two actions': (
    ['--exp=x', '--check', '--compile_only'],
    ['--check and --compile_only are given'],
  ),
  'unknown': (['--job_log_dirr=x'], ["'job_log_dirr'", 'job_log_dir ?']),
  'no value that it takes': (
    ['--translation=magic'],
    ['--translation=magic', 'auto|native|bridge'],
  ),
  'nothing': ([], ['--exp is required', '--list']),
  'no folder': (['--exp=x.Y'], ['--job_log_dir is required']),
  'no name': (['--job_log_dir=x'], ['--exp is required']),
  'stray': (
    ['--exp=x.Y', '--job_log_dir=x', 'model_dims=3'],
    ['model_dims=3: expected flags only'],
  ),
  'a bucket': (
    ['--exp=x.Y', '--job_log_dir=s3://b/run'],
    ['s3://b/run cannot be used', 'expected gs://BUCKET/FOLDER, or a path'],
  ),
  'a job of Pax': (
    ['--exp=x.Y', '--job_log_dir=x', '--mode=tf_data_service_worker'],
    ['--mode=tf_data_service_worker'],
  ),
  'no module': (
    ['--exp=x.Y', '--job_log_dir=x', '--import_modules=numpi.such'],
    ['module numpi.such not found: numpi is missing; did you mean: numpy'],
  ),
  'no checkout': (
    ['--exp=x.Y', '--job_log_dir=x', '--lingvo_source=/no/such'],
    ['/no/such is not a source checkout of Lingvo', 'does not exist'],
  ),
}


INVALID_FLAGS_OF_ANY_COMMAND = {
  'one of three': (
    ['--num_hosts=2'],
    '--server_addr and --host_idx are missing',
  ),
  'no study': (['--tune=attr:A=1,2'], '--tune is for a study'),
  'a study of several hosts': (
    ['--study=s', '--multiprocess'],
    '--multiprocess is not supported with --study',
  ),
  'a minimum without its rule': (
    ['--study=s', '--tune_min_trials=2'],
    '--tune_min_trials is for --tune_stopping=median',
  ),
  'a study without trials': (
    ['--study=s', '--num_trials=0'],
    '--num_trials is 0; expected at least 1',
  ),
  'a port': (['--jax_profiler_port=0'], '--jax_profiler_port is 0'),
}


@pytest.mark.parametrize('case', INVALID_FLAGS_OF_ANY_COMMAND)
def test_invalid_flags_of_any_command(tmp_path, monkeypatch, case):
  arguments, words = INVALID_FLAGS_OF_ANY_COMMAND[case]
  monkeypatch.chdir(tmp_path)
  folder = f'--job_log_dir={tmp_path / "run"}'
  for command in (['--check'], ['--compile_only', '--topology=v4:2x2x1'], []):
    done = trainer_runs.main('--exp=x.Y', folder, *command, *arguments)
    trainer_runs.assert_mistake(done, words)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('case', INVALID_FLAGS)
def test_invalid_flags(tmp_path, monkeypatch, case):
  arguments, words = INVALID_FLAGS[case]
  monkeypatch.chdir(tmp_path)
  done = trainer_runs.main(*arguments)
  trainer_runs.assert_mistake(done, *words)
  assert '<frozen' not in done.stderr
  assert not list(tmp_path.iterdir())


def test_set_changes_fields_of_the_experiment(tmp_path):
  counting = f'--exp={MODULE}.Counting', f'--import_modules={MODULE}'
  done = trainer_runs.main(
    *counting,
    f'--job_log_dir={tmp_path / "run"}',
    '--set=task.train.num_train_steps=2',
    '--set=task.train.learner.optimizer.learning_rate=1e-3',
  )
  assert done.returncode == 0, done.stderr
  config = (tmp_path / 'run' / 'config.txt').read_text().splitlines()
  assert 'task.train.num_train_steps = 2' in config
  assert 'task.train.learner.optimizer.learning_rate = 0.001' in config


def test_an_invalid_set_flag(tmp_path):
  done = trainer_runs.main(
    f'--exp={MODULE}.Counting',
    f'--import_modules={MODULE}',
    f'--job_log_dir={tmp_path / "run"}',
    '--set=task.train.num_trian_steps=2',
  )
  trainer_runs.assert_mistake(
    done, 'num_trian_steps', 'did you mean: num_train_steps'
  )
  assert not list(tmp_path.iterdir())


def test_a_checkout_without_params(tmp_path):
  done = trainer_runs.main(
    '--exp=lm.words.Model', '--job_log_dir=x', f'--lingvo_source={tmp_path}'
  )
  trainer_runs.assert_mistake(done, str(tmp_path), 'lingvo/tasks/<task>/params')


@pytest.mark.parametrize('mentions', ['experiment_registry', 'model_registry'])
def test_a_module_that_raises(tmp_path, mentions):
  module = tmp_path / 'my_broken_module.py'
  module.write_text(f'# {mentions}\n\n1 / 0\n')
  if mentions == 'model_registry':
    module.write_text(f'# lingvo.{mentions}\n\n1 / 0\n')
  done = trainer_runs.main(
    '--import_modules=my_broken_module',
    *('--exp=my_broken_module.Model', f'--job_log_dir={tmp_path / "run"}'),
    PYTHONPATH=f'{trainer_runs.ROOT}:{tmp_path}',
  )
  trainer_runs.assert_mistake(done, f'{module}:3', 'ZeroDivisionError')
  assert not (tmp_path / 'run').exists()


def test_an_error_in_a_users_module_has_its_location(tmp_path):
  module = tmp_path / 'my_mistaken_module.py'
  module.write_text(_MISTAKEN)
  done = trainer_runs.main(
    '--import_modules=my_mistaken_module',
    *('--exp=my_mistaken_module.Mine', f'--job_log_dir={tmp_path / "run"}'),
    PYTHONPATH=f'{trainer_runs.ROOT}:{tmp_path}',
  )
  line = _MISTAKEN.splitlines().index('    task.trian = None') + 1
  trainer_runs.assert_mistake(
    done, "SingleTask has no field 'trian'; did you mean: train", f'at {module}'
  )
  assert f'{module}:{line}' in done.stderr


_MISTAKEN = """
from pax_compat import base_experiment, experiment_registry, tasks_lib

@experiment_registry.register
class Mine(base_experiment.BaseExperiment):

  def task(self):
    task = tasks_lib.SingleTask.config()
    task.trian = None
    return task

  def datasets(self):
    return []
"""


_WITHOUT_ADAPTORS = """
import importlib.metadata
import sys

installed = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **params: [
  entry for entry in installed(**params) if 'adaptors' not in entry.value
]
from pax_compat import main
main.run()
"""


def test_without_adaptors_their_flags_do_not_exist():
  done = trainer_runs.python(
    *('-c', _WITHOUT_ADAPTORS, '--exp=x.Y', '--job_log_dir=x'),
    '--translation=native',
  )
  trainer_runs.assert_mistake(done, "Unknown command line flag 'translation'")
  done = trainer_runs.python('-c', _WITHOUT_ADAPTORS, '--helpfull')
  assert done.returncode == 0, done.stderr
  assert '--exp' in done.stdout and '--translation' not in done.stdout


@pytest.mark.slow
def test_a_quiet_run_has_a_log(tmp_path):
  folder = tmp_path / 'run'
  done = trainer_runs.forked(*trainer_runs.flags(folder, '--quiet'))
  assert done.returncode == 0, done.stderr
  assert done.stdout == ''
  assert 'evaluated' not in done.stderr
  log = (folder / 'log.txt').read_text()
  assert ' I run] step 12/12  loss ' in log
  assert "evaluated 'dev' on" in log


# Mistakes with the folder of a run.


def _copied(finished, tmp_path):
  """Returns a copy of a run's folder, and what is in it."""
  folder = shutil.copytree(finished, tmp_path / 'run')
  return folder, trainer_runs.contents(folder)


def test_names_of_flags_in_lingvo(tmp_path, finished):
  folder, before = _copied(finished, tmp_path)
  done = trainer_runs.main(
    f'--model={trainer_runs.COUNTING}', f'--logdir={folder}'
  )
  assert done.returncode == 0, done.stderr
  assert 'all 12 steps are done already' in done.stdout
  assert trainer_runs.contents(folder) == before


def test_a_folder_of_another_experiment(tmp_path, finished):
  folder, before = _copied(finished, tmp_path)
  other = f'{MODULE}.CountingTwice'
  done = trainer_runs.main(f'--exp={other}', f'--job_log_dir={folder}')
  trainer_runs.assert_mistake(
    done, str(folder), f'{trainer_runs.COUNTING}, not to {other}'
  )
  assert trainer_runs.contents(folder) == before


def test_a_folder_that_is_a_file(tmp_path):
  file = tmp_path / 'run'
  file.write_text('mine')
  done = trainer_runs.main(
    f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={file}'
  )
  trainer_runs.assert_mistake(
    done, f'--job_log_dir={file}', 'expected a folder'
  )
  assert file.read_text() == 'mine'


def test_damaged_checkpoints(tmp_path, finished):
  folder = shutil.copytree(finished, tmp_path / 'run')
  for step in (10, 12):
    trainer_runs.truncate(folder, step)
  before = trainer_runs.contents(folder)
  done = trainer_runs.main(
    f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={folder}'
  )
  newest = folder / 'checkpoints' / '12'
  trainer_runs.assert_mistake(done, 'none of the 2 checkpoints', f'{newest}/')
  assert trainer_runs.contents(folder) == before


def test_a_checkpoint_of_other_dimensions(tmp_path, finished):
  folder, before = _copied(finished, tmp_path)
  done = trainer_runs.main(
    *(f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={folder}'),
    settings={'model_dims': 12, 'num_train_steps': 20},
  )
  trainer_runs.assert_mistake(
    done,
    'checkpoint 12',
    'mdl_vars.params.lm.softmax.logits_ffn.linear.w: stored float32[8,16],'
    ' wanted float32[12,16]',
  )
  assert trainer_runs.contents(folder) == before


def test_a_batch_that_the_devices_do_not_divide(tmp_path, finished):
  folder = tmp_path / 'run'
  done = trainer_runs.main(
    *(f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={folder}'),
    XLA_FLAGS=flags_of_devices(3),
  )
  assert done.returncode == 0, done.stderr
  assert 'each has 1 padding row(s) of weight 0\n' in done.stdout
  # Equal to a run on one device, up to rounding.
  want = trainer_runs.losses(finished)
  assert trainer_runs.losses(folder) == pytest.approx(want, rel=1e-4)


def test_a_setting_that_no_check_refuses(tmp_path):
  setting = (
    '--set=task.model.lm_tpl.softmax_tpl.feed_forward_tpl.weight_init=-1'
  )
  done = trainer_runs.main(
    *(f'--exp={MODULE}.Counting', f'--import_modules={MODULE}', setting),
    f'--job_log_dir={tmp_path / "run"}',
  )
  trainer_runs.assert_mistake(
    done,
    f'the experiment cannot be set up with {setting}: TypeError: ',
    'base_layer.py:',
  )
  assert not list(tmp_path.iterdir())
