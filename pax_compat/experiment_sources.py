"""Experiment sources: plugins that find experiments by name.

`setup.py` declares the sources of this distribution in the entry-point group
`pax_compat.experiment_sources`; other packages can add sources in the same way.
Sources are searched in the order of the names of their entry points. A source
may declare options, which are flags of every program that takes `--exp` (see
`experiments.options`).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

from absl import flags, logging

from pax_compat import base_experiment, errors
from pax_compat.experiments import class_attributes, entry_points
from pax_compat.experiments import options as options_lib

GROUP = 'pax_compat.experiment_sources'

_Own = TypeVar('_Own', bound=options_lib.Options)


@dataclasses.dataclass(frozen=True)
class SourceOptions:
  """Options for finding an experiment, from the command line.

  Attributes:
    import_modules: modules that register experiments, to import first.
    attributes: changes of the experiment's class attributes, such as
      `MODEL_DIMS=64`; see `class_attributes.changed`.
    own: the options of the sources, at most one of each class.
    sub_experiment: the name of one of the experiment's `sub_experiments()`,
      which is found in its place; None for the experiment itself.
    module_flags: arguments of the command line, such as `--my_path=/data`, for
      absl flags that `import_modules` define; parsed after the imports.
  """

  import_modules: tuple[str, ...] = ()
  attributes: tuple[str, ...] = ()
  own: tuple[options_lib.Options, ...] = ()
  sub_experiment: str | None = None
  module_flags: tuple[str, ...] = ()

  def of(self, kind: type[_Own]) -> _Own:
    """Returns the options of a class; its defaults if not given."""
    return next((one for one in self.own if type(one) is kind), kind())

  def experiment_name(self) -> str:
    """Returns the experiment's name that options imply; '' if none do."""
    return next(filter(None, (one.experiment_name() for one in self.own)), '')


class ExperimentSource(Protocol):
  """Finds experiments by name. A source is a module or an object.

  Programs load all sources before they parse their flags. Importing a source
  must be fast: slow imports belong into its functions. A source may have a
  function `prepare(options)`, which is called before modules of the user are
  imported, so that they can import what the options refer to. It may have a
  function `open_checkpoint(path, step)`, which returns a checkpoint of its
  framework as a `warm_start.sources.Source`, or None if it is not one. It may
  have a function `hint(name, options)`, which returns how an experiment that no
  source has can be found, or None if it does not know.

  Attributes:
    KIND: the kind of its experiments in messages, such as 'native'.
    OPTIONS: the class of its options, which become flags; None for no options.
      Optional.
    CHANGES_ATTRIBUTES: whether `find` applies `options.attributes`. Optional;
      otherwise they are applied to the class of the experiment.
    ALSO: classes of options of other sources that `find` applies. Optional.
  """

  KIND: str
  OPTIONS: type[options_lib.Options] | None

  def claims(self, module: str) -> bool:
    """Whether this source imports the given module of the user.

    Must not import it. If several sources claim a module, the last one imports
    it.
    """

  def import_module(self, module: str):
    """Imports a module of the user, which may register experiments.

    Raises:
      UserError: it does not exist or raises; the message has the location.
    """

  def find(
    self, name: str, options: SourceOptions
  ) -> base_experiment.BaseExperiment | None:
    """Returns the experiment, or None if this source does not have it.

    Raises:
      UserError: this source has the name, but the experiment is not usable.
    """

  def names(self, options: SourceOptions) -> Mapping[str, str]:
    """Returns all known names, each with the first line of its description.

    Must take less than a second unless `options` request more.
    """


def sources() -> Iterator[ExperimentSource]:
  """Yields the installed sources in the order of their entry points' names."""
  for entry in entry_points.of_group(GROUP):
    yield entry.load()


def option_kinds() -> list[type[options_lib.Options]]:
  """Returns the classes of the options that the installed sources declare."""
  kinds = []
  for entry in entry_points.of_group(GROUP):
    try:
      kinds.append(getattr(entry.load(), 'OPTIONS', None))
    except Exception as e:  # noqa: BLE001 (whatever its package raises)
      logging.warning(
        'the experiment source %s = %s cannot be imported, so its flags are not'
        ' defined: %s',
        entry.name,
        entry.value,
        errors.one_line(e),
      )
  return [kind for kind in kinds if kind is not None]


