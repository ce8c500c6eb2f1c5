"""Checkpoints: asynchronous, verified, resumable. The one user of Orbax.

    checkpoints/120/...               what Orbax wrote for step 120
    checkpoints/manifests/120.json    our commit: each file's size and CRC-32,
                                      and whether it is kept for good

A checkpoint exists when its manifest does. It is written last, and removed
first. Orbax on its own trusts whatever it finds: it takes an empty folder for a
checkpoint, and restores flipped bits in silence. So nothing is restored here
before its files were held against the manifest.

The state is stored as a flat map from dotted path to array, so that checkpoints
outlive changes of container types.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jax.experimental import multihost_utils

from pax_compat import errors, job_dir

_MANIFESTS = 'manifests'
_MAX_LISTED = 5  # differences that an error message lists
_HASH_THREADS = 8
_CHUNK_BYTES = 1 << 22
# What Orbax calls the folder of a step until it is whole.
_HALF_WRITTEN = re.compile(r'\d+\.orbax-checkpoint-tmp')


class _Manager(ocp.CheckpointManager):
  """Saves what it is told to, and does not ask whether the run is to stop.

  JAX's preemption service takes each question for one that the run asks at its
  steps, and these may come late, from a thread.
  """

  def reached_preemption(self, step: int) -> bool:
    return False


class Checkpointer:
  """Saves and restores the state of a run.

  In a run of several processes all of them make the same calls in the same
  order, from the main thread, and see the same folder. Process 0 checks,
  commits and deletes; the others learn the outcome from it.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    max_to_keep: int | None,
    keep_interval_seconds: float | None = None,
    max_bytes_in_flight: int | None = None,
    clock: Callable[[], float] = time.time,
  ):
    """Opens the folder, and creates it if needed.

    Args:
      directory: the folder, such as `<job_log_dir>/checkpoints`.
      max_to_keep: how many of the newest checkpoints to keep; None keeps all.
      keep_interval_seconds: a checkpoint is kept for good, beside the newest,
        that comes so much later than the last such one, or than the first of
        the run; None keeps none.
      max_bytes_in_flight: how many bytes of arrays are being written at a time,
        which takes memory beside them: at least as many as the largest array
        has; None for no limit.
      clock: returns seconds since a moment that is the same after a restart.

    Raises:
      UserError: `max_to_keep` is less than 1, or the folder cannot be used.
    """
    if max_to_keep is not None and max_to_keep < 1:
      raise errors.UserError(
        f'max_to_keep is {max_to_keep}; expected 1 or more, or None for all'
      )
    self._directory = job_dir.checked_path(directory)
    self._max_to_keep = max_to_keep
    self._keep_interval_seconds = keep_interval_seconds
    self._clock = clock
    try:
      (self._directory / _MANIFESTS).mkdir(parents=True, exist_ok=True)
    except OSError as e:
      raise errors.UserError(
        f'the checkpoint folder {self._directory} cannot be used:'
        f' {e.strerror}; expected a folder that can be written'
      ) from e
    self._manager = _Manager(
      self._directory,
      # We delete by ourselves, because Orbax deletes old checkpoints before the
      # new one is committed.
      options=ocp.CheckpointManagerOptions(
        lightweight_initialize=True, save_root_metadata=False
      ),
      item_handlers=_handlers(max_bytes_in_flight),
    )
    self._executor = concurrent.futures.ThreadPoolExecutor(
      1, thread_name_prefix='checkpoint_commit'
    )
    self._pending: tuple[int, concurrent.futures.Future] | None = None
    self._checked: int | None = None  # the step last found intact
    # The step that the run continued from, and those it saved since.
    self._lineage: set[int] = set()

  def save(self, step: int, state: Any, extra: dict) -> bool:
    """Starts to save; the files are written and committed in the background.

    Checkpoints of later steps, from which this run did not continue, are
    deleted once this one is committed.

    Args:
      step: the number of steps done.
      state: a pytree of arrays, PRNG keys and numbers. It may be donated or
        changed as soon as this returns.
      extra: what else is to be known at a restart, as JSON values.

    Returns:
      Whether it saves; False if this run saved or restored this step before.

    Raises:
      Exception: the save before failed; this one is not started.
    """
    self.wait()
    if step in self._lineage:
      return False
    leaves = state_paths(state)
    about = {
      'arrays': {path: _describe(leaf) for path, leaf in leaves.items()},
      'extra': extra,
    }
    json.dumps(about)  # fails here, not in the background
    self._checked = None
    self._on_first_process(lambda: self._make_room(step))
    if step in self._manager.all_steps():
      self._manager.reload()
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(_to_stored(leaves)),
        about=ocp.args.JsonSave(about),
      ),
      force=True,
    )
    self._pending = step, self._executor.submit(self._commit, step)
    return True

  def latest_step(self) -> int | None:
    """Returns the newest step whose files are intact, None if none was saved.

    All files of that checkpoint are read. Damaged checkpoints are reported in
    the log and passed over.

    Raises:
      UserError: there are checkpoints, and all of them are damaged.
    """
    self.wait()
    step = self._on_first_process(self._newest_intact)
    self._checked = step
    return step

  def extra(self, step: int) -> dict:
    """Returns the `extra` that a checkpoint was saved with.

    Args:
      step: as for `restore`.

    Raises:
      UserError: the checkpoint does not exist, or is damaged.
    """
    self.wait()
    return self._about(step)['extra']

  def amend(self, step: int, extra: dict) -> None:
    """Changes what a checkpoint says beside the state, and no file of it.

    Args:
      step: as for `restore`.
      extra: what takes the place of fields of its `extra`, as JSON values.

    Raises:
      UserError: the checkpoint does not exist, or is damaged.
    """
    self.wait()

    def write():
      if step != self._checked:
        self._require_intact(step)
      manifest = self._manifest(step)
      amended = {**manifest.get('amended', {}), **extra}
      self._write_manifest(step, {**manifest, 'amended': amended})

    self._on_first_process(write)

  def restore(self, step: int, target: Any) -> tuple[Any, dict]:
    """Restores a checkpoint, each process only its own shards.

    Args:
      step: one that `latest_step` returned, or any other that was saved.
      target: the pytree of the state, with a `jax.ShapeDtypeStruct` that has a
        sharding, or an array, at each leaf.

    Returns:
      The state, of the structure and the shardings of `target`, and `extra`.

    Raises:
      UserError: the checkpoint does not exist, is damaged, or has other arrays
        than `target`.
    """
    self.wait()
    wanted = state_paths(target)
    about = self._about(step)
    self._require_fit(step, about['arrays'], wanted)
    restored = self._manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(_to_stored_target(wanted))
      ),
    )['state']
    leaves = [
      _from_stored(restored.get(path), leaf, about['arrays'][path])
      for path, leaf in wanted.items()
    ]
    self._lineage = {step}
    state = jax.tree.unflatten(jax.tree.structure(target), leaves)
    return state, about['extra']

  def _about(self, step: int) -> dict[str, Any]:
    """Returns what is stored beside the arrays, once all files are checked."""
    if step != self._checked:
      self._on_first_process(lambda: self._require_intact(step))
    about = self._manager.restore(
      step, args=ocp.args.Composite(about=ocp.args.JsonRestore())
    )['about']
    about['extra'] |= self._manifest(step).get('amended', {})
    return about

  def wait(self) -> None:
    """Waits until the save in the background, if any, is committed.

    Raises:
      Exception: it failed, here or on another process.
    """
    if self._pending is None:
      return
    (step, future), self._pending = self._pending, None
    error = future.exception()
    if error is not None:
      # Orbax raises a failure once in each thread that waits; take it out of
      # this one, or it would come back at the next save.
      with contextlib.suppress(Exception):
        self._manager.wait_until_finished()
    failed = error is not None
    if jax.process_count() > 1:
      failed = bool(np.any(multihost_utils.process_allgather(failed)))
    if error is not None:
      raise error
    if failed:
      raise RuntimeError(
        f'saving the checkpoint of step {step} in {self._directory} failed on'
        ' another process; its log says why'
      )
    self._lineage.add(step)

  def close(self) -> None:
    """Waits for the save in the background and frees the threads.

    Raises:
      Exception: the save failed.
    """
    try:
      self.wait()
    finally:
      self._executor.shutdown()
      self._manager.close()

  def _commit(self, step: int) -> None:
    """Waits for Orbax, then commits; runs in the background."""
    self._manager.wait_until_finished()
    if jax.process_index() == 0:
      files = _checksums(self._step_path(step))
      self._write_manifest(
        step, {'step': step, **self._keeping(step), 'files': files}
      )
      self._prune(step)

  def _keeping(self, step: int) -> dict[str, Any]:
    """Returns what a manifest says of how long its checkpoint is kept.

    `kept_since` is when the last checkpoint was saved that is kept for good;
    until there is one, when the first of the run was.
    """
    now = self._clock()
    since = now
    earlier = [s for s in self._committed_steps() if s < step]
    if earlier:
      since = self._manifest(earlier[-1]).get('kept_since', now)
    interval = self._keep_interval_seconds
    kept = interval is not None and now - since >= interval
    return {'kept': kept, 'kept_since': now if kept else since}

  def _manifest(self, step: int) -> dict[str, Any]:
    """Returns what a manifest says, {} where it is damaged."""
    try:
      read = json.loads(self._manifest_path(step).read_text(encoding='utf-8'))
    except (OSError, ValueError):
      return {}
    return read if isinstance(read, dict) else {}

  def _write_manifest(self, step: int, manifest: dict[str, Any]) -> None:
    job_dir.replace_text(
      self._manifest_path(step), json.dumps(manifest, indent=1) + '\n'
    )

  def _prune(self, newest: int) -> None:
    """Deletes what is too old, and what `newest` has superseded."""
    committed = self._committed_steps()
    later = [step for step in committed if step > newest]
    for step in later:
      logging.warning(
        'deleting the checkpoint of step %d: the run continued from an'
        ' earlier one, and now saved step %d',
        step,
        newest,
      )
    earlier = [step for step in committed if step <= newest]
    old = earlier[: -self._max_to_keep] if self._max_to_keep else []
    old = [step for step in old if not self._manifest(step).get('kept')]
    for step in later + old:
      try:
        self._delete(step)
      except OSError as e:
        logging.warning('cannot delete all of checkpoint %d: %s', step, e)
    for path in self._directory.iterdir():
      if _HALF_WRITTEN.fullmatch(path.name):
        logging.info('deleting %s, which a killed run left', path)
        shutil.rmtree(path, ignore_errors=True)

  def _make_room(self, step: int) -> None:
    """Deletes what an earlier run left for a step that is saved again."""
    if self._step_path(step).exists():
      logging.warning(
        'deleting %s, which an earlier run left, to save step %d again',
        self._step_path(step),
        step,
      )
      self._delete(step)

  def _delete(self, step: int) -> None:
    self._manifest_path(step).unlink(missing_ok=True)  # uncommit first
    shutil.rmtree(self._step_path(step))

  def _newest_intact(self) -> int | None:
    committed = self._committed_steps()
    for path in self._directory.iterdir():
      whole = path.name.isdigit() and int(path.name) in committed
      if path.name[0].isdigit() and not whole:
        logging.info('skipping %s: it was never committed', path)
    problems = []
    for step in reversed(committed):
      problem = self._problem(step)
      if problem is None:
        return step
      problems.append(problem)
      logging.warning('checkpoint %d is damaged: %s', step, problem)
    if problems:
      raise errors.UserError(
        f'none of the {len(problems)} checkpoints in {self._directory} is'
        f' intact; expected one at least. The newest: {problems[0]}. Restore'
        ' the folder from a copy, or give another --job_log_dir to start anew'
      )
    return None

  def _require_intact(self, step: int) -> None:
    committed = self._committed_steps()
    if step not in committed:
      nearest = sorted(committed, key=lambda s: abs(s - step))[:3]
      raise errors.UserError(
        f'{self._directory} has no checkpoint of step {step}; the nearest are:'
        f' {", ".join(map(str, nearest)) or "none"}'
      )
    problem = self._problem(step)
    if problem is not None:
      raise errors.UserError(f'checkpoint {step} is damaged: {problem}')

  def _require_fit(
    self, step: int, stored: dict[str, dict], wanted: dict[str, Any]
  ) -> None:
    wants = {path: _describe(leaf) for path, leaf in wanted.items()}
    lines = [
      f'{path}: stored {_type_text(stored.get(path))}, wanted'
      f' {_type_text(wants.get(path))}'
      for path in sorted(stored.keys() | wants.keys())
      if _type_text(stored.get(path)) != _type_text(wants.get(path))
    ]
    if not lines:
      return
    if len(lines) > _MAX_LISTED:
      more = f'and {len(lines) - _MAX_LISTED} more'
      lines = lines[:_MAX_LISTED] + [more]
    raise errors.UserError(
      f'checkpoint {step} in {self._directory} does not fit the experiment;'
      ' were its settings changed?\n  ' + '\n  '.join(lines)
    )

  def _problem(self, step: int) -> str | None:
    """Returns how the files of a step differ from its manifest, if they do."""
    manifest = self._manifest_path(step)
    try:
      files = json.loads(manifest.read_text(encoding='utf-8'))['files']
      for name, found in _checksums(self._step_path(step), files).items():
        if found != files[name]:
          return (
            f'{self._step_path(step) / name}: expected'
            f' {_file_text(files[name])}, found {_file_text(found)}'
          )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
      return f'{manifest}: expected a manifest, found {e!r}'
    return None

  def _committed_steps(self) -> list[int]:
    manifests = (self._directory / _MANIFESTS).glob('*.json')
    return sorted(int(path.stem) for path in manifests if path.stem.isdigit())

  def _step_path(self, step: int) -> pathlib.Path:
    return self._directory / str(step)

  def _manifest_path(self, step: int) -> pathlib.Path:
    return self._directory / _MANIFESTS / f'{step}.json'

  def _on_first_process(self, fn: Callable[[], int | None]) -> int | None:
    """Runs `fn` on process 0 and returns its result, or fails, on all."""
    if jax.process_count() == 1:
      return fn()
    none, failed = -1, -2
    code, error = none, None
    if jax.process_index() == 0:
      try:
        result = fn()
        code = none if result is None else result
      except Exception as e:  # the others wait for an answer
        code, error = failed, e
    code = from_first_process(code)
    if error is not None:
      raise error
    if code == failed:
      raise errors.UserError(
        f'process 0 cannot use the checkpoints in {self._directory}; its log'
        ' says why'
      )
    return None if code == none else code


