"""The classes of the release of Lingvo that translations were compared with.

`stock_classes.json` has a digest of each file and of each class in it, without
comments and docstrings. `python -m
tests.adaptors.lingvo_registry.stock_classes_test --write` writes it for the
installed release.
"""

import functools
import hashlib
import json
import pathlib
import sys
from typing import Any

from adaptors.lingvo_registry import class_definitions

RECORD = pathlib.Path(__file__).with_name('stock_classes.json')
# Folders and files of Lingvo without translated classes.
_OTHERS = {'params', 'tools', 'testdata'}


def release() -> str:
  """Returns the version of the release."""
  return _record()['release']


def is_changed(cls: type) -> bool:
  """Returns whether a class of the release is defined otherwise here.

  Args:
    cls: any class; one that the release lacks has not changed.
  """
  known = _record()['modules'].get(cls.__module__)
  file = getattr(sys.modules.get(cls.__module__), '__file__', None)
  if not known or not file or cls.__name__ not in known['classes']:
    return False
  if _digest_of_file(file) == known['file']:
    return False
  definition = class_definitions.of_file(pathlib.Path(file)).get(cls.__name__)
  found = _digest((definition or '').encode())
  return found != known['classes'][cls.__name__]


def record_of(root: pathlib.Path, version: str) -> dict[str, Any]:
  """Returns the content of the record for an installed release.

  Args:
    root: the folder of the package `lingvo`.
    version: of the release.
  """
  modules = {}
  for file in sorted(root.rglob('*.py')):
    parts = file.relative_to(root.parent).with_suffix('').parts
    if _OTHERS.intersection(parts) or file.stem.endswith('_test'):
      continue
    definitions = class_definitions.of_file(file)
    if definitions:
      modules['.'.join(parts)] = {
        'file': _digest_of_file(file),
        'classes': {n: _digest(d.encode()) for n, d in definitions.items()},
      }
  return {'release': version, 'modules': modules}


@functools.cache
def _record() -> dict[str, Any]:
  return json.loads(RECORD.read_text('utf-8'))


@functools.cache  # Many classes are in one file.
def _digest_of_file(file: str | pathlib.Path) -> str:
  return _digest(pathlib.Path(file).read_bytes())


def _digest(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()[:12]
