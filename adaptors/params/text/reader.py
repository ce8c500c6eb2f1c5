"""Reads the Params that a legacy run wrote: `trainer_params.pbtxt` or `.txt`.

    read = reader.read_file('/runs/lm1/train/trainer_params.pbtxt')
    task = read.params.task.Instantiate()

`proto_text` and `plain_text` parse the two forms, `building` builds the Params,
`classes` limits the classes that a text may name. If a run has both forms,
prefer the proto text: it has types and empty lists.
"""

import dataclasses
import gzip
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.params.text import building, classes, plain_text, proto_text
from pax_compat import errors

_PARSERS = {'.pbtxt': proto_text.parse, '.txt': plain_text.parse}


@dataclasses.dataclass(frozen=True)
class Read:
  """The result of reading a text.

  Attributes:
    params: Lingvo Params; those of a model for a trainer's text.
    defaulted: paths of fields that are not in the text, such as those that were
      added to Lingvo later. They have their class's defaults.
    emptied: paths of fields that are not in the text and are set to an empty
      list, which `Params.ToText` omits. This is wrong for a field that was
      added to Lingvo later.
    dropped: paths of fields that matched the caller's `drop`.
  """

  params: Any
  defaulted: tuple[str, ...] = ()
  emptied: tuple[str, ...] = ()
  dropped: tuple[str, ...] = ()


def read_file(path: str | os.PathLike, **options: Any) -> Read:
  """Reads a file of Params.

  Args:
    path: of a `.pbtxt` or `.txt` file, perhaps compressed (`.gz`).
    **options: of `read_text`.

  Raises:
    UserError: the file does not exist, or not all of it can be read.
  """
  path = pathlib.Path(path).expanduser()
  suffix = path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix
  if suffix not in _PARSERS:
    raise errors.UserError(
      f'{path}: expected a file of Params whose name ends in'
      f' {" or ".join(_PARSERS)}'
    )
  open_file = gzip.open if path.suffix == '.gz' else open
  try:
    with open_file(path, 'rt', encoding='utf-8') as file:
      text = file.read()
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise errors.UserError(f'{path} cannot be read: {error}') from error
  return read_text(text, form=suffix, source=str(path), **options)


def read_text(
  text: str,
  *,
  form: str,
  source: str = 'the text',
  packages: Iterable[str] = (),
  values: Mapping[str, Any] | None = None,
  drop: Iterable[str] = (),
) -> Read:
  """Reads a text of Params; returns the Params.

  Nothing in it is evaluated or unpickled. Only modules of Lingvo, the mounted
  params packages and `packages` are imported.

  Args:
    text: the contents of the file.
    form: '.pbtxt' for the proto text, '.txt' for that of `Params.ToText`.
    source: its name, for messages.
    packages: full names of packages, in addition to Lingvo's, whose classes and
      functions the text may name. Their modules are imported.
    values: values by path for fields that the text does not contain, such as an
      abbreviated array or an object.
    drop: `fnmatch` patterns of paths of fields that may be dropped if their
      class no longer has them.

  Raises:
    UserError: not all of the text can be read; the message lists every path
      that fails.
  """
  try:
    root = _PARSERS[form](text, source)
    if not root.items:
      raise errors.UserError(f'{source} has no Params: it is empty')
    lingvo_runtime.load()
    builder = building.Builder(
      classes.Finder(packages), values=values or {}, drop=drop
    )
    params = builder.build(root)
  except RecursionError:
    raise errors.UserError(f'{source} is nested too deeply') from None
  builder.finish()
  if builder.issues:
    lines = [f'{source} cannot be read:', *map(str, builder.issues)]
    raise errors.UserError('\n  '.join(lines))
  if builder.defaulted:
    absent = ', '.join(builder.defaulted)
    logging.info('%s lacks %s: defaults are used', source, absent)
  if builder.emptied:
    absent = ', '.join(builder.emptied)
    logging.warning('%s lacks %s: read as empty lists', source, absent)
  return Read(
    params,
    defaulted=tuple(builder.defaulted),
    emptied=tuple(builder.emptied),
    dropped=tuple(builder.dropped),
  )