def _handlers(max_bytes_in_flight: int | None) -> dict[str, Any] | None:
  """Returns what Orbax writes with; None for its own choice."""
  if max_bytes_in_flight is None:
    return None
  gigabytes = 1.01 * max_bytes_in_flight / 1e9  # Rounded up.
  return {
    'state': ocp.StandardCheckpointHandler(save_concurrent_gb=gigabytes),
    'about': ocp.JsonCheckpointHandler(),
  }


def from_first_process(value: int) -> int:
  """Returns the value that process 0 gave; all processes call it together."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def state_paths(tree: Any) -> dict[str, Any]:
  """Returns a map from dotted path to leaf, in tree order.

  Raises:
    ValueError: two leaves have the same path, such as `{'a.b': x}` and
      `{'a': {'b': y}}` in one tree.
  """
  paths, _ = jax.tree.flatten_with_path(tree)
  leaves = {}
  for path, leaf in paths:
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    if name in leaves:
      raise ValueError(f'two leaves of the state have the path {name}')
    leaves[name] = leaf
  return leaves


def _is_key(leaf) -> bool:
  return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _describe(leaf) -> dict:
  """Returns what is stored about an array, to be compared at a restore."""
  about = {
    'shape': list(np.shape(leaf)),
    'dtype': str(jnp.result_type(leaf)),
  }
  if isinstance(leaf, jax.Array) and _is_key(leaf):
    about['prng_impl'] = str(jax.random.key_impl(leaf))
  return about


def _type_text(about: dict | None) -> str:
  if about is None:
    return 'nothing'
  return f'{about["dtype"]}[{",".join(map(str, about["shape"]))}]'


def _to_stored(leaves: dict[str, Any]) -> dict[str, Any]:
  """Returns the arrays as Orbax takes them: no keys, nothing empty."""
  stored = {}
  for path, leaf in leaves.items():
    if not isinstance(leaf, jax.Array):
      # A copy, because the caller may change its own while we write.
      leaf = np.array(leaf, dtype=jnp.result_type(leaf))
    elif _is_key(leaf):
      leaf = jax.random.key_data(leaf)
    if leaf.size:
      stored[path] = leaf
  return stored


def _to_stored_target(wanted: dict[str, Any]) -> dict[str, Any]:
  """Returns the target of `_to_stored`'s arrays."""
  target = {}
  for path, leaf in wanted.items():
    if leaf.sharding is None:
      raise ValueError(f'the target of {path} has no sharding')
    data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    if data.size:
      target[path] = jax.ShapeDtypeStruct(
        data.shape, data.dtype, sharding=leaf.sharding
      )
  return target


