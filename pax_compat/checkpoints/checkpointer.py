"""Saves and restores the state of a run with Orbax."""

import concurrent.futures
import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from pax_compat import errors
from pax_compat.checkpoints import stored_arrays
from pax_compat.checkpoints.manifests import Manifests
from pax_compat.checkpoints.retention import Retention
from pax_compat.processes import first_process, watchdog
from pax_compat.runs import files, job_dir


class _Manager(ocp.CheckpointManager):
  """A manager that does not query JAX's preemption service.

  The service expects one query per step of the run. The manager may query it
  later, from a thread.
  """

  def reached_preemption(self, step: int) -> bool:
    return False


class Checkpointer:
  """Saves and restores the state of a run.

  With several processes, all of them make the same calls in the same order,
  from the main thread, and see the same folder. Process 0 checks, commits and
  deletes, and broadcasts the outcome.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    max_to_keep: int | None,
    keep_interval_seconds: float | None = None,
    keep_interval_steps: int | None = None,
    max_bytes_in_flight: int | None = None,
    save_timeout_seconds: int | None = None,
    todelete_subdir: str | None = None,
    clock: Callable[[], float] = time.time,
  ):
    """Opens the folder, and creates it if needed.

    Args:
      directory: the folder, such as `<job_log_dir>/checkpoints`.
      max_to_keep: how many of the newest checkpoints to keep; None keeps all.
      keep_interval_seconds: in addition, a checkpoint is kept permanently if it
        is saved at least this long after the last permanent one, or after the
        first of the run; None disables this.
      keep_interval_steps: in addition, checkpoints of multiples of this number
        of steps are kept permanently; None disables this.
      max_bytes_in_flight: the maximum number of bytes of arrays that are
        written at a time, which bounds the additional memory. At least the size
        of the largest array; None for no limit.
      save_timeout_seconds: how long a save in the background may take; None for
        Orbax's default of 20 minutes.
      todelete_subdir: subfolder that checkpoints are moved to instead of being
        deleted; None deletes them.
      clock: returns seconds since a moment that is the same after a restart.

    Raises:
      UserError: `max_to_keep` is less than 1, or the folder cannot be used.
    """
    self._manifests = Manifests(
      job_dir.checked_path(directory), todelete_subdir=todelete_subdir
    )
    self._retention = Retention(
      self._manifests,
      max_to_keep=max_to_keep,
      keep_interval_seconds=keep_interval_seconds,
      keep_interval_steps=keep_interval_steps,
      clock=clock,
    )
    self._manifests.create_folder()
    async_options = _async_options(save_timeout_seconds)
    self._save_seconds = (async_options or ocp.AsyncOptions()).timeout_secs
    self._manager = _Manager(
      self._manifests.directory,
      options=ocp.CheckpointManagerOptions(
        lightweight_initialize=True,
        save_root_metadata=False,
        async_options=async_options,
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

  @property
  def directory(self) -> Any:
    """The folder, a `pathlib.Path` or the `etils.epath.Path` of a URL."""
    return self._manifests.directory

  @property
  def last_saved(self) -> int | None:
    """The step of the newest checkpoint that the run saved or continued from.

    Its commit may not be complete.
    """
    saved = self._lineage | ({self._pending[0]} if self._pending else set())
    return max(saved, default=None)

  def save(self, step: int, state: Any, extra: dict) -> bool:
    """Starts a save, which is written and committed in the background.

    Checkpoints of later steps, which this run did not continue from, are
    deleted after the commit.

    Args:
      step: the number of completed steps.
      state: a pytree of arrays, PRNG keys and numbers. It may be donated or
        changed as soon as this returns.
      extra: metadata for a restart, as JSON values.

    Returns:
      False, without a save, if this run saved or restored this step before.

    Raises:
      Exception: the previous save failed. This one is not started.
    """
    self.wait()
    if step in self._lineage:
      return False
    leaves = stored_arrays.state_paths(state)
    about = {'arrays': stored_arrays.array_metadata(leaves), 'extra': extra}
    json.dumps(about)  # raises here, not in the background
    self._checked = None
    self._on_first_process(lambda: self._begin(step))
    if step in self._manager.all_steps():
      self._manager.reload()
    stored = stored_arrays.to_stored(leaves)
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(stored), about=ocp.args.JsonSave(about)
        ),
        force=True,
      )
    except Exception as e:
      self._fail(step, e)
    self._pending = step, self._executor.submit(self._commit, step)
    watchdog.current().alive('step %d is being saved', step)
    return True

  def latest_step(self) -> int | None:
    """Returns the newest step whose files are intact, None if none was saved.

    Reads all files of that checkpoint. Damaged checkpoints are logged and
    skipped.

    Raises:
      UserError: there are checkpoints, and all of them are damaged.
    """
    self.wait()
    step = self._on_first_process(self._manifests.newest_intact)
    self._checked = step
    return step

  def extra(self, step: int) -> dict:
    """Returns the metadata `extra` of a checkpoint.

    Args:
      step: see `restore`.

    Raises:
      UserError: the checkpoint does not exist, or is damaged.
    """
    self.wait()
    return self._about(step)['extra']

  def amend(self, step: int, extra: dict) -> None:
    """Updates the metadata `extra` of a checkpoint, in its manifest only.

    Args:
      step: see `restore`.
      extra: new values of fields of its `extra`, as JSON values.

    Raises:
      UserError: the checkpoint does not exist, or is damaged.
    """
    self.wait()

    def write():
      if step != self._checked:
        self._manifests.require_intact(step)
      self._manifests.amend(step, {'amended': {**self._amended(step), **extra}})

    self._on_first_process(write)

  def amend_later(self, step: int, extra: dict) -> None:
    """Updates the metadata of the last checkpoint, after it is committed.

    Does not wait: an error is raised by the next `wait` or `save`.

    Args:
      step: the step that this run saved last.
      extra: new values of fields of its `extra`, as JSON values.
    """
    before = self._pending and self._pending[1]
    future = self._executor.submit(self._amend_after, before, step, extra)
    self._pending = step, future

  def restore(self, step: int, target: Any) -> tuple[Any, dict]:
    """Restores a checkpoint. Each process reads only its own shards.

    Args:
      step: a step that was saved, such as `latest_step()`.
      target: the pytree of the state. Each leaf is an array or a
        `jax.ShapeDtypeStruct` with a sharding.

    Returns:
      The state, with the structure and the shardings of `target`, and `extra`.

    Raises:
      UserError: the checkpoint does not exist, is damaged, or its arrays differ
        from those of `target`.
    """
    self.wait()
    wanted = stored_arrays.state_paths(target)
    about = self._about(step)
    stored_arrays.require_fit(step, self.directory, about['arrays'], wanted)
    restored = self._manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(stored_arrays.to_stored_target(wanted))
      ),
    )['state']
    leaves = [
      stored_arrays.from_stored(restored.get(path), leaf, about['arrays'][path])
      for path, leaf in wanted.items()
    ]
    self.continue_from(step)
    state = jax.tree.unflatten(jax.tree.structure(target), leaves)
    return state, about['extra']

  def continue_from(self, step: int) -> None:
    """Continues from a checkpoint that was restored by other means.

    From then on `save` leaves it as it is, as after `restore`.

    Args:
      step: of the checkpoint.
    """
    self._lineage = {step}

  def _begin(self, step: int) -> None:
    """Prepares the folder for the files of a step, in process 0."""
    try:
      self._retention.make_room(step)
      self._manifests.begin(step)
    except OSError as e:
      raise self._explained(step, e) from e

  def _fail(self, step: int, error: BaseException) -> NoReturn:
    """Raises the error of a save, after its files are deleted."""
    if jax.process_index() == 0:
      self._manifests.abandon(step)
    explained = self._explained(step, error)
    if explained is error:
      raise error
    raise explained from error

  def _explained(self, step: int, error: BaseException) -> BaseException:
    """Returns a UserError for one of the file system, else the error itself."""
    reason = files.system_error(error)
    if reason is None:
      return error
    saved = [s for s in self._manifests.steps() if s != step]
    last = f'the last one is of step {saved[-1]}' if saved else 'there is none'
    return errors.UserError(
      f'the checkpoint of step {step} cannot be written to'
      f' {self._manifests.directory}: {reason}. Earlier checkpoints are'
      f' unharmed: {last}. When there is a remedy, the same command continues'
    )

  def _about(self, step: int) -> dict[str, Any]:
    """Checks all files and returns the metadata of a checkpoint."""
    if step != self._checked:
      self._on_first_process(lambda: self._manifests.require_intact(step))
    about = self._manager.restore(
      step, args=ocp.args.Composite(about=ocp.args.JsonRestore())
    )['about']
    about['extra'] |= self._amended(step)
    return about

  def _amended(self, step: int) -> dict[str, Any]:
    return self._manifests.read(step).get('amended', {})

  def wait(self) -> None:
    """Waits until the save in the background, if any, is committed.

    Raises:
      Exception: it failed, in this or another process.
    """
    if self._pending is None:
      return
    (step, future), self._pending = self._pending, None
    saving = f'waiting for the save of step {step}'
    with watchdog.current().longer(saving, self._save_seconds):
      self._finish(step, future)

  def _finish(self, step: int, future: concurrent.futures.Future) -> None:
    """Waits for the save of a step, see `wait`."""
    error = future.exception()
    if error is not None:
      # Orbax raises an error once in each thread that waits. Consume it in this
      # one, so that the next save does not raise it.
      with contextlib.suppress(Exception):
        self._manager.wait_until_finished()
    failed = error is not None
    if jax.process_count() > 1:
      failed = bool(np.any(multihost_utils.process_allgather(failed)))
    if error is not None:
      self._fail(step, error)
    if failed:
      if jax.process_index() == 0:
        self._manifests.abandon(step)
      raise RuntimeError(
        f'saving the checkpoint of step {step} in {self._manifests.directory}'
        ' failed in another process; see its log'
      )
    self._lineage.add(step)

  def close(self, *, alone: bool = False) -> None:
    """Waits for the save in the background and stops the threads.

    Args:
      alone: whether this process closes without the others, such as after an
        error. Then it does not check the outcome of the save.

    Raises:
      Exception: the save failed.
    """
    try:
      if not alone:
        self.wait()
    finally:
      self._executor.shutdown()
      self._manager.close()

  def _commit(self, step: int) -> None:
    """Waits for Orbax, then commits; runs in the background."""
    self._manager.wait_until_finished()
    if jax.process_index() == 0:
      self._manifests.commit(step, self._retention.of_new(step))
      self._retention.prune(step)

  def _amend_after(
    self, commit: concurrent.futures.Future | None, step: int, extra: dict
  ) -> None:
    if commit is not None:
      commit.result()
    if jax.process_index() == 0:
      self._manifests.amend(step, {'amended': {**self._amended(step), **extra}})

  def _on_first_process(self, fn: Callable[[], int | None]) -> int | None:
    return first_process.result_of(
      fn, f'cannot use the checkpoints in {self._manifests.directory}'
    )


def _async_options(seconds: int | None) -> ocp.AsyncOptions | None:
  """Returns Orbax's options with a time limit; None for its defaults."""
  return None if seconds is None else ocp.AsyncOptions(timeout_secs=seconds)


def _handlers(max_bytes_in_flight: int | None) -> dict[str, Any] | None:
  """Returns Orbax's handlers with a limit; None for its default handlers."""
  if max_bytes_in_flight is None:
    return None
  gigabytes = 1.01 * max_bytes_in_flight / 1e9  # Rounded up.
  return {
    'state': ocp.StandardCheckpointHandler(save_concurrent_gb=gigabytes),
    'about': ocp.JsonCheckpointHandler(),
  }
