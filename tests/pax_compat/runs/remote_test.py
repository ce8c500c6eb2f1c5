"""Tests of folders in Google Cloud Storage, with a stand-in on this machine.

gcsfs and TensorStore send their requests to it. Without gcsfs there is only the
error that names it.
"""

import contextlib
import importlib.util
import json
import pathlib
import socket
import sys

import pytest

from pax_compat import errors, main
from pax_compat.runs import remote
from tests.pax_compat import launching, trainer_runs
from tests.pax_compat.runs import fake_storage

_HAS_GCSFS = importlib.util.find_spec('gcsfs') is not None
_needs_gcsfs = pytest.mark.skipif(not _HAS_GCSFS, reason='needs gcsfs')
_RUN = 'gs://bucket/runs/a'

_SCRIPT = """
  import sys
  from pax_compat.runs import files, job_dir, mirror, remote

  folder = job_dir.checked_path('gs://bucket/run/')
  job_dir.claim(folder, 'lm.Tiny')
  job_dir.claim('gs://bucket/run', 'lm.Tiny')
  try:
    job_dir.claim(folder, 'lm.Huge')
  except Exception as e:
    print(e)
  for text in ('one', 'one', 'two'):
    job_dir.write_text(folder / 'config.txt', text)
  files.replace(folder / 'old' / '7' / 'x', b'123')
  print(remote.listing(folder / 'old')['7/x']['bytes'])
  print([path.name for path in files.children(folder / 'old')])
  print(files.children(folder / 'none'))
  files.delete_folder(folder / 'old')
  with mirror.Mirror(folder, seconds=0.05) as mirrored:
    lines = mirrored.local / 'metrics.jsonl'
    mirrored.fetch(lines.name)
    assert not lines.exists()
    lines.write_text('1')
    while 'metrics.jsonl' not in remote.listing(folder):
      pass
    lines.write_text('12')
  assert not mirrored.local.exists()
  with mirror.Mirror(folder) as mirrored:
    mirrored.fetch('metrics.jsonl')
    print((mirrored.local / 'metrics.jsonl').read_text())
  assert 'tensorflow' not in sys.modules
"""


@pytest.mark.skipif(_HAS_GCSFS, reason='gcsfs is installed')
def test_without_gcsfs_the_error_names_the_extra():
  with pytest.raises(errors.UserError, match=r"pip install 'pax-compat\[gcs\]"):
    remote.path_of('gs://bucket/run')


@_needs_gcsfs
def test_files_of_a_remote_folder():
  with fake_storage.serve() as (storage, env):
    done = launching.run_script(_SCRIPT, **env)
    assert done.returncode == 0, done.stderr
    belongs, *others = done.stdout.splitlines()
    assert 'gs://bucket/run belongs to the experiment lm.Tiny' in belongs
    assert others == ['3', "['7']", '[]', '12']
    names = ('config.txt', 'config.txt.1', 'experiment.json', 'metrics.jsonl')
    assert storage.names() == [f'run/{name}' for name in names]


@_needs_gcsfs
def test_a_file_that_is_replaced_while_it_is_read():
  script = (
    'from pax_compat.runs import files, remote\n'
    "path = remote.path_of('gs://bucket/x')\n"
    'print(files.read_bytes(path).decode())\n'
    'print(path.exists(), files.read_bytes(path).decode())\n'
  )
  with fake_storage.serve() as (storage, env):
    storage.put('bucket', 'x', b'short')
    storage.replacements['bucket', 'x'] = b'longer content'
    done = launching.run_script(script, **env)
  assert done.stdout.splitlines() == ['short', 'True longer content']


