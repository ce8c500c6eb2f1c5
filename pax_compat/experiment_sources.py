"""Where experiments come from: sources behind an entry-point group.

A source knows experiments by name. `setup.py` declares the sources of this
distribution in the group `pax_compat.experiment_sources`; a user's package adds
its own in the same way. Sources are asked in the order of their entry points'
names. A source may declare options of its own, which are flags of every program
that takes `--exp` (see `experiments.options`).
"""

import dataclasses
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

from absl import logging

from pax_compat import base_experiment, errors
from pax_compat.experiments import options as options_lib

GROUP = 'pax_compat.experiment_sources'

_Own = TypeVar('_Own', bound=options_lib.Options)


@dataclasses.dataclass(frozen=True)
class SourceOptions:
  """What the command line says about finding an experiment.

  Attributes:
    import_modules: modules to import first; they register experiments.
    own: options that sources have declared, at most one of each class.
  """

  import_modules: tuple[str, ...] = ()
  own: tuple[options_lib.Options, ...] = ()

  def of(self, kind: type[_Own]) -> _Own:
    """Returns the options of a source's class; its defaults if not given."""
    return next((one for one in self.own if type(one) is kind), kind())

  def experiment_name(self) -> str:
    """Returns the name of the experiment that options imply; '' for none."""
    return next(filter(None, (one.experiment_name() for one in self.own)), '')


class ExperimentSource(Protocol):
  """Finds experiments by name. A source is a module or an object.

  Programs load all sources before they parse their flags. To import one must
  take no time: what is slow is imported when the source is asked.

  Attributes:
    KIND: what messages call its experiments, such as 'native'.
    OPTIONS: the class of its own options, which are flags; None for none. A
      source may leave it out.
  """

  KIND: str
  OPTIONS: type[options_lib.Options] | None

  def claims(self, module: str) -> bool:
    """Whether a module of the user's is this source's to import.

    Must answer without importing it. Of several sources that claim a module the
    last one has it.
    """

  def import_module(self, module: str):
    """Imports a module of the user's, which may register experiments.

    Raises:
      UserError: it is not there or raises; the message says where.
    """

  def find(
    self, name: str, options: SourceOptions
  ) -> base_experiment.BaseExperiment | None:
    """Returns the experiment, or None where this source has no such name.

    Raises:
      UserError: the name is this source's, but cannot be used.
    """

  def names(self, options: SourceOptions) -> Mapping[str, str]:
    """Returns every known name with the first line of its description.

    Must answer in a fraction of a second unless `options` ask for more.
    """


def sources() -> Iterator[ExperimentSource]:
  """Yields the installed sources, in the order of their entry points' names."""
  for entry in _entries():
    yield entry.load()


def _entries() -> list[importlib.metadata.EntryPoint]:
  entries = importlib.metadata.entry_points(group=GROUP)
  return sorted(entries, key=lambda e: e.name)


def option_kinds() -> list[type[options_lib.Options]]:
  """Returns the classes of the options that the installed sources declare."""
  kinds = []
  for entry in _entries():
    try:
      kinds.append(getattr(entry.load(), 'OPTIONS', None))
    except Exception as e:  # noqa: BLE001 (whatever its package raises)
      logging.warning(
        'the experiment source %s = %s cannot be imported, so that its flags'
        ' are not known: %s',
        entry.name,
        entry.value,
        errors.one_line(e),
      )
  return [kind for kind in kinds if kind is not None]


def import_modules(options: SourceOptions):
  """Imports the modules that the user names, each by the source it is for."""
  if not options.import_modules:
    return  # No source is loaded for nothing.
  known = list(sources())
  for module in options.import_modules:
    claiming = [source for source in known if source.claims(module)]
    if not claiming:
      raise errors.UserError(
        f'no installed source of experiments imports the module {module!r}'
      )
    claiming[-1].import_module(module)


def find(name: str, options: SourceOptions) -> base_experiment.BaseExperiment:
  """Returns the experiment of that name.

  Raises:
    UserError: no source knows the name, and the message has the nearest names;
      or an option is for the experiments of another source.
  """
  known = {}
  import_modules(options)
  for source in sources():
    experiment = source.find(name, options)
    if experiment is not None:
      _check_options(name, source, options)
      return experiment
    known.update(source.names(options))
  raise errors.UserError(
    f'no experiment is called {name!r}' + errors.did_you_mean(name, known)
  )


def _check_options(name: str, source: ExperimentSource, options: SourceOptions):
  """Raises a UserError for an option of another source: it has no effect."""
  for own in options.own:
    if type(own) is getattr(source, 'OPTIONS', None):
      continue
    for flag, instead in options_lib.changed(own):
      raise errors.UserError(
        f'--{flag} is for {own.KIND} experiments, and {name} is a'
        f' {source.KIND} one{instead}'
      )


def names(options: SourceOptions) -> dict[str, str]:
  """Returns the names that all sources know, sorted, with one line each."""
  known = {}
  import_modules(options)
  for source in sources():
    known.update(source.names(options))
  return dict(sorted(known.items()))