def _from_stored(array: jax.Array | None, wanted, about: dict) -> jax.Array:
  """Undoes `_to_stored` for one array; None stands for an empty one."""
  if array is None:
    return jax.device_put(np.zeros(wanted.shape, wanted.dtype), wanted.sharding)
  if 'prng_impl' in about:
    return jax.random.wrap_key_data(array, impl=about['prng_impl'])
  return array


def _checksums(folder: pathlib.Path, names=None) -> dict[str, dict | None]:
  """Returns size in bytes and CRC-32 of the files, by relative path.

  Args:
    folder: where they are.
    names: which; None for all. One that does not exist has the value None.
  """
  if names is None:
    names = sorted(
      path.relative_to(folder).as_posix()
      for path in folder.rglob('*')
      if path.is_file()
    )
  with concurrent.futures.ThreadPoolExecutor(_HASH_THREADS) as pool:
    found = pool.map(lambda name: _checksum(folder / name), names)
    return dict(zip(names, found, strict=True))


def _checksum(path: pathlib.Path) -> dict | None:
  size = crc = 0
  try:
    with open(path, 'rb') as f:
      while chunk := f.read(_CHUNK_BYTES):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
  except FileNotFoundError:
    return None
  return {'bytes': size, 'crc32': f'{crc:08x}'}


def _file_text(about: dict | None) -> str:
  if about is None:
    return 'no such file'
  return f'{about["bytes"]} bytes with CRC-32 {about["crc32"]}'
