"""Class attributes of an experiment, changed from the command line.

Experiments keep their sizes in class attributes, which derived classes
override. `--attr=NAME=value` does the same without a class:

>>> class Words:
...   MODEL_DIMS = 2048
...   ICI_MESH_SHAPE = [1, 4, 1]
...   def dims(self):
...     return self.MODEL_DIMS
>>> words = changed(Words(), ['MODEL_DIMS=64', 'ICI_MESH_SHAPE=[1,1,1]'])
>>> words.dims(), words.ICI_MESH_SHAPE
(64, [1, 1, 1])
>>> changed(Words(), ['MODEL_DIM=64'])
Traceback (most recent call last):
...
pax_compat.errors.UserError: --attr=MODEL_DIM=64: Words has no class attribute \
'MODEL_DIM'; did you mean: MODEL_DIMS?
"""

import inspect
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pax_compat import errors
from pax_compat.configs import config_overrides
from pax_compat.experiments import class_hypers, subclassed

_T = TypeVar('_T')


def changed(instance: _T, settings: Sequence[str]) -> _T:
  """Returns a copy of an object whose class has changed attributes.

  The class of the copy is a subclass with the same name. What other attributes
  were computed from when the class was defined, such as HIDDEN_DIMS from
  MODEL_DIMS, does not change with them.

  Args:
    instance: an instance of a class with class attributes. It is not changed.
    settings: strings such as `MODEL_DIMS=64`, applied in order. A value has the
      type of the present one, or of the attribute's annotation.

  Raises:
    UserError: the attribute is unknown, or the value is not valid for it.
  """
  if not settings:
    return instance
  cls = type(instance)
  known = attributes(cls)
  values: dict[str, Any] = {}
  for setting in settings:
    name, equals, text = (part.strip() for part in setting.partition('='))
    where = f'--attr={setting}: '
    if not equals:
      raise errors.UserError(f'{where}expected NAME=value, as in MODEL_DIMS=64')
    if name not in known:
      raise errors.UserError(
        f'{where}{cls.__name__} has no class attribute {name!r}'
        + errors.did_you_mean(name, known)
      )
    old = values.get(name, known[name])
    values[name] = _value(cls, name, text, old)
  return subclassed.copied_as(type(cls)(cls.__name__, (cls,), values), instance)


def attributes(cls: type) -> Mapping[str, Any]:
  """Returns the class attributes that are settings, with their values.

  These are the public ones, base classes included, that are not methods,
  properties or nested classes; a class that the name of an attribute in upper
  case refers to is a setting.
  """
  found = {}
  for name, value in inspect.getmembers_static(cls):
    is_code = inspect.isroutine(value) or hasattr(value, '__get__')
    is_nested = isinstance(value, type) and not name.isupper()
    if not name.startswith('_') and not is_code and not is_nested:
      found[name] = value
  return found


def require_chosen(cls: type):
  """Raises a UserError if a class attribute is a search space of PyGlove."""
  class_hypers.require_none(
    cls.__name__,
    {k: v for k, v in attributes(cls).items() if class_hypers.is_one(v)},
  )


def _value(cls: type, name: str, text: str, old: Any) -> Any:
  """Returns the value that a string represents, see `changed`."""
  where = f'--attr={name}'
  if class_hypers.is_one(old):
    return class_hypers.chosen(old, text, where)
  if text == 'None':
    return None
  if isinstance(old, type) and not _is_dtype(old):
    return _class(text, old, where)
  if _annotation(cls, name) is float and isinstance(old, int):
    old = float(old)
    value = config_overrides.from_text(text, old, where=where)
    return int(value) if value.is_integer() else value
  if old is None:
    old = _example(_annotation(cls, name))
  return config_overrides.from_text(text, old, where=where)


def _example(annotation: Any) -> Any:
  """Returns a value of the simple type that an annotation allows, or None."""
  kinds = typing.get_args(annotation)
  if type(None) not in kinds:  # Else one of `X | None` or `Optional[X]`.
    kinds = (annotation,)
  [kind, *others] = [k for k in kinds if k is not type(None)] or [None]
  kind = typing.get_origin(kind) or kind
  simple = (bool, int, float, str, dict, list, tuple)
  return kind() if not others and kind in simple else None


def _is_dtype(value: type) -> bool:
  """Whether a class is a scalar type of NumPy or JAX."""
  of_jax = isinstance(getattr(value, 'dtype', None), np.dtype)
  return of_jax or issubclass(value, np.generic)


def _annotation(cls: type, name: str) -> Any:
  """Returns the annotation of a class attribute, None without one."""
  for base in cls.__mro__:
    annotations = vars(base).get('__annotations__', {})
    if name in annotations:
      return annotations[name]
  return None


def _class(text: str, old: type, where: str) -> type:
  """Returns a class by its name: one of the module of the present one."""
  known = {
    name: value
    for name, value in vars(sys.modules[old.__module__]).items()
    if isinstance(value, type) and _related(value, old)
  }
  name = text.strip('\'"').rpartition('.')[2]
  if name not in known:
    raise errors.UserError(
      f'{where}: {text!r} is not a class of {old.__module__}'
      f'{errors.did_you_mean(name, known)}; expected one of'
      f' {errors.short_list(sorted(known), 10)}'
    )
  return typing.cast(type, known[name])


def _related(one: type, other: type) -> bool:
  """Whether two classes derive from the same class of their module."""
  module = other.__module__
  of_module = {c for c in other.__mro__ if c.__module__ == module}
  return one.__module__ == module and bool(of_module & set(one.__mro__))
