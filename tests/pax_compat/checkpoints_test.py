"""Tests of checkpoints, on real files and in real processes."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import types

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import checkpoints, errors
from pax_compat.nested_map import NestedMap

_ROOT = pathlib.Path(__file__).parents[2]


@flax.struct.dataclass
class TrainState:
  step: jax.Array
  params: NestedMap
  opt_state: optax.OptState
  key: jax.Array
  plain: int


def _state(seed=0, dims=8) -> TrainState:
  params = NestedMap(
    lm=NestedMap(w=jax.random.normal(jax.random.key(seed), (4, dims))),
    scale=jnp.full((dims,), seed, jnp.bfloat16),
    empty=jnp.zeros((0, 3)),
  )
  return TrainState(
    step=jnp.int32(seed),
    params=params,
    opt_state=optax.adam(1e-3).init(params),
    key=jax.random.split(jax.random.key(seed), 2),
    plain=seed,
  )


def _target(state):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])

  def abstract(x):
    return jax.ShapeDtypeStruct(
      jnp.shape(x), jnp.result_type(x), sharding=device
    )

  return jax.tree.map(abstract, state)


def _assert_same(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for path, leaf in checkpoints.state_paths(want).items():
    other = checkpoints.state_paths(got)[path]
    assert other.dtype == jnp.result_type(leaf), path
    if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
      leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
    np.testing.assert_array_equal(np.asarray(other), np.asarray(leaf), path)


def _saved(folder, *steps, max_to_keep=None):
  """Saves one checkpoint for each step and closes."""
  checkpointer = checkpoints.Checkpointer(folder, max_to_keep=max_to_keep)
  for step in steps:
    assert checkpointer.save(step, _state(step), {'position': step * 10})
  checkpointer.close()


def _open(folder, **kwargs):
  return checkpoints.Checkpointer(folder, **({'max_to_keep': None} | kwargs))


def _largest_file(folder):
  files = [p for p in folder.rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def _truncate(path):
  path.write_bytes(path.read_bytes()[:-7])


def _flip_bit(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def _run(script, *args, **env):
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(script), *map(str, args)],
    env=_env(**env),
    capture_output=True,
    text=True,
    timeout=300,
  )


def _env(**env):
  return os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(_ROOT)} | env


@pytest.fixture
def log(monkeypatch):
  """The lines that were logged."""
  lines = []

  def note(text, *args):
    lines.append(text % args)

  # Only ours: Orbax logs through the same module.
  monkeypatch.setattr(
    checkpoints, 'logging', types.SimpleNamespace(info=note, warning=note)
  )
  return lines


def test_state_and_extra_come_back(tmp_path):
  state = _state(3)
  checkpointer = _open(tmp_path)
  assert checkpointer.latest_step() is None
  assert checkpointer.save(3, state, {'name': 'lm.X', 'files': [1, None]})
  checkpointer.wait()
  assert checkpointer.latest_step() == 3
  restored, extra = checkpointer.restore(3, _target(state))
  checkpointer.close()
  _assert_same(restored, state)
  assert extra == {'name': 'lm.X', 'files': [1, None]}
  # The key goes on where it was.
  np.testing.assert_array_equal(
    jax.random.normal(restored.key[1]), jax.random.normal(state.key[1])
  )


def test_the_caller_may_reuse_its_arrays(tmp_path):
  array = np.arange(1000, dtype=np.int32)
  donated = jnp.arange(8.0)
  checkpointer = _open(tmp_path)
  checkpointer.save(1, {'a': array, 'd': donated}, {})
  array[:] = -1
  donated.delete()
  checkpointer.wait()
  target = _target({'a': array, 'd': jnp.zeros(8)})
  restored, _ = checkpointer.restore(1, target)
  checkpointer.close()
  np.testing.assert_array_equal(restored['a'], np.arange(1000))
  np.testing.assert_array_equal(restored['d'], np.arange(8.0))


def test_saving_a_step_twice_is_harmless(tmp_path):
  checkpointer = _open(tmp_path)
  assert checkpointer.save(1, _state(1), {})
  assert not checkpointer.save(1, _state(2), {})
  checkpointer.close()
  again = _open(tmp_path)
  restored, _ = again.restore(again.latest_step(), _target(_state()))
  assert not again.save(1, restored, {})
  again.close()
  _assert_same(restored, _state(1))


def test_newest_are_kept(tmp_path):
  _saved(tmp_path, 1, 2, 10, 11, max_to_keep=2)
  assert sorted(os.listdir(tmp_path)) == ['10', '11', 'manifests']
  assert sorted(os.listdir(tmp_path / 'manifests')) == ['10.json', '11.json']


def test_a_manifest_goes_before_its_files(tmp_path, monkeypatch):
  order = []
  rmtree = checkpoints.shutil.rmtree

  def record(path, *args, **kwargs):
    if path == tmp_path / '1':
      order.append((tmp_path / 'manifests' / '1.json').exists())
    return rmtree(path, *args, **kwargs)

  monkeypatch.setattr(checkpoints.shutil, 'rmtree', record)
  _saved(tmp_path, 1, 2, max_to_keep=1)
  assert order == [False]


def test_max_to_keep_must_be_positive(tmp_path):
  with pytest.raises(errors.UserError, match='max_to_keep is 0'):
    _open(tmp_path, max_to_keep=0)


@pytest.mark.parametrize('damage', [_truncate, _flip_bit, os.unlink])
def test_damaged_newest_falls_back(tmp_path, log, damage):
  _saved(tmp_path, 1, 2)
  victim = _largest_file(tmp_path / '2')
  damage(victim)
  checkpointer = _open(tmp_path)
  assert checkpointer.latest_step() == 1
  report = [line for line in log if line.startswith('checkpoint 2 is damaged')]
  assert len(report) == 1
  assert str(victim) in report[0]
  assert 'expected' in report[0] and 'found' in report[0]
  with pytest.raises(errors.UserError, match='checkpoint 2 is damaged'):
    checkpointer.restore(2, _target(_state()))
  restored, _ = checkpointer.restore(1, _target(_state()))
  checkpointer.close()
  _assert_same(restored, _state(1))


def test_any_flipped_bit_is_found(tmp_path):
  _saved(tmp_path, 1)
  checkpointer = _open(tmp_path)
  files = [p for p in (tmp_path / '1').rglob('*') if p.is_file()]
  assert len(files) > 5
  for path in files:
    good = path.read_bytes()
    _flip_bit(path)
    with pytest.raises(errors.UserError, match=path.name):
      checkpointer.latest_step()
    path.write_bytes(good)
  assert checkpointer.latest_step() == 1
  checkpointer.close()


def test_all_damaged_is_an_error(tmp_path):
  _saved(tmp_path, 1, 2)
  for step in '12':
    _truncate(_largest_file(tmp_path / step))
  (tmp_path / 'manifests' / '2.json').write_text('{"files"')
  checkpointer = _open(tmp_path)
  with pytest.raises(errors.UserError, match='none of the 2 checkpoints') as e:
    checkpointer.latest_step()
  checkpointer.close()
  assert str(tmp_path / 'manifests' / '2.json') in str(e.value)


def test_training_on_replaces_damaged_and_later_steps(tmp_path):
  _saved(tmp_path, 1, 2, 3)
  _truncate(_largest_file(tmp_path / '2'))
  _truncate(_largest_file(tmp_path / '3'))
  checkpointer = _open(tmp_path, max_to_keep=2)
  assert checkpointer.latest_step() == 1
  checkpointer.restore(1, _target(_state()))
  assert checkpointer.save(2, _state(22), {})
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  restored, _ = checkpointer.restore(2, _target(_state()))
  checkpointer.close()
  _assert_same(restored, _state(22))
  assert sorted(os.listdir(tmp_path)) == ['1', '2', 'manifests']


def test_going_back_saves_the_same_steps_again(tmp_path):
  checkpointer = _open(tmp_path)
  for step in (1, 2):
    checkpointer.save(step, _state(step), {})
  checkpointer.restore(1, _target(_state()))
  assert checkpointer.save(2, _state(7), {})
  restored, _ = checkpointer.restore(2, _target(_state()))
  checkpointer.close()
  _assert_same(restored, _state(7))


def test_strays_do_not_disturb(tmp_path, log):
  _saved(tmp_path, 1)
  (tmp_path / '99').mkdir()
  (tmp_path / '5').mkdir()
  (tmp_path / 'notes' / 'x').mkdir(parents=True)
  (tmp_path / 'README').write_text('mine')
  (tmp_path / 'manifests' / 'other.json').write_text('{}')
  checkpointer = _open(tmp_path, max_to_keep=1)
  assert checkpointer.latest_step() == 1
  assert any('99' in line and 'never committed' in line for line in log)
  restored, _ = checkpointer.restore(1, _target(_state()))
  _assert_same(restored, _state(1))
  assert checkpointer.save(5, _state(5), {})
  checkpointer.close()
  assert {'5', '99', 'notes', 'README'} <= set(os.listdir(tmp_path))
  again = _open(tmp_path)
  assert again.latest_step() == 5
  restored, _ = again.restore(5, _target(_state()))
  again.close()
  _assert_same(restored, _state(5))


def test_without_manifest_there_is_no_checkpoint(tmp_path, log):
  _saved(tmp_path, 1, 2)
  (tmp_path / 'manifests' / '2.json').unlink()
  checkpointer = _open(tmp_path)
  assert checkpointer.latest_step() == 1
  assert f'skipping {tmp_path / "2"}: it was never committed' in log
  with pytest.raises(errors.UserError, match='no checkpoint of step 2.*: 1'):
    checkpointer.restore(2, _target(_state()))
  assert checkpointer.save(2, _state(2), {})
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  checkpointer.close()


def test_other_dimensions_are_named(tmp_path):
  _saved(tmp_path, 1)
  checkpointer = _open(tmp_path)
  with pytest.raises(errors.UserError) as e:
    checkpointer.restore(1, _target(_state(dims=16)))
  text = str(e.value)
  line = 'params.lm.w: stored float32[4,8], wanted float32[4,16]'
  assert line in text
  assert text.count('stored') == 5
  assert 'and 1 more' in text
  checkpointer.close()


def test_other_trees_and_types_are_named(tmp_path):
  checkpointer = _open(tmp_path)
  checkpointer.save(1, {'a': jnp.ones(2), 'old': jnp.ones(2)}, {})
  target = {'a': jnp.ones(2, jnp.int32), 'new': jnp.ones((2, 3))}
  with pytest.raises(errors.UserError) as e:
    checkpointer.restore(1, target)
  checkpointer.close()
  text = str(e.value)
  assert 'a: stored float32[2], wanted int32[2]' in text
  assert 'old: stored float32[2], wanted nothing' in text
  assert 'new: stored nothing, wanted float32[2,3]' in text


def test_two_leaves_of_one_path_are_refused():
  with pytest.raises(ValueError, match='path a.b'):
    checkpoints.state_paths({'a.b': 1, 'a': {'b': 2}})


def test_a_target_needs_shardings(tmp_path):
  checkpointer = _open(tmp_path)
  checkpointer.save(1, {'a': jnp.ones(2)}, {})
  with pytest.raises(ValueError, match='a has no sharding'):
    checkpointer.restore(1, {'a': jax.ShapeDtypeStruct((2,), jnp.float32)})
  checkpointer.close()


def test_extra_must_be_json(tmp_path):
  checkpointer = _open(tmp_path)
  with pytest.raises(TypeError, match='JSON'):
    checkpointer.save(1, _state(), {'x': object()})
  checkpointer.close()


def test_a_folder_that_cannot_be_used(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot be used'):
    _open(tmp_path / 'file')
  with pytest.raises(errors.UserError, match='is a URL'):
    _open('gs://bucket/run')


def test_restart_in_a_new_process(tmp_path):
  done = _run(
    """
    import sys
    from tests.pax_compat import checkpoints_test as t
    checkpointer = t._open(sys.argv[1])
    step = checkpointer.latest_step()
    restored, extra = checkpointer.restore(step, t._target(t._state()))
    t._assert_same(restored, t._state(2))
    assert extra == {'position': 20}, extra
    checkpointer.close()
    assert 'tensorflow' not in sys.modules
    """,
    _save_in_new_process(tmp_path),
  )
  assert done.returncode == 0, done.stderr


def _save_in_new_process(tmp_path):
  done = _run(
    """
    import sys, warnings
    warnings.filterwarnings(
      'error', category=DeprecationWarning, module='pax_compat')
    from tests.pax_compat import checkpoints_test as t
    t._saved(sys.argv[1], 1, 2)
    """,
    tmp_path,
  )
  assert done.returncode == 0, done.stderr
  return tmp_path


# Saves step 1, then stops for ever in the middle of step 2: inside Orbax, or
# between Orbax and our commit.
_HANGING_SAVE = """
  import pathlib, sys, threading, time
  import orbax.checkpoint as ocp
  from pax_compat import checkpoints, job_dir
  from tests.pax_compat import checkpoints_test as t
  folder, where = sys.argv[1:]
  checkpointer = t._open(folder)
  checkpointer.save(1, t._state(1), {})
  checkpointer.wait()

  def hang(*args, **kwargs):
    print('hanging', flush=True)
    threading.Event().wait()

  if where == 'orbax':
    ocp.AsyncCheckpointer._save_step_metadata = hang
  else:
    checkpoints._checksums = hang
  checkpointer.save(2, t._state(2), {})
  checkpointer.wait()
