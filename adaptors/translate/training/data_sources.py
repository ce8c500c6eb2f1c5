"""Translates the variable filters of an input's data sources.

Lingvo takes a batch from one source, and multiplies the gradient of each
variable by 1 if the source's regular expression matches its name, else by 0.
"""

from collections.abc import Callable
from typing import Any

from adaptors import lingvo_runtime
from adaptors.params import params_trees
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.view import ParamsView, class_path

_FILTERS = 'bprop_variable_filters'
_MIXED = 'lingvo.core.datasource.CrossBatchMixingDataSource'
# Methods of an input that return the filters.
_METHODS = ('GetBpropVariableFilters', 'GetInputSourceOneHot')


def trained_weights(
  view: ParamsView, names: VariableNames
) -> Callable[[], tuple[frozenset[str] | None, ...]]:
  """Returns a function for the paths of the weights each data source trains.

  It reads the names of variables, which take long.

  Args:
    view: of a task's Params with `input`; gets an issue if the filters cannot
      be translated.
    names: of the task's variables.

  Returns:
    A function that returns for each source the paths, or None for all weights;
    an empty tuple if every batch trains all weights.
  """
  data = view.get('input')
  if data is None or not params_trees.is_params(data):
    return tuple
  _check_methods(view, data)
  source, path = _source(view, data)
  if source is None:
    return tuple
  _note_others(view, source, path)
  filters = params_trees.get(source, _FILTERS) or ()
  if not any(filters):
    return tuple
  field, count = f'{path}.{_FILTERS}', _number(source)
  if len(filters) != count:
    view.issue(
      field,
      f'{len(filters)} expressions for {count} sources of a batch; Lingvo does'
      ' not accept them either',
    )
    return tuple
  expressions = [one and view.compiled(one, field) for one in filters]
  return lambda: tuple(
    frozenset(names.selected(one.search, view, field)) if one else None
    for one in expressions
  )


def _source(view: ParamsView, data: Any) -> tuple[Any, str]:
  """Returns the Params of an input's data source and their path."""
  source = params_trees.get(data, 'file_datasource')
  if source is not None:
    return source, 'input.file_datasource'
  pattern = params_trees.get(data, 'file_pattern')
  if not isinstance(pattern, list | tuple):
    return None, ''
  if not any(len(p) > 2 for p in pattern if not isinstance(p, str)):
    return None, ''
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  try:
    return generators.FilePatternToDataSource(data), 'input.file_pattern'
  except ValueError as error:
    view.issue('input.file_pattern', str(error))
    return None, ''


def _number(source: Any) -> int:
  """Returns the number of sources of a batch, as Lingvo counts them."""
  is_mixed = any(class_path(cls) == _MIXED for cls in source.cls.__mro__)
  return len(source.sub) if is_mixed else 1


def _note_others(view: ParamsView, source: Any, path: str):
  """Adds notes for the filters of nested sources, which Lingvo ignores."""
  subs = params_trees.get(source, 'sub')
  for index, sub in enumerate(subs if isinstance(subs, list | tuple) else ()):
    own = f'{path}.sub[{index}]'
    if any(params_trees.get(sub, _FILTERS) or ()):
      view.report.notes.append(
        f'{view.path}.{own}.{_FILTERS} has no effect, as in Lingvo: only the'
        ' filters of the outermost source have'
      )
    _note_others(view, sub, own)


def _check_methods(view: ParamsView, data: Any):
  """Adds an issue if an input overrides the methods with the filters."""
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  base = generators.BaseInputGenerator
  for name in _METHODS:
    own = getattr(data.cls, name, None)
    if own not in (None, getattr(base, name)):
      view.issue(
        'input',
        f'{class_path(data.cls)} overrides {name}; that is not translated',
      )
