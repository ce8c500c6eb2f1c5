"""Manifests: which checkpoints a folder has, and whether they are intact."""

import json
import pathlib
import shutil
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.checkpoints import checksums
from pax_compat.runs import job_dir

_MANIFESTS = 'manifests'


class Manifests:
  """The manifests of a folder. Process 0 alone calls what changes or checks.

  Attributes:
    directory: the folder.
  """

  def __init__(self, directory: pathlib.Path):
    """Looks at nothing yet.

    Args:
      directory: the folder.
    """
    self.directory = directory

  def create_folder(self):
    """Creates the folder if needed.

    Raises:
      UserError: it cannot be used.
    """
    try:
      (self.directory / _MANIFESTS).mkdir(parents=True, exist_ok=True)
    except OSError as e:
      raise errors.UserError(
        f'the checkpoint folder {self.directory} cannot be used:'
        f' {e.strerror}; expected a folder that can be written'
      ) from e

  def steps(self) -> list[int]:
    """Returns the steps that are committed, the earliest first."""
    manifests = (self.directory / _MANIFESTS).glob('*.json')
    return sorted(int(path.stem) for path in manifests if path.stem.isdigit())

  def files(self, step: int) -> pathlib.Path:
    """Returns the folder with the files of a step."""
    return self.directory / str(step)

  def commit(self, step: int, about: dict[str, Any]):
    """Makes a checkpoint of the files of a step, which are whole.

    Args:
      step: the step.
      about: what its manifest says beside, as JSON values.
    """
    files = checksums.of_files(self.files(step))
    self._write(step, {'step': step, **about, 'files': files})

  def amend(self, step: int, about: dict[str, Any]):
    """Changes what a manifest says.

    Args:
      step: the step.
      about: what takes the place of fields of the manifest, as JSON values.
    """
    self._write(step, {**self.read(step), **about})

  def read(self, step: int) -> dict[str, Any]:
    """Returns what a manifest says, {} where it is damaged."""
    try:
      read = json.loads(self._path(step).read_text(encoding='utf-8'))
    except (OSError, ValueError):
      return {}
    return read if isinstance(read, dict) else {}

  def delete(self, step: int):
    """Deletes a checkpoint, or the files of one that was never committed."""
    self._path(step).unlink(missing_ok=True)  # uncommit first
    shutil.rmtree(self.files(step))

  def newest_intact(self) -> int | None:
    """Returns the newest step whose files are intact, None if there is none.

    Raises:
      UserError: there are checkpoints, and all of them are damaged.
    """
    committed = self.steps()
    for path in self.directory.iterdir():
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
        f'none of the {len(problems)} checkpoints in {self.directory} is'
        f' intact; expected one at least. The newest: {problems[0]}. Restore'
        ' the folder from a copy, or give another --job_log_dir to start anew'
      )
    return None

  def require_intact(self, step: int):
    """Raises a UserError unless a step is committed and its files intact."""
    committed = self.steps()
    if step not in committed:
      nearest = sorted(committed, key=lambda s: abs(s - step))[:3]
      raise errors.UserError(
        f'{self.directory} has no checkpoint of step {step}; the nearest are:'
        f' {", ".join(map(str, nearest)) or "none"}'
      )
    problem = self._problem(step)
    if problem is not None:
      raise errors.UserError(f'checkpoint {step} is damaged: {problem}')

  def _problem(self, step: int) -> str | None:
    """Returns how the files of a step differ from its manifest, if they do."""
    manifest = self._path(step)
    try:
      files = json.loads(manifest.read_text(encoding='utf-8'))['files']
      found = checksums.of_files(self.files(step), files)
      for name, about in found.items():
        if about != files[name]:
          return (
            f'{self.files(step) / name}: expected'
            f' {checksums.told(files[name])}, found {checksums.told(about)}'
          )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
      return f'{manifest}: expected a manifest, found {e!r}'
    return None

  def _write(self, step: int, manifest: dict[str, Any]):
    job_dir.replace_text(
      self._path(step), json.dumps(manifest, indent=1) + '\n'
    )

  def _path(self, step: int) -> pathlib.Path:
    return self.directory / _MANIFESTS / f'{step}.json'
