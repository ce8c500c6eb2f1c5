"""A view over Lingvo Params that remembers what a translator has read.

So nothing is dropped in silence: a field that no translator read, and that does
not hold its class's default, is an issue that names its path, value and class.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.params import params_trees
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Issue:
  """Something that cannot be translated.

  Attributes:
    path: where it is, from the task's Params on.
    class_path: the dotted path of the Lingvo class whose Params hold it.
    message: what is the matter.
    field: the field, from the class's Params on; '' for the class itself.
    value: what the field holds, in a line; '' where there is nothing to show.
  """

  path: str
  class_path: str
  message: str
  field: str = ''
  value: str = ''

  def __str__(self):
    return f'{self.path} ({self.class_path}): {self.message}'


class UntranslatedError(errors.UserError):
  """Params that cannot be translated.

  Attributes:
    issues: why.
  """

  def __init__(self, message: str, issues: Sequence[Issue]):
    super().__init__(message)
    self.issues = tuple(issues)


@dataclasses.dataclass
class Report:
  """What a translation found out on its way.

  Attributes:
    issues: what cannot be translated; none may be left.
    notes: what was left out on purpose because it has no effect in JAX.
    bridge_part: has Lingvo compute a part of what a builder composes, of whose
      class nobody has a translation: (view) -> `registry.Translated`, or None
      and an issue. None to translate all.
  """

  issues: list[Issue] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)
  bridge_part: Callable[['ParamsView'], Any] | None = None


class ParamsView:
  """Params of one Lingvo class, read through `get`, `require` and `child`.

  Attributes:
    params: the Params, a private copy; what a parent sets on its child may be
      set on it.
    path: where the Params stand.
    report: shared by all views of one translation.
  """

  def __init__(
    self, params, path: str, report: Report, *, owner=None, defaults=None
  ):
    self.params = params
    self.path = path
    self.report = report
    self._owner = owner or (params.cls if 'cls' in params else None)
    self._defaults = defaults
    self._groups = {}
    self._read = {'cls', 'name', 'inference_driver_name'}

  @property
  def class_path(self) -> str:
    """The dotted path of the class that the Params belong to."""
    return class_path(self._owner)

  def get(self, name: str) -> Any:
    """Returns a field's value; the translator answers for its meaning.

    A text where the class has a number, or the other way round, is an issue.
    """
    self._read.add(name)
    value = self.params.Get(name)
    defaults = self.defaults()
    default = None if defaults is None else params_trees.get(defaults, name)
    if _is_of_wrong_kind(value, default):
      kinds = ['text', 'number'][:: 1 if isinstance(value, str) else -1]
      self.issue(
        name,
        f'{short(value)} is a {kinds[0]}; expected a {kinds[1]} (the default is'
        f' {short(default)})',
      )
    return value

  def require(self, name: str, *allowed: Any):
    """Reads a field of which only some values are translated."""
    value = self.get(name)
    if not any(same(value, a) for a in allowed):
      wanted = ' or '.join(repr(a) for a in allowed)
      self.issue(name, f'{short(value)} is not translated, only {wanted}')

  def ignore(self, why: str, *names: str):
    """Reads fields without effect in JAX; notes those that were set."""
    defaults = self.defaults()
    for name in names:
      if name not in self.params:
        continue
      value = self.get(name)
      if defaults is None or not same(value, params_trees.get(defaults, name)):
        self.report.notes.append(
          f'{self.path}.{name} = {short(value)} has no effect here: {why}'
        )

  def issue(self, name: str, message: str):
    """Adds an issue with a field of these Params."""
    path = f'{self.path}.{name}' if name else self.path
    found = Issue(path, self.class_path, message, name, self._shown(name))
    if found not in self.report.issues:
      self.report.issues.append(found)

  def _shown(self, name: str) -> str:
    """Returns what a field holds, in a line; '' where it cannot be told."""
    try:
      return short(self.params.Get(name)) if name else ''
    except Exception:  # It is no path of plain Params.
      return ''

  def group(self, name: str) -> 'ParamsView':
    """Returns the view of a field that holds plain Params without a class.

    It is the same view each time: who reads a part of the field answers for
    that part. Its `finish` is the caller's to call.
    """
    if name not in self._groups:
      defaults = self.defaults()
      self._groups[name] = ParamsView(
        self.get(name),
        f'{self.path}.{name}',
        self.report,
        owner=self._owner,
        defaults=None if defaults is None else params_trees.get(defaults, name),
      )
    return self._groups[name]

  def child(self, name: str, **settings: Any) -> 'ParamsView':
    """Returns the view of a child layer's Params.

    As Lingvo's `CreateChild` does, the child takes over what its parent's
    Params say of dtypes, initialisation and the like, unless it says so itself.

    Args:
      name: the field that holds the child's template.
      **settings: what the parent sets on a copy of the template.
    """
    return self.adopt(self.get(name), name, **settings)

  def adopt(self, template, name: str, **settings: Any) -> 'ParamsView':
    """Like `child`, for a template that is not a field of its own."""
    base_layer = lingvo_runtime.module('lingvo.core.base_layer')
    copy = template.Copy()
    unknown = sorted(key for key in settings if key not in copy)
    if unknown:
      self.issue(
        name,
        f'{class_path(copy.cls)} has no {", ".join(unknown)}, which its parent'
        ' sets',
      )
    copy.Set(**{k: v for k, v in settings.items() if k not in unknown})
    base_layer.BaseLayer.CopyBaseParams(self.params, copy)
    # What was copied down is the parent's to answer for.
    view = ParamsView(copy, f'{self.path}.{name}', self.report)
    for key in _COPIED_DOWN:
      if same(copy.Get(key), self.params.Get(key)):
        view._read.add(key)
    return view

  def defaults(self):
    """Returns the Params that the class starts with, or None if unknown."""
    if self._defaults is None and 'cls' in self.params:
      self._defaults = starting_params(self.params.cls)
    return self._defaults

  def compare_with(self, base: type):
    """Lets fields that are not read be compared with defaults of a base class.

    A class that changes nothing but `Params()` is translated as its base: its
    own defaults are then settings like any other.

    Args:
      base: the class that is translated, or one that it derives from.
    """
    if base is self._owner or 'cls' not in self.params:
      return
    self._defaults = self._owner.Params()
    for name, value in base.Params().IterParams():
      if name != 'cls' and name in self._defaults:
        self._defaults.Set(**{name: value})

  def finish(self):
    """Adds an issue for each field that was set and not read."""
    defaults = self.defaults()
    for name, value in self.params.IterParams():
      if name in self._read:
        continue
      default = None if defaults is None else params_trees.get(defaults, name)
      for path, found, expected in differences(value, default, name):
        self.issue(
          path,
          f'{short(found)} is not translated (the default is'
          f' {short(expected)})',
        )


_COPIED_DOWN = (
  'dtype',
  'fprop_dtype',
  'random_seed',
  'is_inference',
  'allow_implicit_capture',
  'skip_lp_regularization',
  'device_mesh',
  'vn',
)


def class_path(cls: type) -> str:
  """Returns the dotted path of a class."""
  return f'{cls.__module__}.{cls.__qualname__}'


def starting_params(cls: type) -> Any:
  """Returns the Params that a Lingvo class starts with.

  Where a class makes them of arguments, as layers of car tasks do, they are
  those of the nearest base class that takes none.
  """
  for one in cls.__mro__:
    arguments = inspect.signature(one.Params).parameters.values()
    if all(_is_optional(a) for a in arguments):
      return one.Params()
  raise errors.UserError(
    f'{class_path(cls)}.Params() takes arguments, and so do those of its base'
    ' classes; expected one that takes none'
  )


def _is_optional(argument: inspect.Parameter) -> bool:
  return argument.default is not argument.empty or argument.kind in (
    argument.VAR_POSITIONAL,
    argument.VAR_KEYWORD,
  )


def differences(value: Any, default: Any, path: str) -> list[tuple]:
  """Returns (path, value, default) wherever two values of a field differ.

  Params with a class are compared with what that class starts with, if the
  parent's default is of the same class.
  """
  if not _is_params(value):
    return [] if same(value, default) else [(path, value, default)]
  if not _is_params(default) or _class(value) is not _class(default):
    return [(path, value, default)]
  if 'cls' in value:
    default = starting_params(value.cls)
  found = []
  for name, item in value.IterParams():
    if name not in ('cls', 'name'):
      found += differences(
        item, params_trees.get(default, name), f'{path}.{name}'
      )
  return found


def same(a: Any, b: Any) -> bool:
  """Whether two values of a Params field are the same."""
  if _is_params(a) and _is_params(b):
    return a.ToText() == b.ToText()
  if hasattr(a, 'shape') or hasattr(b, 'shape'):
    return bool(np.array_equal(a, b))
  return type(a) is type(b) and a == b or (_is_number(a, b) and a == b)


def short(value: Any) -> str:
  """Returns a value as text of one short line."""
  text = ' '.join(
    (value.ToText() if _is_params(value) else repr(value)).split()
  )
  return text if len(text) <= 80 else text[:77] + '...'


def _is_of_wrong_kind(value: Any, default: Any) -> bool:
  """Whether one of two values is a text and the other one a number."""
  if isinstance(value, str):
    return _is_number(default)
  return isinstance(default, str) and _is_number(value)


def _is_number(*values: Any) -> bool:
  return all(isinstance(v, int | float | bool) for v in values)


def _is_params(value: Any) -> bool:
  return hasattr(value, 'IterParams') and hasattr(value, 'ToText')


def _class(params) -> type | None:
  return params.cls if 'cls' in params else None
