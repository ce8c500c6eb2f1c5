"""Where experiments come from: sources behind an entry-point group.

A source knows experiments by name. `setup.py` declares the sources of this
distribution in the group `pax_compat.experiment_sources`; a user's package adds
its own in the same way. Sources are asked in the order of their entry points'
names, and nothing of a source is imported before it is asked.
"""

import dataclasses
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Protocol

from pax_compat import base_experiment, errors
from pax_compat.experiments import skipped_records

GROUP = 'pax_compat.experiment_sources'


@dataclasses.dataclass(frozen=True)
class SourceOptions:
  """What the command line says about finding an experiment.

  Attributes:
    import_modules: modules to import first; they register experiments.
    lingvo_source: a Lingvo checkout whose `params` packages are added.
    translation: 'auto', 'native' or 'bridge'.
    model_params_override: Lingvo's text of `path : value` pairs, separated by
      `;` or new lines.
    lingvo_input_replay: whether Lingvo's training data is read in an order that
      can be repeated.
    skip_bad_records: whether inputs leave out damaged records.
    lingvo_logdir: folder of a run of Lingvo's to go on with, or the prefix of
      one of its checkpoints.
    allow_missing: regular expressions of tensors that its checkpoint may lack.
    allow_unused: regular expressions of tensors of it that nothing here is.
    load_everything: whether a listing may import what is slow to import.
  """

  import_modules: tuple[str, ...] = ()
  lingvo_source: str | None = None
  translation: str = 'auto'
  model_params_override: str = ''
  lingvo_input_replay: bool = False
  skip_bad_records: bool = False
  lingvo_logdir: str | None = None
  allow_missing: tuple[str, ...] = ()
  allow_unused: tuple[str, ...] = ()
  load_everything: bool = False


class ExperimentSource(Protocol):
  """Finds experiments by name. A source is a module or an object."""

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

    Must answer in a fraction of a second unless `options.load_everything` or
    `options.import_modules` asks for more.
    """


def sources() -> Iterator[ExperimentSource]:
  """Yields the installed sources, in the order of their entry points' names."""
  for entry in sorted(
    importlib.metadata.entry_points(group=GROUP), key=lambda e: e.name
  ):
    yield entry.load()


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
    UserError: no source knows the name; the message has the nearest names.
  """
  known = {}
  import_modules(options)
  for source in sources():
    experiment = source.find(name, options)
    if experiment is not None:
      if options.skip_bad_records:
        skipped_records.in_inputs_of(experiment)
      return experiment
    known.update(source.names(options))
  raise errors.UserError(
    f'no experiment is called {name!r}' + errors.did_you_mean(name, known)
  )


def names(options: SourceOptions) -> dict[str, str]:
  """Returns the names that all sources know, sorted, with one line each."""
  known = {}
  import_modules(options)
  for source in sources():
    known.update(source.names(options))
  return dict(sorted(known.items()))
