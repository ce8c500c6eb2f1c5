"""Reads the Params that a legacy run wrote: `trainer_params.pbtxt` or `.txt`.

    read = reader.read_file('/runs/lm1/train/trainer_params.pbtxt')
    task = read.params.task.Instantiate()

`proto_text` and `plain_text` parse the two forms, `building` makes the Params,
`classes` says which classes a text may name. Prefer the proto text where a run
has both: it tells types, and lists that are empty.
"""

import dataclasses
import gzip
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.params.text import building, classes, plain_text, proto_text
from pax_compat import errors

_PARSERS = {'.pbtxt': proto_text.parse, '.txt': plain_text.parse}


@dataclasses.dataclass(frozen=True)
class Read:
  """Params that were read.

  Attributes:
    params: live Lingvo Params, of a model for a trainer's text.
    defaulted: paths of the fields that the text does not have, such as those
      that Lingvo got after it was written. They hold their class's defaults.
    emptied: paths of the fields that the text does not have and that hold an
      empty list, which `Params.ToText` leaves out. This is wrong for a field
      that Lingvo got after the text was written.
    dropped: paths of the fields that were left out on the caller's word.
  """

  params: Any
  defaulted: tuple[str, ...] = ()
  emptied: tuple[str, ...] = ()
  dropped: tuple[str, ...] = ()


def read_file(path: str | os.PathLike, **options: Any) -> Read:
  """Reads a file of Params; one that ends in `.gz` is unpacked.

  Args:
    path: a file whose name ends in `.pbtxt` or `.txt`.
    **options: as of `read_text`.

  Raises:
    UserError: there is no such file, or it cannot be read in full.
  """
  path = pathlib.Path(path).expanduser()
  suffix = path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix
  if suffix not in _PARSERS:
    raise errors.UserError(
      f'{path}: expected a file of Params, whose name ends in'
      f' {" or ".join(_PARSERS)}'
    )
  open_file = gzip.open if path.suffix == '.gz' else open
  try:
    with open_file(path, 'rt', encoding='utf-8') as file:
      text = file.read()
  except (OSError, UnicodeDecodeError) as error:
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
  """Reads a text of Params.

  Nothing in it is evaluated, unpickled or imported from elsewhere than from
  Lingvo, the mounted params modules and `packages`.

  Args:
    text: the whole of it.
    form: '.pbtxt' for the proto text, '.txt' for that of `Params.ToText`.
    source: where it is from, for messages.
    packages: full names of packages, beside Lingvo's, whose classes and
      functions the text may name. Their modules are imported.
    values: what fields are to hold, by path, where the text does not tell: an
      abbreviated array, an object.
    drop: patterns, as of `fnmatch`, of paths of fields that may be left out
      where their class has them no more.

  Returns:
    The Params.

  Raises:
    UserError: the text cannot be brought back in full; the message has every
      path that it fails at.
  """
  root = _PARSERS[form](text, source)
  if not root.items:
    raise errors.UserError(f'{source} holds no Params: it is empty')
  lingvo_runtime.load()
  builder = building.Builder(
    classes.Finder(packages), values=values or {}, drop=drop
  )
  params = builder.build(root)
  builder.finish()
  if builder.issues:
    lines = [f'{source} cannot be read:', *map(str, builder.issues)]
    raise errors.UserError('\n  '.join(lines))
  if builder.defaulted:
    absent = ', '.join(builder.defaulted)
    logging.info('%s lacks %s: defaults hold', source, absent)
  if builder.emptied:
    absent = ', '.join(builder.emptied)
    logging.warning('%s lacks %s: taken as empty', source, absent)
  return Read(
    params,
    defaulted=tuple(builder.defaulted),
    emptied=tuple(builder.emptied),
    dropped=tuple(builder.dropped),
  )
