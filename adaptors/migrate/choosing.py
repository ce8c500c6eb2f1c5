"""Which experiments of Lingvo's registry a report is about."""

import dataclasses
import fnmatch

from absl import logging

from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources
from pax_compat.experiment_sources import SourceOptions

_WILD = frozenset('*?[')


def everything(options: SourceOptions) -> list[str]:
  """Returns all names: those of the source text, and of the imported registry.

  A module that cannot be imported has its names in the former alone, so that
  none is left out in silence.

  Args:
    options: which modules to import, and which checkout to mount.

  Raises:
    UserError: there is none.
  """
  experiment_sources.import_modules(options)
  known = set(lookup.names(options))
  own = dataclasses.replace(options.of(LingvoOptions), load_everything=True)
  known |= set(lookup.names(dataclasses.replace(options, own=(own,))))
  if not known:
    raise errors.UserError(
      'there is no experiment of Lingvo; expected --lingvo_source or'
      ' --import_modules to say where they are'
    )
  return sorted(known)


def matching(pattern: str, options: SourceOptions) -> list[str]:
  """Returns the names that match a pattern of the shell.

  Args:
    pattern: such as `lm.*`, or a name.
    options: which modules to import, and which checkout to mount.

  Raises:
    UserError: there is none; the message has the nearest names.
  """
  experiment_sources.import_modules(options)
  known = lookup.names(options)
  if not _WILD & set(pattern):
    if pattern in known or lookup.find_model_params(pattern, options):
      return [pattern]
    raise errors.UserError(
      f'no experiment of Lingvo is called {pattern!r}'
      + errors.did_you_mean(pattern, known)
    )
  found = sorted(fnmatch.filter(known, pattern))
  if not found:
    raise errors.UserError(
      f'no experiment of Lingvo matches {pattern!r}'
      + errors.did_you_mean(pattern, known)
    )
  logging.info('%d of %d experiments match', len(found), len(known))
  return found
