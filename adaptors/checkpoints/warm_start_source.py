"""TensorFlow checkpoints, such as Lingvo's, as sources of a warm start.

Rules name tensors as the checkpoint does, such as `lm/softmax/weight_0/var`.
They are loaded as they are: what is laid out differently here, such as the
weights of attention, needs the experiment in Lingvo, and `--lingvo_logdir` or
Lingvo's own `init_from_checkpoint_rules`.
"""

import os
import pathlib
from collections.abc import Mapping

import jax

from adaptors.checkpoints import files
from adaptors.checkpoints.counts import GLOBAL_STEP
from pax_compat import errors
from pax_compat.runs import remote
from pax_compat.warm_start import sources

_AVERAGE = '/ExponentialMovingAverage'


class TensorflowSource(sources.Source):
  """A TensorFlow checkpoint."""

  def __init__(self, checkpoint: files.TensorflowCheckpoint):
    """Takes an opened checkpoint."""
    self._checkpoint = checkpoint
    self.path = checkpoint.prefix
    self.arrays = dict(checkpoint.shapes)
    self.step = None
    if GLOBAL_STEP in self.arrays:
      self.step = int(checkpoint.read(GLOBAL_STEP))
    self.averages = {
      name.removesuffix(_AVERAGE): name
      for name in self.arrays
      if name.endswith(_AVERAGE)
    }
    self.variables = {
      name: name for name in self.arrays if name not in self.averages.values()
    }

  def read(
    self, requests: Mapping[str, sources.Request]
  ) -> dict[str, jax.Array]:
    return {
      target: sources.sharded(self._checkpoint.read(one.name), one.like)
      for target, one in requests.items()
    }


def open_checkpoint(
  path: str | os.PathLike, step: int | None
) -> TensorflowSource | None:
  """Returns the TensorFlow checkpoint at a path, None if there is none.

  Args:
    path: of a run of Lingvo, of its `train`, or of one checkpoint.
    step: of the checkpoint; None for the newest.

  Raises:
    UserError: it is damaged.
  """
  if remote.is_remote(path):
    return None
  folder = pathlib.Path(path).expanduser()
  prefix = folder.with_name(f'{folder.name}.index')
  if prefix.is_file():
    return TensorflowSource(files.TensorflowCheckpoint(folder))
  found = files.indices(folder)
  if not found:
    return None
  if step is None:
    return TensorflowSource(files.newest(folder))
  if step not in found:
    raise errors.UserError(
      f'{folder} has no checkpoint of step {step}; expected one of'
      f' {", ".join(map(str, sorted(found)))}'
    )
  return TensorflowSource(files.TensorflowCheckpoint(found[step]))
