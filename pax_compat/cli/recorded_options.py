"""`options.json` in the folder of a run: how its experiment was selected.

Programs that use a trained model read it, so that its folder is enough to find
the same experiment, with the changes of the command line, again.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from pax_compat import errors, experiment_sources
from pax_compat.experiments import options as options_lib
from pax_compat.experiments import resolved as resolved_lib
from pax_compat.runs import files

FILE = 'options.json'
_EXPERIMENT_FILE = 'experiment.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
  """What a command line selected.

  Attributes:
    name: the name of the experiment.
    options: for finding it.
    settings: changes of its configs, `path=value`.
    skip_bad_records: whether its inputs skip damaged records.
  """

  name: str
  options: experiment_sources.SourceOptions = dataclasses.field(
    default_factory=experiment_sources.SourceOptions
  )
  settings: tuple[str, ...] = ()
  skip_bad_records: bool = False

  def resolve(
    self, *, settings: Sequence[str] = ()
  ) -> resolved_lib.ResolvedExperiment:
    """Finds the experiment and makes its configs.

    Args:
      settings: more changes of configs, after the recorded ones.

    Raises:
      UserError: it does not exist any more, or a setting does not fit it.
    """
    return resolved_lib.resolve(
      experiment_sources.find(self.name, self.options),
      name=self.name,
      settings=(*self.settings, *settings),
      skip_bad_records=self.skip_bad_records,
    )

  def to_json(self) -> str:
    """Returns the content of the file."""
    own = {_kind(one): _changed(one) for one in self.options.own}
    fields = {
      'name': self.name,
      'import_modules': self.options.import_modules,
      'attributes': self.options.attributes,
      'options': {kind: values for kind, values in own.items() if values},
      'settings': self.settings,
      'skip_bad_records': self.skip_bad_records,
      'sub_experiment': self.options.sub_experiment,
      'module_flags': self.options.module_flags,
    }
    return json.dumps(fields, indent=2) + '\n'


def read(folder: Any) -> Recorded:
  """Returns what the run in a folder was started with.

  Args:
    folder: of the run, as `job_dir.checked_path` returns it. A run of an older
      version has no `options.json`: only the name of its experiment is known.

  Raises:
    UserError: it is not the folder of a run, or a file is damaged.
  """
  path = folder / FILE
  if not path.exists():
    path = folder / _EXPERIMENT_FILE
  if not path.exists():
    raise errors.UserError(
      f'{folder} has no {_EXPERIMENT_FILE}; expected the --job_log_dir of a run'
    )
  try:
    fields = files.parse_json(path.read_bytes())
    options = experiment_sources.SourceOptions(
      import_modules=_strings(fields.get('import_modules', [])),
      attributes=_strings(fields.get('attributes', [])),
      own=_own(fields.get('options', {})),
      sub_experiment=fields.get('sub_experiment'),
      module_flags=_strings(fields.get('module_flags', [])),
    )
    return Recorded(
      name=str(fields['name']),
      options=options,
      settings=_strings(fields.get('settings', [])),
      skip_bad_records=bool(fields.get('skip_bad_records', False)),
    )
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise errors.UserError(
      f'{path} is damaged ({e!r}); expected the options of a run'
    ) from e


def _strings(values: Any) -> tuple[str, ...]:
  if not isinstance(values, list) or not all(
    isinstance(value, str) for value in values
  ):
    raise TypeError(f'{values!r} is not a list of strings')
  return tuple(values)


def _own(by_kind: dict[str, dict]) -> tuple[options_lib.Options, ...]:
  """Returns the options of the installed sources."""
  found = []
  for kind in experiment_sources.option_kinds():
    values = {
      name: tuple(value) if isinstance(value, list) else value
      for name, value in by_kind.get(_kind(kind()), {}).items()
    }
    found.append(kind(**values))
  return tuple(found)


def _kind(options: options_lib.Options) -> str:
  return f'{type(options).__module__}.{type(options).__qualname__}'


def _changed(options: options_lib.Options) -> dict[str, Any]:
  """Returns the fields that are not defaults."""
  return {
    field.name: getattr(options, field.name)
    for field in dataclasses.fields(options)
    if getattr(options, field.name) != field.default
  }