"""


@pytest.mark.parametrize('where', ['orbax', 'commit'])
def test_sigkill_in_the_middle_of_a_save(tmp_path, log, where):
  process = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(_HANGING_SAVE), tmp_path, where],
    env=_env(),
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == 'hanging\n'
  process.send_signal(signal.SIGKILL)
  process.communicate()
  leftover = '2.orbax-checkpoint-tmp' if where == 'orbax' else '2'
  assert sorted(os.listdir(tmp_path)) == ['1', leftover, 'manifests']

  checkpointer = _open(tmp_path)
  assert checkpointer.latest_step() == 1
  assert f'skipping {tmp_path / leftover}: it was never committed' in log
  checkpointer.restore(1, _target(_state()))
  if where == 'orbax':  # another step sweeps it up
    assert checkpointer.save(3, _state(3), {})
    checkpointer.wait()
    assert sorted(os.listdir(tmp_path)) == ['1', '3', 'manifests']
  else:
    assert checkpointer.save(2, _state(2), {})
    checkpointer.wait()
    assert checkpointer.latest_step() == 2
  checkpointer.close()


def test_same_step_after_a_killed_save(tmp_path):
  (tmp_path / '2.orbax-checkpoint-tmp' / 'state').mkdir(parents=True)
  _saved(tmp_path, 2)
  assert sorted(os.listdir(tmp_path)) == ['2', 'manifests']


def test_a_failed_save_is_raised_once_and_the_next_works(tmp_path):
  done = _run(
    """
    import resource, sys
    import numpy as np
    from tests.pax_compat import checkpoints_test as t
    checkpointer = t._open(sys.argv[1])
    rng = np.random.default_rng(0)
    state = {'w': rng.normal(size=200_000).astype(np.float32)}
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # "disk full"
    checkpointer.save(1, state, {})
    try:
      checkpointer.save(2, state, {})
    except Exception as e:
      print('RAISED', type(e).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert checkpointer.latest_step() is None
    assert checkpointer.save(2, state, {})
    checkpointer.wait()
    assert checkpointer.latest_step() == 2
    assert checkpointer.save(3, state, {})
    checkpointer.close()
    """,
    tmp_path,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('RAISED') == 1
  assert sorted(os.listdir(tmp_path)) == ['2', '3', 'manifests']


def test_a_failed_commit_is_raised(tmp_path):
  checkpointer = _open(tmp_path)
  (tmp_path / 'manifests').rmdir()
  checkpointer.save(1, _state(1), {})
  with pytest.raises(FileNotFoundError):
    checkpointer.wait()
  (tmp_path / 'manifests').mkdir()
  assert checkpointer.save(1, _state(1), {})
  checkpointer.close()
  assert json.loads((tmp_path / 'manifests' / '1.json').read_text())


_SHARDED = """
  import sys
  import jax
  import numpy as np
  from jax.sharding import NamedSharding, PartitionSpec as P
  folder, processes, index, port = sys.argv[1:]
  if int(processes) > 1:
    jax.config.update('jax_num_cpu_devices', 2)
    jax.distributed.initialize(
      f'127.0.0.1:{port}', int(processes), int(index))
  else:
    jax.config.update('jax_num_cpu_devices', 4)
  from pax_compat import checkpoints
  assert jax.device_count() == 4

  def mesh(*shape):
    return jax.make_mesh(
      shape, ('x', 'y'), axis_types=(jax.sharding.AxisType.Auto,) * 2)

  values = np.arange(64, dtype=np.float32).reshape(8, 8)

  def state(mesh, spec):
    def make():
      return {
        'w': jax.numpy.asarray(values),
        'keys': jax.random.split(jax.random.key(5), 8),
        'key': jax.random.key(6),
        'none': jax.numpy.zeros((0, 4)),
        'step': jax.numpy.int32(7),
      }
    by_path = {'w': spec, 'keys': P('x')}
    shardings = {
      k: NamedSharding(mesh, by_path.get(k, P()))
      for k in jax.eval_shape(make)}
    return jax.jit(make, out_shardings=shardings)()

  assert checkpoints.from_first_process(int(index) + 5) == 5
  checkpointer = checkpoints.Checkpointer(folder, max_to_keep=1)
  for step in (1, 2):
    assert checkpointer.save(
      step, state(mesh(4, 1), P('x', 'y')), {'step': step})
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  # Another mesh and other axes than it was saved with.
  example = state(mesh(2, 2), P('y', 'x'))
  target = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
    example)
  restored, extra = checkpointer.restore(2, target)
  assert extra == {'step': 2}
  for name, array in restored.items():
    want = example[name]
    assert array.sharding.is_equivalent_to(want.sharding, array.ndim), name
    assert array.dtype == want.dtype, name
    if name.startswith('key'):
      array, want = jax.random.key_data(array), jax.random.key_data(want)
    for got, expected in zip(
        array.addressable_shards, want.addressable_shards, strict=True):
      np.testing.assert_array_equal(got.data, expected.data, name)
  assert restored['w'].addressable_shards[0].data.shape == (4, 4)
  try:
    checkpointer.restore(1, target)
  except Exception as e:
    print('MISSING', type(e).__name__)
  assert checkpointer.save(3, restored, {})
  # A commit that fails on process 0 is known to all.
  checkpointer.wait()
  checksums = checkpoints._checksums
  if index == '0':
    checkpoints._checksums = None
  checkpointer.save(4, restored, {})
  try:
    checkpointer.wait()
  except Exception as e:
    print('FAILED', type(e).__name__)
  checkpoints._checksums = checksums
  assert checkpointer.save(4, restored, {})
  checkpointer.close()
"""


def _start_sharded(folder, *, processes, index, port):
  return subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(_SHARDED), folder]
    + [str(processes), str(index), str(port)],
    env=_env(),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


@pytest.mark.parametrize('processes', [1, 2])
def test_sharded(tmp_path, processes):
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  running = [
    _start_sharded(tmp_path, processes=processes, index=i, port=port)
    for i in range(processes)
  ]
  try:
    outputs = [p.communicate(timeout=300)[0] for p in running]
  finally:
    for process in running:
      process.kill()
  failures = ['FAILED TypeError', 'FAILED RuntimeError']
  for process, output, failure in zip(
    running, outputs, failures[:processes], strict=True
  ):
    assert process.returncode == 0, output
    assert 'MISSING UserError' in output
    assert failure in output
  assert sorted(os.listdir(tmp_path)) == ['4', 'manifests']
