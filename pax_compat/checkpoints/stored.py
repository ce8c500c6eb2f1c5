"""Reads checkpoints that a run, which may still be going on, has saved.

Nothing is created, locked, deleted or changed in their folder. Single arrays
can be read: the weights without the optimizer's state, for example.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from pax_compat import errors
from pax_compat.checkpoints import stored_arrays
from pax_compat.checkpoints.manifests import Manifests
from pax_compat.processes import first_process
from pax_compat.runs import job_dir

# Where a run keeps its checkpoints.
FOLDER = 'checkpoints'


class StoredCheckpoint:
  """One checkpoint of a run, opened for reading.

  With several processes, all of them open it and read the same arrays.

  Attributes:
    step: the number of steps that the state was trained for.
    files: the folder with its files.
    arrays: metadata of its arrays by dotted path, such as
      `mdl_vars.params.lm.softmax.w`: `shape` and `dtype`.
    extra: the metadata that was saved with it.
  """

  step: int
  files: Any
  arrays: dict[str, dict]
  extra: dict

  def __init__(self, directory: str | os.PathLike, step: int | None = None):
    """Opens a checkpoint and verifies its files.

    Args:
      directory: the folder of the checkpoints, `<job_log_dir>/checkpoints`.
      step: of the checkpoint; None for the newest that is intact.

    Raises:
      UserError: the checkpoint is missing or damaged.
    """
    manifests = Manifests(job_dir.checked_path(directory))

    def verified() -> int | None:
      if step is None:
        return manifests.newest_intact()
      manifests.require_intact(step)
      return step

    found = first_process.result_of(
      verified, f'cannot use the checkpoints in {manifests.directory}'
    )
    if found is None:
      raise errors.UserError(
        f'{manifests.directory} has no checkpoint; expected the checkpoints of'
        ' a run'
      )
    self.step = found
    self.files = manifests.files(found)
    about = _restored(self.files / 'about', ocp.JsonCheckpointHandler())
    self.arrays = about['arrays']
    self.extra = about['extra'] | manifests.read(found).get('amended', {})

  def read(
    self, wanted: Mapping[str, jax.ShapeDtypeStruct]
  ) -> dict[str, jax.Array]:
    """Returns some arrays, and reads no others.

    Args:
      wanted: shape, dtype and sharding of each, by dotted path.

    Raises:
      UserError: one is not in the checkpoint, or has another shape or dtype.
    """
    about = {path: self.arrays.get(path) for path in wanted}
    stored_arrays.require_fit(
      self.step,
      self.files.parent,
      {path: one for path, one in about.items() if one is not None},
      dict(wanted),
    )
    target = stored_arrays.to_stored_target(dict(wanted))
    read = {}
    if target:
      read = _restored(
        self.files / 'state',
        ocp.PyTreeCheckpointHandler(),
        args=ocp.args.PyTreeRestore(
          item=target,
          restore_args=ocp.checkpoint_utils.construct_restore_args(target),
          partial_restore=True,
        ),
      )
    return {
      path: stored_arrays.from_stored(read.get(path), leaf, about[path])
      for path, leaf in wanted.items()
    }


def _restored(path: Any, handler: Any, **options: Any) -> Any:
  """Reads an item; unlike Orbax's checkpointers without waiting for others.

  So a process that cannot read it fails alone, and its caller can tell others.
  """
  try:
    return handler.restore(path, **options)
  finally:
    handler.close()
