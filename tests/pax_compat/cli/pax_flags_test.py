"""Tests of Pax's flags: effect, always so, or refused."""

import dataclasses
import re

import pytest
from absl import flags
from absl.testing import flagsaver

from pax_compat import errors
from pax_compat.cli import pax_flags, run_flags
from pax_compat.jobs import job_options
from pax_compat.trainer import run_options
from tests import flags_page
from tests.pax_compat import launching, trainer_runs

# All flags of paxml's main.py and of the modules that it imports.
FLAGS_OF_PAX = """
exp job_log_dir mode eval_on_test decode_during_train eval_during_decode
maybe_use_persistence_checkpointing jax_fully_async_checkpoint
exit_after_ondemand_checkpoint tensorstore_use_ocdbt async_timeout_secs
startup_random_jitter_max_secs jax_traceback_filtering_option
decode_output_pickle checkpoint_todelete_subdir restore_checkpoint_dir
restore_checkpoint_step globally_use_hardware_rng jax_profiler_port
enable_auto_sharding enable_checkpoint_saving enforce_restore_shape_check study
controller_mode tuner_group metrics_from num_trials pythia_port tfds_data_dir
multiprocess_gpu server_addr num_hosts host_idx fdl fdl_config fdl_config_file
fdl_set fdl_help enable_summary_writer pmap_use_tensorstore
pax_only_aggregate_summaries tf_data_service_port
tf_data_service_dispatcher_address tf_data_service_worker_address
tf_data_service_data_transfer_protocol tf_data_service_data_transfer_address
tf_data_service_work_dir tf_data_service_fault_tolerant_mode
tf_data_service_worker_addresses tf_data_service_address
""".split()
# A value of each refused flag that is not Pax's default.
_GIVEN = {
  'controller_mode': 'primary',
  'metrics_from': 'train',
  'pythia_port': 1,
}


@pytest.fixture(autouse=True)
def parsed():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


def test_the_page_is_of_the_flags():
  """`python -m tests.flags_page` writes it."""
  page = flags_page.PAGE.read_text('utf-8')
  assert page == flags_page.text()
  assert not {n for n in FLAGS_OF_PAX if f'`--{n}`' not in page}


@pytest.mark.parametrize(
  'flag',
  [f for f in pax_flags.TABLE if f.verdict is pax_flags.Verdict.REFUSED],
  ids=lambda flag: flag.name,
)
def test_refused_flags_say_what_to_use(flag):
  given = _GIVEN.get(flag.name, True if False in flag.accepted else 'x')
  with flagsaver.flagsaver(**{flag.name: given}):
    with pytest.raises(errors.UserError) as e:
      pax_flags.check()
  assert str(e.value) == f'--{flag.name} is not supported: {flag.text}'
  for value in flag.accepted:
    with flagsaver.flagsaver(**{flag.name: value}):
      pax_flags.check()


def test_modes():
  assert pax_flags.mode() == pax_flags.TRAIN
  assert set(flags.FLAGS['mode'].parser.enum_values) == {
    *(pax_flags.TRAIN, *job_options.MODES),
    *('tf_data_service_dispatcher', 'tf_data_service_worker'),
  }
  for mode in (pax_flags.TRAIN, *job_options.MODES):
    with flagsaver.flagsaver(mode=mode):
      pax_flags.check()
  for given, message in (
    (dict(mode='tf_data_service_worker'), 'worker is not supported: each host'),
    (dict(restore_checkpoint_step=[7]), 'not for --mode=train: a training run'),
    (dict(restore_checkpoint_dir='x'), 'not for --mode=train: a training run'),
    (dict(eval_during_decode=True), 'not for --mode=train: a training run eva'),
    (dict(eval_during_decode=True, mode='eval'), 'not for --mode=eval'),
    (dict(restore_checkpoint_step=[-1], mode='eval'), 'step is -1; expected'),
  ):
    with flagsaver.flagsaver(**given):
      with pytest.raises(errors.UserError, match=message):
        pax_flags.check()


def test_options_of_a_job():
  with flagsaver.flagsaver(
    mode='decode_once', restore_checkpoint_step=[7, 8], eval_during_decode=True
  ):
    options = run_flags.job_options(job_options.JobOptions)
  assert options == job_options.JobOptions(
    mode='decode_once', steps=(7, 8), also_evaluates=True
  )
  assert not options.follows


def test_what_is_always_so_has_a_line():
  assert not pax_flags.notes()
  with flagsaver.flagsaver(
    jax_fully_async_checkpoint=True, exit_after_ondemand_checkpoint=False
  ):
    assert pax_flags.notes() == [
      '--jax_fully_async_checkpoint: checkpoints are always written in the'
      ' background',
      '--exit_after_ondemand_checkpoint=false has no effect: a run that is'
      ' stopped or preempted always saves and exits',
    ]


