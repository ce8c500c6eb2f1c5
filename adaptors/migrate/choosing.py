"""Chooses the experiments of a report."""

import dataclasses
import fnmatch
from collections.abc import Collection

from absl import logging

from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources
from pax_compat.experiment_sources import SourceOptions

_WILD = frozenset('*?[')


def everything(options: SourceOptions) -> list[str]:
  """Returns all experiments' names, from source code and from the registry.

  Source code also has the names of modules that cannot be imported.

  Args:
    options: with the modules to import and the checkout to mount.

  Raises:
    UserError: no experiment was found.
  """
  experiment_sources.import_modules(options)
  known = set(lookup.names(options))
  own = dataclasses.replace(options.of(LingvoOptions), load_everything=True)
  known |= set(lookup.names(dataclasses.replace(options, own=(own,))))
  if not known:
    raise errors.UserError(
      'no Lingvo experiment was found; expected --lingvo_source or'
      ' --import_modules'
    )
  return sorted(known)


def matching(patterns: str, options: SourceOptions) -> list[str]:
  """Returns the names that match shell patterns, sorted.

  Args:
    patterns: such as `lm.*`, or a name; several are separated by commas.
    options: with the modules to import and the checkout to mount.

  Raises:
    UserError: no name matches a pattern; the message suggests similar ones.
  """
  experiment_sources.import_modules(options)
  known = lookup.names(options)
  found = set()
  for pattern in filter(None, patterns.split(',')):
    found.update(_matching(pattern, known, options))
  logging.info('%d of %d experiments match', len(found), len(known))
  return sorted(found)


def _matching(
  pattern: str, known: Collection[str], options: SourceOptions
) -> list[str]:
  if not _WILD & set(pattern):
    if pattern in known or lookup.find_model_params(pattern, options):
      return [pattern]
    raise errors.UserError(
      f'no experiment of Lingvo is called {pattern!r}'
      + errors.did_you_mean(pattern, known)
    )
  found = fnmatch.filter(known, pattern)
  if not found:
    raise errors.UserError(
      f'no experiment of Lingvo matches {pattern!r}'
      + errors.did_you_mean(pattern, known)
    )
  return found