def import_modules(options: SourceOptions):
  """Imports the modules in `options`, each by the source that claims it.

  Sources with a `prepare` are prepared before. After the imports, the flags
  that the modules define get the values in `options`.

  Raises:
    UserError: a module cannot be imported, or one of its flags is invalid.
  """
  if not options.import_modules:
    return  # Avoids loading the sources.
  known = list(sources())
  for source in known:
    if hasattr(source, 'prepare'):
      source.prepare(options)
  for module in options.import_modules:
    claiming = [source for source in known if source.claims(module)]
    if not claiming:
      raise errors.UserError(
        f'no installed experiment source can import the module {module!r}'
      )
    claiming[-1].import_module(module)
  if options.module_flags:
    _parse_flags(options)


def _parse_flags(options: SourceOptions):
  """Gives the flags of the imported modules the values in `options`."""
  try:
    [_, *others] = flags.FLAGS(['', *options.module_flags])
  except flags.Error as error:
    modules = ', '.join(options.import_modules)
    defined = f'; --import_modules={modules} does not define it either'
    is_unknown = isinstance(error, flags.UnrecognizedFlagError)
    raise errors.UserError(f'{error}{defined if is_unknown else ""}') from error
  if others:
    raise errors.UserError(f'{" ".join(others)}: expected flags only')


def find(name: str, options: SourceOptions) -> base_experiment.BaseExperiment:
  """Returns the experiment of the given name.

  Raises:
    UserError: no source has the name (the message suggests the nearest names),
      or an option is for experiments of another source.
  """
  known: dict[str, str] = {}
  hints: list[str | None] = []
  import_modules(options)
  for source in sources():
    experiment = source.find(name, options)
    if experiment is not None:
      _check_options(name, source, options)
      if not getattr(source, 'CHANGES_ATTRIBUTES', False):
        experiment = class_attributes.changed(experiment, options.attributes)
      return _sub_experiment(experiment, options.sub_experiment)
    known.update(source.names(options))
    if hasattr(source, 'hint'):
      hints.append(source.hint(name, options))
  hint = '; '.join(filter(None, hints))
  hint = f'; {hint}' if hint else errors.did_you_mean(name, known)
  if known and not hint:
    hint = f'; --list prints the names of all {len(known)}'
  raise errors.UserError(f'no experiment is called {name!r}{hint}')


def _sub_experiment(
  experiment: base_experiment.BaseExperiment, name: str | None
) -> base_experiment.BaseExperiment:
  """Returns one of an experiment's experiments; itself for None."""
  if name is None:
    return experiment
  known, cls = experiment.sub_experiments(), type(experiment)
  if known == {'': cls} and name:
    raise errors.UserError(
      f'--sub_experiment={name}: {cls.__name__} defines no sub_experiments()'
    )
  if name not in known:
    raise errors.UserError(
      f'{cls.__name__}.sub_experiments() has no {name!r}; expected one of'
      f' {", ".join(map(repr, known))}' + errors.did_you_mean(name, known)
    )
  if not isinstance(known[name], type):
    raise errors.UserError(
      f'{cls.__name__}.sub_experiments() has {known[name]!r} as {name!r};'
      ' expected a class of an experiment'
    )
  return known[name]()


def _check_options(name: str, source: ExperimentSource, options: SourceOptions):
  """Raises a UserError for an option of another source."""
  applied = (getattr(source, 'OPTIONS', None), *getattr(source, 'ALSO', ()))
  for own in options.own:
    if type(own) in applied:
      continue
    for flag, instead in options_lib.changed(own):
      raise errors.UserError(
        f'--{flag} is for {own.KIND} experiments, and {name} is a'
        f' {source.KIND} one{instead}'
      )


def names(options: SourceOptions) -> dict[str, str]:
  """Returns the sorted names of all sources, each with one line of text."""
  known = {}
  import_modules(options)
  for source in sources():
    known.update(source.names(options))
  return dict(sorted(known.items()))