def test_settings_of_fiddle():
  with flagsaver.flagsaver(fdl_set=['task.a=1'], fdl=['set:task.b="x:y"']):
    assert pax_flags.settings() == ['task.a=1', 'task.b="x:y"']
  for command in ('config:os.system("true")', 'config_str:x', 'set'):
    with flagsaver.flagsaver(fdl=[command]):
      message = re.escape(f'--fdl={command} is not supported: a config is')
      with pytest.raises(errors.UserError, match=message):
        pax_flags.check()


def test_options_of_a_run():
  expected = run_options.RunOptions(step_timeout_seconds=3600.0)
  assert run_flags.options(run_options.RunOptions) == expected
  with flagsaver.flagsaver(
    enable_checkpoint_saving=False,
    async_timeout_secs=0,
    checkpoint_todelete_subdir='trash',
    enable_summary_writer=False,
    pax_only_aggregate_summaries=True,
    peak_tflops=275.0,
  ):
    run_flags.check()
    assert run_flags.options(run_options.RunOptions) == dataclasses.replace(
      expected,
      saves_checkpoints=False,
      save_timeout_seconds=6 * 3600,
      checkpoint_todelete_subdir='trash',
      writes_summaries=False,
      only_scalars=True,
      peak_flops=275e12,
    )


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('checkpoint_todelete_subdir', '../x'),
    ('checkpoint_todelete_subdir', '12'),
    ('async_timeout_secs', -1),
    ('jax_profiler_port', 0),
  ],
)
def test_values_that_cannot_be_used(name, value):
  with flagsaver.flagsaver(**{name: value}):
    with pytest.raises(errors.UserError, match=f'--{name}'):
      run_flags.check()


def test_flags_of_a_command_of_pax(tmp_path):
  """One run with many of them; the documents' second command has two."""
  folder = tmp_path / 'run'
  done = trainer_runs.train(
    folder,
    '--mode=train',
    '--pmap_use_tensorstore=True',
    '--jax_fully_async_checkpoint',
    '--jax_default_matmul_precision=float32',
    '--eval_on_test=false',
    '--enable_summary_writer=false',
    '--async_timeout_secs=60',
    '--checkpoint_todelete_subdir=trash',
    '--fdl_set=task.train.num_train_steps=4',
    '--fdl=set:task.train.save_interval_steps=1',
    '--peak_tflops=0.001',
    JAX_COMPILATION_CACHE_DIR='',
    XDG_CACHE_HOME=str(tmp_path / 'cache'),
  )
  lines = done.stdout.splitlines()
  assert lines[:2] == [
    '--jax_fully_async_checkpoint: checkpoints are always written in the'
    ' background',
    '--pmap_use_tensorstore: checkpoints are always written with TensorStore',
  ]
  assert lines[2].startswith('starts with')
  assert lines[3:6] == [
    '1 x cpu; mesh data 1',
    'global batch 8 rows of 8; weights in float32, computed in float32',
    'bytes per device: weights 3.06 kB, optimizer 6.12 kB, together 9.18 kB',
  ]
  metrics = trainer_runs.metrics(folder)
  assert {split for _, split, _ in metrics} == {'train'}
  assert any(name == 'mfu' for _, _, name in metrics)
  assert any('  MFU ' in line for line in lines)
  assert 'eval dev' not in done.stdout
  assert not (folder / 'summaries').exists()
  assert trainer_runs.steps_saved(folder) == [3, 4]
  trash = folder / 'checkpoints' / 'trash'
  assert sorted(path.name for path in trash.iterdir()) == ['1', '2']
  # What was compiled is kept for the next start.
  compiled = list((tmp_path / 'cache' / 'pax_compat' / 'compiled').rglob('*'))
  assert any('train_step' in path.name for path in compiled)


def test_unknown_flags_of_jax_are_errors():
  done = trainer_runs.main('--jax_debug_nan', '--list')
  trainer_runs.assert_mistake(done, "'jax_debug_nan'", 'jax_debug_nans')


def test_a_run_without_checkpoints(tmp_path):
  folder = tmp_path / 'run'
  command = '--enable_checkpoint_saving=false'
  trainer_runs.train(folder, command, '--set=task.train.num_train_steps=2')
  assert not trainer_runs.steps_saved(folder)


def test_settings_of_jax():
  done = launching.run_script(
    """
    import sys
    from absl import flags
    from pax_compat.cli import pax_flags, run_flags
    from pax_compat.runs import job_dir
    slow = {'jax', 'etils', 'fsspec', 'tensorflow'}
    assert not slow & {name.partition('.')[0] for name in sys.modules}
    flags.FLAGS([
      'main',
      '--globally_use_hardware_rng',
      '--jax_traceback_filtering_option=off',
      '--compilation_cache_dir=',
    ])
    run_flags.configure_jax()
    import jax
    print(jax.random.key(0).dtype)
    print(jax.config.jax_traceback_filtering)
    print(jax.config.jax_enable_compilation_cache)
    """
  )
  assert done.stdout.splitlines() == ['key<rbg>', 'off', 'False'], done.stderr
