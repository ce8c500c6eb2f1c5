"""Each kind of damage to each kind of file of a checkpoint, as a table.

    python -m tests.pax_compat.checkpoints.damages

prints a line for each case: the damage, the file, what happens with a
checkpoint before it and without one.
"""

import builtins
import contextlib
import dataclasses
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np

from pax_compat import errors
from pax_compat.checkpoints import checksums, manifests
from pax_compat.runs import job_dir
from tests.pax_compat.checkpoints import states

OLD, NEW = 5, 10


def _flip(position: float):
  def change(path):
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(data)

  return change


def _rewrite(content: Callable[[bytes], bytes]):
  return lambda path: path.write_bytes(content(path.read_bytes()))


def _instead(make: Callable[[pathlib.Path], object]):
  def change(path):
    _remove(path)
    make(path)

  return change


def _remove(path: pathlib.Path):
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink()


def _noise(data: bytes) -> bytes:
  return np.random.default_rng(0).bytes(len(data))


# Of a file.
FILE_DAMAGES = {
  'first bit flipped': _flip(0.0),
  'bit in the middle flipped': _flip(0.5),
  'last bit flipped': _flip(1.0),
  'last byte lost': _rewrite(lambda data: data[:-1]),
  'second half lost': _rewrite(lambda data: data[: len(data) // 2]),
  'empty': _rewrite(lambda data: b''),
  'zeros': _rewrite(lambda data: bytes(len(data))),
  'noise': _rewrite(_noise),
  'written twice': _rewrite(lambda data: data + data),
  'one byte added': _rewrite(lambda data: data + b'x'),
  'an empty JSON object': _rewrite(lambda data: b'{}'),
  'a folder': _instead(lambda path: path.mkdir()),
  'a pipe': _instead(lambda path: os.mkfifo(path)),
}
# Of a file or a folder.
DAMAGES = {
  'lost': _remove,
  'renamed': lambda path: path.rename(path.with_name(f'{path.name}~')),
  'a link to nothing': _instead(lambda path: path.symlink_to('nothing')),
  'a link to itself': _instead(lambda path: path.symlink_to(path.name)),
}
# Of a folder.
FOLDER_DAMAGES = {
  'empty': lambda path: [_remove(child) for child in path.iterdir()],
  'a file': _instead(lambda path: path.write_bytes(b'')),
}
# Errors of reading a file.
ERRORS = {
  'input/output error': errno.EIO,
  'permission denied': errno.EACCES,
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A damage to something of a checkpoint.

  Attributes:
    damage: its name.
    path: relative to the folder of the checkpoints; `N` stands for the step.
  """

  damage: str
  path: str

  @contextlib.contextmanager
  def applied(self, folder: pathlib.Path) -> Iterator[None]:
    """Within it, the newer checkpoint is damaged; errors end with it."""
    path = folder / self.path.replace('N', str(NEW), 1)
    if self.damage in ERRORS:
      with _failing(path, ERRORS[self.damage]):
        yield
      return
    kind = FOLDER_DAMAGES if path.is_dir() else FILE_DAMAGES
    (DAMAGES | kind)[self.damage](path)
    yield


@contextlib.contextmanager
def _failing(path: pathlib.Path, number: int) -> Iterator[None]:
  """Within it, reading a file fails, but not one that takes its place."""
  original, read = builtins.open, pathlib.Path.read_bytes

  def fails(file):
    try:
      return os.path.samestat(os.stat(file), os.fstat(failing.fileno()))
    except FileNotFoundError:
      return False

  def opened(file, *args, **kwargs):
    if fails(file):
      raise OSError(number, os.strerror(number), str(file))
    return original(file, *args, **kwargs)

  def read_bytes(self, **kwargs):
    return opened(self) if fails(self) else read(self, **kwargs)

  with (
    original(path, 'rb') as failing,
    mock.patch.object(checksums, 'open', opened, create=True),
    mock.patch.object(pathlib.Path, 'read_bytes', read_bytes),
  ):
    yield


def make(folder: pathlib.Path):
  """Saves two checkpoints."""
  states.save_steps(folder, OLD, NEW)


def cases(folder: pathlib.Path) -> list[Case]:
  """Returns all cases of the checkpoints of `make`."""
  paths = [pathlib.Path('manifests', f'{NEW}.json'), pathlib.Path(str(NEW))]
  inside = sorted((folder / str(NEW)).rglob('*'))
  paths += [path.relative_to(folder) for path in inside]
  found = []
  for path in paths:
    is_folder = (folder / path).is_dir()
    kinds = {**DAMAGES, **(FOLDER_DAMAGES if is_folder else FILE_DAMAGES)}
    kinds |= {} if is_folder else ERRORS
    # Nothing is lost with a folder without files.
    if is_folder and not any(p.is_file() for p in (folder / path).rglob('*')):
      continue
    name = str(path).replace(str(NEW), 'N', 1)
    found += [Case(damage, name) for damage in kinds]
  return found


def outcome(folder: pathlib.Path) -> tuple[int | None, str]:
  """Returns the newest intact step and why newer ones are damaged.

  Without an intact one the step is None, and the text that of the error.
  """
  found = manifests.Manifests(job_dir.checked_path(folder))
  try:
    step = found.newest_intact()
  except errors.UserError as e:
    return None, str(e)
  return step, '; '.join(found.damaged.values())


def outcomes(
  good: pathlib.Path, folder: pathlib.Path
) -> Iterator[tuple[Case, tuple[int | None, str], tuple[int | None, str]]]:
  """Yields each case, and its outcome with a checkpoint before and without.

  Asserts that looking changes nothing.

  Args:
    good: folder of `make`.
    folder: does not exist; the damaged checkpoints.
  """
  folder.mkdir()
  (folder / 'manifests').mkdir()
  for case in cases(good):
    for step in (OLD, NEW):
      for name in (str(step), f'manifests/{step}.json'):
        if (good / name).is_dir():
          shutil.copytree(good / name, folder / name)
        else:
          shutil.copy(good / name, folder / name)
    with case.applied(folder):
      before = _names(folder)
      first = outcome(folder)
      assert _names(folder) == before
      _remove(folder / str(OLD))
      _remove(folder / 'manifests' / f'{OLD}.json')
      second = outcome(folder)
    yield case, first, second
    for path in (*folder.glob('[0-9]*'), *folder.glob('manifests/*')):
      _remove(path)


def _names(folder: pathlib.Path) -> list[str]:
  return sorted(str(path) for path in folder.rglob('*'))


def main():
  """Prints the table."""
  count = 0
  with tempfile.TemporaryDirectory() as temporary:
    good, folder = pathlib.Path(temporary, 'good'), pathlib.Path(temporary, 'x')
    make(good)
    for case, (step, why), (_, error) in outcomes(good, folder):
      count += 1
      why = why.replace(f'{folder}/', '')
      error = error.replace(f'{folder}/', '')
      print(
        f'{case.damage} | {case.path} | continues from {step}: {why} | without'
        f' another one: exit status 2: {error}'
      )
  print(f'{count} cases')


if __name__ == '__main__':
  main()
