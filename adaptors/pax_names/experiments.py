"""The experiment source of Pax's experiments, an entry point of the core.

With `--pax_source`, all experiments of the checkout, and those of the user that
native Pax code registers, run on our layers. Without it, modules of the user
still find `praxis` and `paxml`, unless the real ones are installed.
"""

import importlib.util
import sys
from collections.abc import Mapping

from adaptors.pax_names import checkout, finder, table
from adaptors.pax_names.options import PaxOptions
from pax_compat import base_experiment, errors, experiment_registry
from pax_compat.experiment_sources import SourceOptions
from pax_compat.experiments import native_options

KIND = PaxOptions.KIND
OPTIONS = PaxOptions
# Options of other sources that this one applies.
ALSO = (native_options.NativeOptions,)


def prepare(options: SourceOptions) -> None:
  """Makes `praxis` and `paxml` importable."""
  source = options.of(PaxOptions).pax_source
  if source:
    checkout.mount(source)
  elif not any(map(_is_installed, ('praxis', 'paxml'))):
    finder.install()


def _is_installed(package: str) -> bool:
  """Whether the real package is installed, or imported already."""
  if finder.is_installed():
    return False
  return package in sys.modules or bool(importlib.util.find_spec(package))


def claims(module: str) -> bool:
  """Returns False: the other sources import modules of the user."""
  del module
  return False


def import_module(name: str):
  """Imports a module of the user; see `checkout.import_module`."""
  return checkout.import_module(name)


def find(
  name: str, options: SourceOptions
) -> base_experiment.BaseExperiment | None:
  """Returns a new instance of an experiment, or None.

  Without `--pax_source` this source has none.

  Raises:
    UserError: the name is ambiguous, or its module cannot be imported.
  """
  prepare(options)
  if not options.of(PaxOptions).pax_source:
    return None
  matches = experiment_registry.matches(name, names(options))
  if len(matches) > 1:
    raise errors.UserError(
      f'{name!r} may be any of {", ".join(sorted(matches))}; give a longer'
      ' part of the name'
    )
  if not matches:
    return experiment_registry.find(name, options)
  [full] = matches
  own = options.of(native_options.NativeOptions)
  return own.applied(checkout.experiment(full))


def hint(name: str, options: SourceOptions) -> str | None:
  """Returns where an experiment is that only a checkout has, or None."""
  if options.of(PaxOptions).pax_source:
    return None
  modules = [m for m in name.split('.')[:-1] if m in table.IN_CHECKOUTS]
  if not modules:
    return None
  return (
    f"{modules[-1]} is a module of paxml's own source:"
    ' --pax_source=FOLDER of a checkout runs its experiments'
  )


def names(options: SourceOptions) -> Mapping[str, str]:
  """Returns the names in the checkout, with one line about each."""
  prepare(options)
  source = options.of(PaxOptions).pax_source
  return checkout.names(finder.mounted()) if source else {}
