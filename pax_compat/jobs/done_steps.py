"""Which checkpoints a job has used, on disk, so that none is used twice.

The file is JSON: for each step the checkpoint, by a digest of the checksums of
its files, and the splits that were written for it:

    {"10": {"checkpoint": "5f0c1d2e", "splits": ["eval_test_dev"]}}

A run that continues from an earlier step saves later steps again. These are
other checkpoints, which have other digests.
"""

import json
from collections.abc import Collection, Iterable
from typing import Any

from pax_compat import errors
from pax_compat.runs import files, job_dir


class DoneSteps:
  """The checkpoints that were used, and what for. For process 0 only."""

  def __init__(self, path: Any):
    """Reads the file, if there is one.

    Args:
      path: of the file, local or remote.

    Raises:
      UserError: the file is damaged.
    """
    self._path = path
    self._steps: dict[int, dict[str, Any]] = {}
    if not path.exists():
      return
    try:
      read = files.parse_json(files.read_bytes(path))
      self._steps = {
        int(step): {
          'checkpoint': str(done['checkpoint']),
          'splits': [str(split) for split in done['splits']],
        }
        for step, done in read.items()
      }
    except (ValueError, KeyError, TypeError, AttributeError) as e:
      raise errors.UserError(
        f'{path} is damaged ({e!r}); expected a JSON object of the steps that'
        ' are done. Delete it to use all checkpoints again'
      ) from e

  def __contains__(self, key: tuple[int, str]) -> bool:
    """Whether a (step, split) was written, by whatever checkpoint."""
    step, split = key
    return step in self._steps and split in self._steps[step]['splits']

  def has(self, step: int, checkpoint: str, split: str) -> bool:
    """Whether a split was written for a checkpoint."""
    return (step, split) in self and not self.replaced(step, checkpoint)

  def replaced(self, step: int, checkpoint: str) -> bool:
    """Whether another checkpoint of this step was used before."""
    done = self._steps.get(step)
    return done is not None and done['checkpoint'] != checkpoint

  def forget_from(self, step: int):
    """Forgets a step and all later ones; the next `add` writes that."""
    self._steps = {s: done for s, done in self._steps.items() if s < step}

  def forget(self, steps: Iterable[int], splits: Collection[str]):
    """Forgets splits of some steps, in the file too, as they are used again."""
    found = self._steps.keys() & set(steps)
    if not found:
      return
    for step in found:
      done = self._steps[step]
      done['splits'] = [one for one in done['splits'] if one not in splits]
      if not done['splits']:
        del self._steps[step]
    self._write()

  def add(self, step: int, checkpoint: str, split: str):
    """Records a split as written, in the file too."""
    new = {'checkpoint': checkpoint, 'splits': []}
    done = self._steps.setdefault(step, new)
    if split not in done['splits']:
      done['splits'].append(split)
    self._write()

  def _write(self):
    ordered = {str(s): self._steps[s] for s in sorted(self._steps)}
    job_dir.replace_text(self._path, json.dumps(ordered, indent=1) + '\n')
