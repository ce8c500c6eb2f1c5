"""The folder of a run: its experiment, and its small text files.

Folders are local, on a mounted shared file system, or in Google Cloud Storage
(see `remote`). With several processes, all of them may call `claim`, and only
process 0 writes.
"""

import datetime
import json
import os
import pathlib
import shutil
from typing import Any

from pax_compat import errors
from pax_compat.runs import files, remote, versions

_EXPERIMENT_FILE = 'experiment.json'


def claim(job_log_dir: str | os.PathLike, experiment_name: str) -> None:
  """Creates the folder of a run, or checks that it is of the experiment.

  `experiment.json` in the folder has the name of the experiment. A folder that
  contains neither this file nor checkpoints is accepted; its files stay.

  Args:
    job_log_dir: the folder; it is created if it does not exist.
    experiment_name: the name that the user gave.

  Raises:
    UserError: the folder cannot be used, belongs to another experiment, or
      contains checkpoints but not the name of their experiment.
  """
  folder = answering_path(job_log_dir)
  try:
    files.make_folder(folder)
    owner = _owner(folder)
    if owner is None:
      mark = {
        'name': experiment_name,
        'version': versions.of_package(),
        'created': datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds'
        ),
      }
      replace_text(folder / _EXPERIMENT_FILE, json.dumps(mark, indent=2) + '\n')
  except errors.UserError:
    raise
  except Exception as e:
    # Libraries of remote folders have error types of their own.
    if not isinstance(e, OSError) and not remote.is_remote(folder):
      raise
    reason = getattr(e, 'strerror', None) or errors.one_line(e)
    raise errors.UserError(
      f'--job_log_dir={job_log_dir} cannot be used: {reason}; expected'
      ' a folder that is writable, or that can be created'
    ) from e
  _require_same(job_log_dir, owner, experiment_name)


def remove_unused(job_log_dir: str | os.PathLike) -> None:
  """Removes a local folder in which a run that failed has written nothing yet.

  It is removed if it has the name of its experiment, and no other file.
  """
  folder = checked_path(job_log_dir)
  if remote.is_remote(folder):
    return
  found = [path for path in folder.rglob('*') if not path.is_dir()]
  if found == [folder / _EXPERIMENT_FILE]:
    shutil.rmtree(folder)


def check_owner(job_log_dir: str | os.PathLike, experiment_name: str) -> None:
  """Checks that a folder, if it exists, is of the experiment; only reads.

  Raises:
    UserError: it belongs to another experiment.
  """
  owner = _owner(checked_path(job_log_dir))
  _require_same(job_log_dir, owner, experiment_name)


def _require_same(job_log_dir, owner: str | None, experiment_name: str) -> None:
  if owner not in (None, experiment_name):
    raise errors.UserError(
      f'--job_log_dir={job_log_dir} belongs to the experiment {owner}, not to'
      f' {experiment_name}; nothing was changed in it. Give another'
      f' --job_log_dir, or --exp={owner}'
    )


def checked_path(path: str | os.PathLike) -> Any:
  """Returns the absolute path; nothing is read or written.

  Args:
    path: a folder or file, absolute, relative to the working directory, or in
      the home folder, `~/folder` (shells leave the tilde of `--flag=~/folder`
      as it is); or a URL `gs://bucket/folder`.

  Returns:
    A `pathlib.Path`, or the `etils.epath.Path` of a URL.

  Raises:
    UserError: it is a URL that cannot be used; see `remote.path_of`.
  """
  if remote.is_remote(path):
    return remote.path_of(path)
  local = pathlib.Path(path)
  remote.refuse_mangled(local)
  if local.parts[:1] == ('~',):
    local = local.expanduser()
  return local.absolute()


def answering_path(path: str | os.PathLike) -> Any:
  """Returns `checked_path`, of a remote folder when its service answers.

  Raises:
    UserError: it is a URL that cannot be used, or its service does not answer.
  """
  checked = checked_path(path)
  remote.require_answer(checked)
  return checked


def local_path(path: str | os.PathLike) -> pathlib.Path:
  """Returns the absolute path of a folder or file that must be local.

  Raises:
    UserError: it is a URL.
  """
  if remote.is_remote(path):
    raise errors.UserError(
      f'{os.fspath(path)} is a URL; expected a path in a mounted file system,'
      ' such as /mnt/bucket/run1'
    )
  return checked_path(path)


def write_text(path: str | os.PathLike, text: str) -> None:
  """Writes a file atomically; other content is kept as `<name>.<n>`.

  Args:
    path: the file; its folder exists.
    text: the new content.
  """
  path = checked_path(path)
  if path.exists():
    if path.read_bytes() == text.encode():
      return
    n = 1
    while path.with_name(f'{path.name}.{n}').exists():
      n += 1
    path.rename(path.with_name(f'{path.name}.{n}'))
  replace_text(path, text)


def replace_text(path: Any, text: str) -> None:
  """Writes a file atomically: readers see the old or the new content.

  Args:
    path: the file; its folder exists. Old content is lost.
    text: the new content.
  """
  files.replace(path, text.encode())


def _owner(folder: Any) -> str | None:
  """Returns the name of the folder's experiment, None if it has none."""
  mark = folder / _EXPERIMENT_FILE
  if mark.exists():
    try:
      return files.parse_json(files.read_bytes(mark))['name']
    except (ValueError, KeyError, TypeError) as e:
      raise errors.UserError(
        f'{mark} is damaged ({e!r}); expected a JSON object with the name of'
        ' the experiment. Repair it, or give another --job_log_dir'
      ) from e
  checkpoints = folder / 'checkpoints'
  manifests = files.children(checkpoints / 'manifests')
  if any(path.suffix == '.json' for path in manifests) or any(
    path.name.isdigit() for path in files.children(checkpoints)
  ):
    raise errors.UserError(
      f'--job_log_dir={folder} contains checkpoints, but not the'
      f' {_EXPERIMENT_FILE} with the name of their experiment; nothing was'
      ' changed in it. Copy that file, too, from the folder of their run, or'
      ' give another --job_log_dir'
    )
  return None
