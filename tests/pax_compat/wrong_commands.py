"""Tries wrong command lines of `pax_compat.main`, in one process.

    python -m tests.pax_compat.wrong_commands --count=600

prints those that do not end as they should: with status 0 (what is wrong for
one field is right for another), or with status 2, one error and no folder, if
nothing was saved. The status is 1 if there are some.
"""

import argparse
import collections
import contextlib
import dataclasses
import io
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence

from absl import flags
from absl.testing import flagsaver

from pax_compat import main
from pax_compat.cli import command_line, experiment_flags
from pax_compat.configs import config_text
from pax_compat.experiments import resolved
from tests.pax_compat import counting_experiment

_OTHERS = (
  '--exp=tests.pax_compat.counting_experiment.Counting',
  '--set=task.train.num_train_steps=1',
  '--compilation_cache_dir=',
)
_MAX_BYTES = 24 << 30
_VALUES = (
  *('None', '-1', '0', '1', '2.5', '1e30', '1e-30', '100000000000', 'True'),
  *('nan', "'x'", "''", '[]', '[1,2,3]', '{}', "{'a': 1}", '()', 'x.y', '"'),
  *('bf16', "'bfloat17'", '[None]', '-inf', 'lambda: 1', "b'x'", '1_000', '[['),
)
_WRONG_FLAGS = (
  *('--exp=*', '--exp=tests.*', '--exp=[', '--exp=', '--exp=..', '--exp=/'),
  *('--exp=a.b.c', '--exp=os.path.join', '--exp=jax', '--exp=\x00'),
  *('--job_log_dir=', '--job_log_dir=/proc/x', '--job_log_dir=/dev/null/x'),
  *('--job_log_dir=s3://a/b', '--job_log_dir=x://a', '--job_log_dir=\x00'),
  *('--set=', '--set==', '--set=a', '--set=a=', '--set==1', '--set=task=1'),
  *('--set=task.=1', '--set=.task=1', '--set=task..train=1', '--set=train=1'),
  *('--set=datasets=[]', '--set=datasets[9].name="a"', '--set=datasets[=1'),
  *(
    '--set=datasets[x].name=1',
    '--set=datasets.train.end=x',
    '--set=task[0]=1',
  ),
  *('--set=task.train.num_train_steps', '--set=task.model.cls=1'),
  *('--set=task.train.learner=None', '--set=task.model=None', '--set=*=1'),
  *(
    '--attr=',
    '--attr=a',
    '--attr=SETTINGS=1',
    '--attr=task=1',
    '--attr=__a=1',
  ),
  *('--attr=x.y=1', '--attr=name=None', '--attr=datasets=[]', '--attr==', '-a'),
  *('--mode=', '--mode=x', '--mode=infer'),
  *('--mode=decode_once', '--on_nan=', '--on_nan=x', '--loss_spike_factor=0'),
  *('--loss_spike_factor=x', '--input_timeout_minutes=-1', '--num_hosts=2'),
  *('--step_timeout_minutes=-1', '--step_timeout_minutes=x'),
  *('--host_idx=0', '--server_addr=x', '--save_interval_minutes=x', '--check='),
  *('--restore_checkpoint_step=x', '--restore_checkpoint_step=-1', '--peak=1'),
  *('--restore_checkpoint_dir=x', '--topology=v4:2', '--compile_only', 'x'),
  *('--fdl=x', '--fdl=set:', '--fdl=set:a', '--fdl=set:a=1', '--fdl_set=1'),
  *('--fdl_config=a', '--tensorstore_use_ocdbt=x', '--flagfile=x', '--'),
  *('--async_timeout_secs=-1', '--checkpoint_todelete_subdir=..', '--no'),
  *(
    '--checkpoint_todelete_subdir=1',
    '--jax_profiler_port=0',
    '--multiprocess=',
  ),
  *('--enable_checkpoint_saving=x', '--peak_tflops=0', '--num_slices=0'),
  *('--jax_platforms=x', '--jax_x=1', '--compilation_cache_dir=/dev/null/x'),
  *('--model_params_override=x', '--join_timeout_secs=0', '--check=x', '-'),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a command line ended.

  Attributes:
    status: of the process; None after a traceback.
    text: what is wrong with that; '' if nothing is.
  """

  status: int | None
  text: str


class _TooLong(BaseException):
  """A command line takes too long."""


def command_lines(count: int, seed: int) -> Iterator[str]:
  """Yields wrong flags, each once, and then wrong settings, drawn at random."""
  yield from _WRONG_FLAGS[:count]
  draw, places = random.Random(seed), paths()
  for _ in range(count - len(_WRONG_FLAGS)):
    yield f'--set={draw.choice(places)}={draw.choice(_VALUES)}'


def paths() -> list[str]:
  """Returns the paths of all fields of the experiment that have a value."""
  experiment = resolved.resolve(counting_experiment.Counting(), name='fuzzed')
  text = ''.join(
    config_text.to_text(config, name)
    for name, config in experiment.configs().items()
  )
  return list(config_text.by_path(text))


def outcome(
  flag: str, folder: pathlib.Path, *others: str, seconds: int = 300
) -> Outcome:
  """Runs a command line with a flag, and returns how it ends.

  Args:
    flag: what is wrong with it.
    folder: of the run, which does not exist.
    *others: flags that are right.
    seconds: how long it may take.
  """
  argv = ['main', *_OTHERS, f'--job_log_dir={folder}', *others, flag]
  printed = io.StringIO()
  signal.signal(signal.SIGALRM, _end)
  signal.alarm(seconds)
  try:
    with (
      contextlib.redirect_stderr(printed),
      contextlib.redirect_stdout(io.StringIO()),
      flagsaver.flagsaver(),
    ):
      flags.FLAGS.unparse_flags()
      rest = command_line._parse(experiment_flags.define_of_sources, argv)
      status = command_line.exit_on_user_error(main.main, rest) or 0
  except SystemExit as e:
    status = e.code
  except _TooLong:
    return Outcome(None, f'takes longer than {seconds} seconds')
  except BaseException as e:  # noqa: BLE001 (it would print a traceback)
    frame = traceback.extract_tb(e.__traceback__)[-1]
    where = f'{pathlib.Path(frame.filename).name}:{frame.lineno}'
    return Outcome(None, f'{type(e).__name__} at {where}: {str(e)[:200]!r}')
  finally:
    signal.alarm(0)
  return Outcome(status, _problem(status, printed.getvalue(), folder))


def _end(*unused):
  raise _TooLong


def _problem(status: int, printed: str, folder: pathlib.Path) -> str:
  errors = [x for x in printed.splitlines() if x.startswith('error: ')]
  if status == 0:
    return ''
  if status != 2:
    return f'status {status}: {printed[-300:]!r}'
  if len(errors) != 1:
    return f'{len(errors)} errors are printed: {printed[-300:]!r}'
  # An evaluation may fail after training, which is saved then.
  if folder.exists() and not list(folder.glob('checkpoints/manifests/*.json')):
    names = sorted(x.name for x in folder.iterdir())
    return f'it leaves a folder with {names}: {errors[0][:300]}'
  return ''


def try_all(lines: Sequence[str], *, trains: bool) -> dict[str, Outcome]:
  """Returns how command lines end, by the flag that is wrong.

  Args:
    lines: the flags.
    trains: whether settings that `--check` accepts are trained with; other
      flags always are.
  """
  found = {}
  with tempfile.TemporaryDirectory() as parent:
    for number, flag in enumerate(lines):
      folder = pathlib.Path(parent) / str(number)
      is_setting = flag.startswith('--set=')
      found[flag] = outcome(flag, folder, *(['--check'] * is_setting))
      if is_setting and trains and found[flag] == Outcome(0, ''):
        found[flag] = outcome(flag, folder)
      shutil.rmtree(folder, ignore_errors=True)
      if found[flag].text:
        print(f'{flag!r}: {found[flag].text}', flush=True)
  return found


def run():
  """Entry point of the command."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--count', type=int, default=600)
  parser.add_argument('--seed', type=int, default=1)
  parser.add_argument('--first', type=int, default=0)
  parser.add_argument(
    '--check', action='store_true', help='do not train with settings'
  )
  given = parser.parse_args()
  # A number that is too large is an error, not the end of the machine.
  resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
  lines = list(dict.fromkeys(command_lines(given.count, given.seed)))
  found = try_all(lines[given.first :], trains=not given.check)
  by_status = collections.Counter(x.status for x in found.values())
  wrong = sum(bool(x.text) for x in found.values())
  print(f'{len(found)} command lines, by status: {dict(by_status)}')
  print(f'{wrong} end in another way than with status 0, or 2 and one error')
  sys.exit(wrong > 0)


if __name__ == '__main__':
  run()
