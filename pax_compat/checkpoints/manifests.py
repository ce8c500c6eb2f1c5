"""Manifests: the checkpoints in a folder, and whether they are intact.

    manifests/120.json          the manifest of step 120, its commit
    manifests/130.uncommitted   a save of step 130, or its deletion, has begun
    damaged/120                 files of a damaged checkpoint, set aside

The mark of a save goes when its manifest is written, that of a deletion when
the files are gone. So files with neither mark nor manifest are of a checkpoint
whose manifest was lost, not of a run that was killed.
"""

import contextlib
import errno
import json
import os
import stat
import zlib
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.checkpoints import checksums
from pax_compat.runs import files as files_lib
from pax_compat.runs import job_dir, remote

_MANIFESTS = 'manifests'
_DAMAGED = 'damaged'
_UNCOMMITTED = '.uncommitted'
# The field with the checksum of all other fields.
_CHECKSUM = 'crc32'
_FIELDS = {'step', 'kept', 'kept_since', 'files', 'amended', _CHECKSUM}


class Manifests:
  """The manifests of a folder. Only process 0 changes or checks checkpoints.

  Attributes:
    directory: the folder.
    damaged: why checkpoints are damaged, by step, as far as they were checked.
  """

  def __init__(self, directory: Any, *, todelete_subdir: str | None = None):
    """Does not access the folder.

    Args:
      directory: the folder, as `job_dir.checked_path` returns it.
      todelete_subdir: subfolder that deleted checkpoints are moved to; None
        deletes their files.
    """
    self.directory = directory
    self.damaged: dict[int, str] = {}
    self._todelete_subdir = todelete_subdir

  def create_folder(self):
    """Creates the folder if needed.

    Raises:
      UserError: it cannot be used.
    """
    try:
      if self._path(0).parent.exists():
        return
      if self._steps_of_files():  # `newest_intact` reports that it is lost.
        return
      files_lib.make_folder(self.directory / _MANIFESTS)
    except OSError as e:
      raise self._unusable(e) from e

  def steps(self) -> list[int]:
    """Returns the committed steps in ascending order.

    Raises:
      UserError: the folder cannot be read.
    """
    return self._steps_with('.json')

  def lost_steps(self) -> list[int]:
    """Returns the steps that have files, and have lost their manifest."""
    return [s for s in self._steps_of_files() if self._has_lost_manifest(s)]

  def uncommitted_steps(self) -> list[int]:
    """Returns the steps whose save, or whose deletion, was not completed."""
    return [
      s for s in self._steps_with(_UNCOMMITTED) if not self._path(s).exists()
    ]

  def files(self, step: int) -> Any:
    """Returns the folder with the files of a step."""
    return self.directory / str(step)

  def begin(self, step: int):
    """Marks that a save has begun, before its files are written."""
    files_lib.make_folder(self.directory / _MANIFESTS)
    files_lib.replace(self._mark(step), b'')

  def commit(self, step: int, about: dict[str, Any]):
    """Writes the manifest of a step, whose files are complete.

    Args:
      step: the step.
      about: additional fields of the manifest, as JSON values.

    Raises:
      OSError: a file cannot be read.
    """
    files = checksums.of_files(self.files(step))
    for name, found in files.items():
      if found is None or 'error' in found:
        text, path = checksums.describe(found), self.files(step) / name
        raise OSError(errno.EIO, text, os.fspath(path))
    self._write(step, {'step': step, **about, 'files': files})
    self.damaged.pop(step, None)
    self._mark(step).unlink(missing_ok=True)

  def abandon(self, step: int):
    """Deletes what a save that failed has left, as far as possible."""
    with contextlib.suppress(OSError):
      if self._path(step).exists():
        return  # It was committed, and an update of its metadata failed.
      for path in files_lib.children(self.directory):
        if path.name == str(step) or path.name.startswith(f'{step}.orbax'):
          files_lib.delete_folder(path)
      self._mark(step).unlink(missing_ok=True)

  def amend(self, step: int, about: dict[str, Any]):
    """Updates fields of a manifest.

    Args:
      step: the step.
      about: the new values, as JSON values.

    Raises:
      UserError: the manifest is damaged, or there is none.
    """
    self._write(step, {**self._read(step), **about})

  def read(self, step: int) -> dict[str, Any]:
    """Returns the fields of a manifest, {} if it is damaged."""
    try:
      return self._read(step)
    except errors.UserError:
      return {}

  def delete(self, step: int):
    """Deletes a checkpoint, committed or not, or moves it away.

    One that is damaged, or has lost its manifest, is set aside.
    """
    lost = self._has_lost_manifest(step) and self._has_files(step)
    if lost or step in self.damaged:
      self._set_aside(step)
      return
    with contextlib.suppress(OSError):  # A full disk has no room for a mark.
      files_lib.replace(self._mark(step), b'')
    self._path(step).unlink(missing_ok=True)  # uncommit first
    if self._todelete_subdir is not None:
      self._move(self.files(step), self._todelete_subdir)
    elif files_lib.is_there(self.files(step)):
      files_lib.delete_folder(self.files(step))
    self._mark(step).unlink(missing_ok=True)

  def newest_intact(self) -> int | None:
    """Returns the newest step whose files are intact, None if there is none.

    Raises:
      UserError: there are checkpoints, and all of them are damaged; or the
        folder cannot be read.
    """
    committed = set(self.steps())
    lost = set(self.lost_steps())
    for path in files_lib.children(self.directory):
      step = int(path.name) if path.name.isdigit() else None
      if path.name[0].isdigit() and step not in committed | lost:
        logging.info('skipping %s: it was never committed', path)
    problems = []
    for step in sorted(committed | lost, reverse=True):
      problem = self.problem(step)
      if problem is None:
        return step
      if step in committed and step not in self.steps():
        continue  # Another process has deleted it meanwhile.
      self.damaged[step] = problem
      problems.append(problem)
      logging.warning('checkpoint %d is damaged: %s', step, problem)
    if problems:
      raise errors.UserError(
        f'none of the {len(problems)} checkpoints in {self.directory} is'
        f' intact; expected at least one. The newest: {problems[0]}. Nothing'
        ' was changed. Restore the folder from a copy, or give another'
        ' --job_log_dir to start anew'
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
    problem = self.problem(step)
    if problem is not None:
      raise errors.UserError(f'checkpoint {step} is damaged: {problem}')

  def problem(self, step: int) -> str | None:
    """Returns why a checkpoint is damaged, None if it is intact.

    Reads all of its files.
    """
    try:
      files = self._read(step)['files']
    except errors.UserError as e:
      return str(e)
    try:
      found = checksums.of_files(self.files(step), files)
    except OSError as e:
      return f'{self.files(step)}: {e.strerror or e}'
    for name, about in found.items():
      if about != files[name]:
        return (
          f'{self.files(step) / name}:'
          f' expected {checksums.describe(files[name])},'
          f' found {checksums.describe(about)}'
        )
    return None

  def _read(self, step: int) -> dict[str, Any]:
    """Returns the fields of a manifest.

    Raises:
      UserError: it is damaged, or there is none.
    """
    path = self._path(step)
    try:
      text = _content(path)
      read = files_lib.parse_json(text)
    except FileNotFoundError:
      raise errors.UserError(f'{path}: file not found') from None
    except OSError as e:
      raise errors.UserError(f'{path}: {e.strerror or e}') from e
    except ValueError as e:
      raise errors.UserError(f'{path}: expected a manifest, found {e!r}') from e
    wrong = _wrong(read, step)
    if not wrong and text != _text(read):
      wrong = 'other white space'
    if wrong:
      raise errors.UserError(f'{path}: expected a manifest, found {wrong}')
    return read

  def _steps_with(self, suffix: str) -> list[int]:
    try:
      paths = files_lib.children(self.directory / _MANIFESTS)
    except OSError as e:
      raise self._unusable(e) from e
    found = (p.name.removesuffix(suffix) for p in paths if p.suffix == suffix)
    return sorted(int(name) for name in found if name.isdigit())

  def _steps_of_files(self) -> list[int]:
    """Returns the steps that have files, committed or not."""
    try:
      names = (path.name for path in files_lib.children(self.directory))
      steps = sorted(int(name) for name in names if name.isdigit())
      return [step for step in steps if self._has_files(step)]
    except OSError as e:
      raise self._unusable(e) from e

  def _has_files(self, step: int) -> bool:
    try:
      return bool(files_lib.children(self.files(step)))
    except OSError:  # Of what is not a folder, or cannot be read.
      return True

  def _has_lost_manifest(self, step: int) -> bool:
    """Whether a step, which has files, was committed without a trace of it."""
    return not self._path(step).exists() and not self._mark(step).exists()

  def _set_aside(self, step: int):
    """Moves the files of a checkpoint to the folder of damaged ones."""
    logging.warning(
      'moving the damaged checkpoint %d to %s', step, self.directory / _DAMAGED
    )
    self._move(self._path(step), _DAMAGED)
    self._move(self.files(step), _DAMAGED)
    self.damaged.pop(step, None)

  def _move(self, path: Any, subdir: str):
    if not files_lib.is_there(path):
      return
    folder = self.directory / subdir
    files_lib.make_folder(folder)
    target, n = folder / path.name, 0
    while files_lib.is_there(target):
      n += 1
      target = folder / f'{path.name}.{n}'
    path.rename(target)

  def _write(self, step: int, manifest: dict[str, Any]):
    manifest = {k: v for k, v in manifest.items() if k != _CHECKSUM}
    manifest[_CHECKSUM] = _checksum(manifest)
    job_dir.replace_text(self._path(step), _text(manifest))

  def _path(self, step: int) -> Any:
    return self.directory / _MANIFESTS / f'{step}.json'

  def _mark(self, step: int) -> Any:
    return self.directory / _MANIFESTS / f'{step}{_UNCOMMITTED}'

  def _unusable(self, error: OSError) -> errors.UserError:
    return errors.UserError(
      f'the checkpoint folder {self.directory} cannot be used:'
      f' {error.strerror or error}; expected a folder that can be read and'
      ' written'
    )


def _content(path: Any) -> str:
  """Returns the text of a file."""
  if not remote.is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError(0, 'not a file')  # To open a pipe would block.
  return files_lib.read_bytes(path).decode('utf-8')


def _text(manifest: dict[str, Any]) -> str:
  return json.dumps(manifest, indent=1) + '\n'


def _wrong(manifest: Any, step: int) -> str:
  """Returns what is wrong with the content of a manifest, '' if nothing."""
  if not isinstance(manifest, dict):
    return f'a {type(manifest).__name__}'
  unknown = sorted(manifest.keys() - _FIELDS)
  if unknown:
    return f'the field {unknown[0]!r}'
  if manifest.get('step') != step:
    return f'step {manifest.get("step")!r}'
  files = manifest.get('files')
  if not isinstance(files, dict) or not files:
    return 'no files'
  if not all(isinstance(about, dict) for about in files.values()):
    return 'a file without a size'
  # Older manifests do not have it.
  found = manifest.get(_CHECKSUM)
  if found is not None and found != _checksum(manifest):
    return 'another checksum of its fields'
  return ''


def _checksum(manifest: dict[str, Any]) -> str:
  """Returns the CRC-32 of all other fields of a manifest."""
  others = {k: v for k, v in manifest.items() if k != _CHECKSUM}
  text = json.dumps(others, sort_keys=True)
  return f'{zlib.crc32(text.encode()):08x}'
