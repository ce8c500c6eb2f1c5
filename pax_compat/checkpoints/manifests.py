"""Manifests: the checkpoints in a folder, and whether they are intact."""

import json
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.checkpoints import checksums
from pax_compat.runs import files as files_lib
from pax_compat.runs import job_dir

_MANIFESTS = 'manifests'


class Manifests:
  """The manifests of a folder. Only process 0 changes or checks checkpoints.

  Attributes:
    directory: the folder.
  """

  def __init__(self, directory: Any, *, todelete_subdir: str | None = None):
    """Does not access the folder.

    Args:
      directory: the folder, as `job_dir.checked_path` returns it.
      todelete_subdir: subfolder that deleted checkpoints are moved to; None
        deletes their files.
    """
    self.directory = directory
    self._todelete_subdir = todelete_subdir

  def create_folder(self):
    """Creates the folder if needed.

    Raises:
      UserError: it cannot be used.
    """
    try:
      files_lib.make_folder(self.directory / _MANIFESTS)
    except OSError as e:
      raise errors.UserError(
        f'the checkpoint folder {self.directory} cannot be used:'
        f' {e.strerror}; expected a folder that can be written'
      ) from e

  def steps(self) -> list[int]:
    """Returns the committed steps in ascending order."""
    manifests = files_lib.children(self.directory / _MANIFESTS)
    return sorted(
      int(path.stem)
      for path in manifests
      if path.suffix == '.json' and path.stem.isdigit()
    )

  def files(self, step: int) -> Any:
    """Returns the folder with the files of a step."""
    return self.directory / str(step)

  def commit(self, step: int, about: dict[str, Any]):
    """Writes the manifest of a step, whose files are complete.

    Args:
      step: the step.
      about: additional fields of the manifest, as JSON values.
    """
    files = checksums.of_files(self.files(step))
    self._write(step, {'step': step, **about, 'files': files})

  def amend(self, step: int, about: dict[str, Any]):
    """Updates fields of a manifest.

    Args:
      step: the step.
      about: the new values, as JSON values.
    """
    self._write(step, {**self.read(step), **about})

  def read(self, step: int) -> dict[str, Any]:
    """Returns the fields of a manifest, {} if it is damaged."""
    try:
      read = json.loads(self._path(step).read_text(encoding='utf-8'))
    except (OSError, ValueError):
      return {}
    return read if isinstance(read, dict) else {}

  def delete(self, step: int):
    """Deletes a checkpoint, committed or not, or moves it away."""
    self._path(step).unlink(missing_ok=True)  # uncommit first
    if self._todelete_subdir is None:
      files_lib.delete_folder(self.files(step))
      return
    folder = self.directory / self._todelete_subdir
    files_lib.make_folder(folder)
    target, n = folder / str(step), 0
    while target.exists():
      n += 1
      target = folder / f'{step}.{n}'
    self.files(step).rename(target)

  def newest_intact(self) -> int | None:
    """Returns the newest step whose files are intact, None if there is none.

    Raises:
      UserError: there are checkpoints, and all of them are damaged.
    """
    committed = self.steps()
    for path in files_lib.children(self.directory):
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
        f' intact; expected at least one. The newest: {problems[0]}. Restore'
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
    """Returns the first difference between files and manifest, or None."""
    manifest = self._path(step)
    try:
      files = json.loads(manifest.read_text(encoding='utf-8'))['files']
      found = checksums.of_files(self.files(step), files)
      for name, about in found.items():
        if about != files[name]:
          return (
            f'{self.files(step) / name}:'
            f' expected {checksums.describe(files[name])},'
            f' found {checksums.describe(about)}'
          )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
      return f'{manifest}: expected a manifest, found {e!r}'
    return None

  def _write(self, step: int, manifest: dict[str, Any]):
    job_dir.replace_text(
      self._path(step), json.dumps(manifest, indent=1) + '\n'
    )

  def _path(self, step: int) -> Any:
    return self.directory / _MANIFESTS / f'{step}.json'