def train_with_little_patience(url):
  """Trains in a folder of a storage service that must answer in a second."""
  remote._SECONDS_TO_ANSWER = 1.0
  sys.argv[1:] = [f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={url}']
  main.run()


@pytest.mark.slow
@_needs_gcsfs
@pytest.mark.parametrize('connects', [True, False])
def test_a_storage_service_that_does_not_answer(connects):
  with socket.create_server(('localhost', 0)) as silent:
    port = silent.getsockname()[1] if connects else 1
    done = launching.run_function(
      train_with_little_patience,
      'gs://bucket/run',
      GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT='false',
      STORAGE_EMULATOR_HOST=f'http://localhost:{port}',
    )
  trainer_runs.assert_mistake(
    done,
    'gs://bucket/run cannot be used: the storage service has not answered'
    ' within 1 seconds',
    '; expected a bucket' if connects else '(Cannot connect to host localhost:',
  )


@pytest.mark.slow
@_needs_gcsfs
def test_a_run_in_a_remote_folder_continues(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with fake_storage.serve() as (storage, env):
    steps = '--set=task.train.num_train_steps={}'.format
    first = trainer_runs.train(_RUN, steps(7), **env)
    assert 'starts with' in first.stdout
    again = trainer_runs.train(_RUN, steps(9), **env)
    assert 'continues from the checkpoint of step 7' in again.stdout
    assert len(_lines(storage)) == len({*_lines(storage)})
    log = storage.objects['bucket', 'runs/a/log.txt'][0].decode()
    assert log.index('starts with') < log.index('continues from')
    names = storage.names()
    for name in ('9/state/manifest.ocdbt', 'manifests/9.json'):
      assert f'runs/a/checkpoints/{name}' in names
    assert not [name for name in names if '/checkpoints/5/' in name]
    assert any('/summaries/train/events' in name for name in names)

    # A damaged checkpoint is found by its checksums.
    for name in [n for n in names if '/9/state/d/' in n]:
      storage.put('bucket', name, b'damaged')
    done = trainer_runs.train(_RUN, steps(10), **env)
    assert 'continues from the checkpoint of step 7' in done.stdout
    assert 'checkpoint 9 is damaged' in done.stderr
  assert not list(pathlib.Path(tmp_path).iterdir())


@pytest.mark.slow
@_needs_gcsfs
def test_a_job_follows_a_run_in_a_remote_folder(tmp_path):
  """And a second run of the folder is refused."""
  held, free = trainer_runs.flags(_RUN), tmp_path / 'free'
  settings = {'save_max_to_keep': 100}
  waits = settings | {'train': {'wait_at': 8, 'wait_for': str(free)}}
  with fake_storage.serve() as (storage, env):
    with contextlib.ExitStack() as stack:

      def start(name, settings, *flags):
        return stack.enter_context(
          trainer_runs.start(
            [*held, *flags], output=tmp_path / name, settings=settings, **env
          )
        )

      train = start('train', waits)
      first = start('first', settings, '--mode=eval')
      first.wait_until(lambda: 'step 5  eval dev: loss' in first.stdout)
      # While both hold their locks.
      second = start('second', waits)
      other = start('other', settings, '--mode=eval')
      for run, holder in ((second, train), (other, first)):
        assert run.end() == 2, run.stderr
        assert 'is in use: the' in run.stderr
        assert f' {holder.process.pid} ' in run.stderr
      first.process.kill()
      first.process.wait()
      third = start('third', settings, '--mode=eval')
      free.touch()
      assert train.end() == 0, train.stderr
      assert third.end() == 0, third.stderr
    own, of_run = (
      _values(storage, file, split)
      for file, split in (
        ('eval_metrics.jsonl', 'eval_test_dev'),
        ('metrics.jsonl', 'eval_dev'),
      )
    )
    assert own == of_run and {step for step, _ in own} == {5, 10, 12}
    assert not [x for x in storage.names() if x.endswith('.lock')]


def _values(storage, file: str, split: str) -> dict[tuple[int, str], float]:
  """Returns the values of a split by step and name; none is there twice."""
  text = storage.objects['bucket', f'runs/a/{file}'][0]
  lines = [x for x in map(json.loads, text.splitlines()) if x['split'] == split]
  found = {(x['step'], x['name']): x['value'] for x in lines}
  assert len(found) == len(lines)
  return found


def _lines(storage) -> list[bytes]:
  return storage.objects['bucket', 'runs/a/metrics.jsonl'][0].splitlines()
