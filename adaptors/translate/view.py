"""A view over Lingvo Params that records which fields a translator has read.

Nothing is dropped in silence: a field that was not read and does not have its
class's default is an issue that names its path, value and class:

    >>> layers = lingvo_runtime.module('lingvo.core.layers')
    >>> params = layers.LayerNorm.Params().Set(input_dim=4, epsilon=0.1)
    >>> view = ParamsView(params, 'task.norm', Report())
    >>> view.get('input_dim')
    4
    >>> view.require('bias', True)
    >>> view.finish()
    >>> print(view.report.issues[0].path, view.report.issues[0].message)
    task.norm.epsilon 0.1 is not translated (the default is 1e-06)
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.params import params_trees
from pax_compat import errors

# Of notes on fields that change nothing.
WITHOUT_EFFECT = ' has no effect here: '


@dataclasses.dataclass(frozen=True)
class Issue:
  """Something that cannot be translated.

  Attributes:
    path: its path, starting at the task's Params.
    class_path: the dotted path of the Lingvo class whose Params contain it.
    message: why it cannot be translated.
    field: the path within that class's Params; '' for the class itself.
    value: the field's value as one line; '' if there is none to show.
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
    issues: the reasons.
  """

  def __init__(self, message: str, issues: Sequence[Issue]):
    super().__init__(message)
    self.issues = tuple(issues)


@dataclasses.dataclass
class Report:
  """Issues and notes of one translation.

  Attributes:
    issues: what cannot be translated; the translation fails unless it is empty.
    notes: fields that were set and have no effect in JAX.
    bridge_part: bridges a builder's sub-layer whose class has no translator:
      (view) -> `registry.Translated`, or None after adding an issue. None if
      nothing is bridged.
    bridges: by dotted path of a base class, the function that bridges its
      subclasses without a translator: (view) -> what a translator returns, or
      None after adding an issue.
  """

  issues: list[Issue] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)
  bridge_part: Callable[['ParamsView'], Any] | None = None
  bridges: Mapping[str, Callable[['ParamsView'], Any]] = dataclasses.field(
    default_factory=dict
  )

  def log(self, name: str):
    """Logs the notes; those on fields without effect in one line.

    Args:
      name: of the experiment.
    """
    without = [note for note in self.notes if WITHOUT_EFFECT in note]
    if without:
      fields = '; '.join(
        f'{field} ({why})'
        for field, _, why in (x.partition(WITHOUT_EFFECT) for x in without)
      )
      logging.info('%s: without effect here: %s', name, fields)
    for note in self.notes:
      if note not in without:
        logging.info('%s: %s', name, note)


class ParamsView:
  """Params of one Lingvo class, read through `get`, `require` and `child`.

  Attributes:
    params: the Params, a private copy, on which a translator may set fields.
    path: the path of the Params.
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
    """Returns a field's value and marks the field as read.

    A string where the default is a number, or the reverse, is an issue.
    """
    self._read.add(name)
    value = self.params.Get(name)
    defaults = self.defaults()
    default = None if defaults is None else params_trees.get(defaults, name)
    if _is_of_wrong_kind(value, default):
      kinds = ['string', 'number'][:: 1 if isinstance(value, str) else -1]
      self.issue(
        name,
        f'{short(value)} is a {kinds[0]}; expected a {kinds[1]} (the default is'
        f' {short(default)})',
      )
    return value

  def require(self, name: str, *allowed: Any):
    """Reads a field; any value but the `allowed` ones is an issue."""
    value = self.get(name)
    if not any(same(value, a) for a in allowed):
      wanted = ' or '.join(repr(a) for a in allowed)
      self.issue(name, f'{short(value)} is not translated, only {wanted}')

  def ignore(self, why: str, *names: str):
    """Reads fields without effect in JAX; adds a note for each that is set."""
    defaults = self.defaults()
    for name in names:
      if name not in self.params:
        continue
      value = self.get(name)
      if defaults is None or not same(value, params_trees.get(defaults, name)):
        self.report.notes.append(
          f'{self.path}.{name} = {short(value)}{WITHOUT_EFFECT}{why}'
        )

  def issue(self, name: str, message: str):
    """Adds an issue with a field of these Params ('' for the class)."""
    path = f'{self.path}.{name}' if name else self.path
    found = Issue(path, self.class_path, message, name, self._shown(name))
    if found not in self.report.issues:
      self.report.issues.append(found)

  def compiled(self, pattern: str, name: str) -> re.Pattern | None:
    """Returns a compiled regular expression of a field; None after an issue."""
    try:
      return re.compile(pattern)
    except re.error as error:
      self.issue(name, f'{pattern!r} is not a regular expression: {error}')
      return None

  def _shown(self, name: str) -> str:
    """Returns a field's value as one line; '' if it has none."""
    try:
      return short(self.params.Get(name)) if name else ''
    except Exception:  # It is not a path within Params, as `sub[0]`.
      return ''

  def group(self, name: str) -> 'ParamsView':
    """Returns the view of a field whose value is Params without a class.

    It is the same view each time. The caller calls its `finish`.
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

    As with Lingvo's `CreateChild`, the child inherits dtypes, `params_init`
    and other common fields unless its own Params set them. The parent's
    `params_init` is thereby read: the child's translator has to read it.

    Args:
      name: the field with the child's template.
      **settings: fields that the parent sets on a copy of the template.
    """
    return self.adopt(self.get(name), name, **settings)

  def adopt(self, template, name: str, **settings: Any) -> 'ParamsView':
    """Like `child`, for a template that is not the value of a field."""
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
    self._read.add('params_init')
    # The parent's translator reads the fields that were copied.
    view = ParamsView(copy, f'{self.path}.{name}', self.report)
    for key in _COPIED_DOWN:
      if same(copy.Get(key), self.params.Get(key)):
        view._read.add(key)
    return view

  def base_fields(self) -> dict:
    """Reads the fields of all Lingvo layers; returns them under JAX names.

    `registry` sets them on the configs of layers. A translator calls it only
    where it returns something else than `Translated`, or to replace the fields
    of a child's config.
    """
    fprop_dtype = self.get('fprop_dtype')
    noise = self.params.vn
    if noise is not None and not (noise.global_vn or noise.per_step_vn):
      self.get('vn')  # It is off, whatever its scale.
    self.ignore("random numbers come from the run's own seed", 'random_seed')
    self.ignore(
      "it concerns TensorFlow's graphs only",
      'add_name_to_theta',
      'allow_implicit_capture',
      'is_inference',
    )
    return dict(
      dtype=self.get('dtype').as_numpy_dtype,
      fprop_dtype=None if fprop_dtype is None else fprop_dtype.as_numpy_dtype,
      skip_lp_regularization=self.get('skip_lp_regularization'),
    )

  def defaults(self):
    """Returns the Params that the class starts with, or None if unknown."""
    if self._defaults is None and 'cls' in self.params:
      self._defaults = starting_params(self.params.cls)
    return self._defaults

  def compare_with(self, base: type):
    """Makes `finish` compare unread fields with a base class's defaults.

    A class that overrides only `Params()` is translated as its base, so its own
    defaults are settings like any other.

    Args:
      base: the class whose translator is used: the class itself or a base.
    """
    if base is self._owner or 'cls' not in self.params:
      return
    self._defaults = self._owner.Params()
    for name, value in base.Params().IterParams():
      if name != 'cls' and name in self._defaults:
        self._defaults.Set(**{name: value})

  def finish(self):
    """Adds an issue for each field that is set and was not read."""
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
  """Returns the default Params of a Lingvo class.

  If `Params()` takes arguments, as in layers of car tasks, they are those of
  the nearest base class whose `Params()` takes none.
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
  """Returns (path, value, default) for each difference of a field's values.

  Params with a class are compared with that class's defaults if the parent's
  default is of the same class.
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
  """Whether two values of a Params field are equal."""
  if _is_params(a) and _is_params(b):
    return a.ToText() == b.ToText()
  if hasattr(a, 'shape') or hasattr(b, 'shape'):
    return bool(np.array_equal(a, b))
  return type(a) is type(b) and a == b or (_is_number(a, b) and a == b)


def short(value: Any) -> str:
  """Returns a value as one line of at most 80 characters."""
  text = ' '.join(
    (value.ToText() if _is_params(value) else repr(value)).split()
  )
  return text if len(text) <= 80 else text[:77] + '...'


def _is_of_wrong_kind(value: Any, default: Any) -> bool:
  """Whether one of two values is a string and the other a number."""
  if isinstance(value, str):
    return _is_number(default)
  return isinstance(default, str) and _is_number(value)


def _is_number(*values: Any) -> bool:
  return all(isinstance(v, int | float | bool) for v in values)


def _is_params(value: Any) -> bool:
  return hasattr(value, 'IterParams') and hasattr(value, 'ToText')


def _class(params) -> type | None:
  return params.cls if 'cls' in params else None
