"""Hyperparameters outside layers, and configs as Pax writes them to text.

>>> class Limits(BaseHyperParams):
...   low: int = 0
>>> limits = Limits(low=3)
>>> copied = limits.clone().set(low=4)
>>> limits.low, copied.low
(3, 4)
>>> print(nested_struct_to_text(Limits.config(low=5)), end='')
cls : type/pax_compat.base_hyperparams/Limits
low : 5
"""

import copy
import dataclasses
import enum
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self

import fiddle as fdl
import flax.linen as nn
import numpy as np

from pax_compat import config as config_lib
from pax_compat import errors, pax_fiddle
from pax_compat.config import sub_config_field  # noqa: F401 (users take it)

instantiate = pax_fiddle.instantiate


class StrOverride:
  """Base of objects whose `str` is their value in `nested_struct_to_text`."""


class FrozenError(errors.UserError, AttributeError):
  """A field of frozen hyperparameters was set."""


class BaseHyperParams:
  """Base of plain objects with fields; subclasses become dataclasses.

  A subclass that declares a field of its parent again names it in
  `_attribute_overrides`.
  """

  _attribute_overrides: tuple[str, ...] = ()
  _frozen = False

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    own = inspect.get_annotations(cls)
    own.pop('_attribute_overrides', None)
    before = {
      f.name
      for base in cls.__mro__[1:]
      if dataclasses.is_dataclass(base)
      for f in dataclasses.fields(base)
    }
    for name in set(own) & before - set(cls._attribute_overrides):
      raise errors.UserError(
        f'{cls.__qualname__} declares the field {name!r} of its parent again;'
        ' name it in _attribute_overrides'
      )
    cls.__annotations__ = own
    dataclasses.dataclass(cls)

  @classmethod
  def config(cls, **fields: Any) -> config_lib.Config[Self]:
    """Returns a `Config` of this class."""
    config = config_lib.Config(cls, **fields)
    for name, value in config_lib.set_fields(config).items():
      if name not in fields and isinstance(value, BaseHyperParams):
        setattr(config, name, type(value).config(**_values(value)))
    return config

  @classmethod
  def partial(cls, **fields: Any) -> fdl.Partial:
    """Returns a `Partial` of this class."""
    return fdl.cast(pax_fiddle.Partial, cls.config(**fields))

  def __post_init__(self):
    for name, value in _values(self).items():
      if isinstance(value, BaseHyperParams):
        setattr(self, name, value.clone())
      elif _is_config_of_hparams(value):
        setattr(self, name, value.Instantiate())

  def __setattr__(self, name: str, value: Any):
    if self._frozen:
      raise FrozenError(f'{self} is frozen; change a clone()')
    known = [f.name for f in dataclasses.fields(self)]
    if name not in known:
      raise config_lib.UnknownFieldError(
        f'{type(self).__qualname__} has no field {name!r}'
        + errors.did_you_mean(name, known)
      )
    object.__setattr__(self, name, value)

  def _mark(self, frozen: bool):
    object.__setattr__(self, '_frozen', frozen)
    for value in _values(self).values():
      if isinstance(value, BaseHyperParams):
        value._mark(frozen)

  def freeze(self):
    """Makes setting a field an error, here and in nested objects."""
    self._mark(True)

  def unfreeze(self):
    """Undoes `freeze`."""
    self._mark(False)

  def clone(self) -> Self:
    """Returns a deep copy, which is not frozen."""
    cloned = copy.deepcopy(self)
    cloned.unfreeze()
    return cloned

  def set(self, **fields: Any) -> Self:
    """Sets fields by name and returns this object."""
    for name, value in fields.items():
      setattr(self, name, value)
    return self

  def copy_fields_from(
    self,
    source: 'BaseHyperParams',
    missing_fields_in_self: Collection[str] | None = None,
  ):
    """Sets the fields to those of another object; nested objects are copied.

    Args:
      source: the other object.
      missing_fields_in_self: fields of it that this object may lack.

    Raises:
      UserError: `source` has another field that this object does not have.
    """
    if not isinstance(source, BaseHyperParams):
      raise errors.UserError(
        f'copy_fields_from: expected a BaseHyperParams, got {source!r}'
      )
    own = _values(self)
    for name, value in _values(source).items():
      if name in own:
        nested = isinstance(value, BaseHyperParams)
        setattr(self, name, value.clone() if nested else value)
      elif name not in (missing_fields_in_self or ()):
        raise errors.UserError(
          f'copy_fields_from: {type(self).__qualname__} has no field {name!r}'
        )

  def to_text(self, include_types: bool = False, separator: str = ':') -> Any:
    """Returns `nested_struct_to_text` of this object."""
    return nested_struct_to_text(self, include_types, separator)


def _is_config_of_hparams(value: Any) -> bool:
  cls = value.cls if isinstance(value, config_lib.Config) else None
  return isinstance(cls, type) and issubclass(cls, BaseHyperParams)


def _values(params: Any) -> dict[str, Any]:
  """Returns the fields of a dataclass; not those that have no value yet."""
  hidden = ('parent',) if isinstance(params, nn.Module) else ()
  names = [f.name for f in dataclasses.fields(params) if f.name not in hidden]
  return {n: getattr(params, n) for n in names if hasattr(params, n)}


class FiddleBaseParameterizable(config_lib.Configurable):
  """Base of configurable classes that are not layers.

  Attributes:
    name: name of the object.
  """

  name: str = ''


FiddleBaseParameterizableBase = FiddleBaseParameterizable


def _is_dataclass(value: Any) -> bool:
  return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _items(key: str, value: Any) -> Iterator[tuple[str, Any]] | None:
  """Returns the elements of a value by their keys; None for a leaf."""

  def below(name):
    return f'{key}.{name}' if key else str(name)

  if isinstance(value, Mapping):
    return ((below(k), v) for k, v in value.items())
  if isinstance(value, fdl.Buildable):
    fields = config_lib.field_values(value)
    if not key.endswith('_split_dims_mapping'):
      fields = {'cls': fdl.get_callable(value), **fields}
    return ((below(k), v) for k, v in fields.items())
  if _is_dataclass(value):
    return ((below(k), v) for k, v in _values(value).items())
  if isinstance(value, tuple) and hasattr(value, '_fields'):
    return ((f'{key}[{k}]', v) for k, v in value._asdict().items())
  if isinstance(value, list | tuple | range):
    return ((f'{key}[{i}]', v) for i, v in enumerate(value))
  return None


def visit_nested_struct(
  obj_to_visit: Any,
  visit_fn: Callable[[str, Any], None],
  enter_fn: Callable[[str, Any], bool] | None = None,
  exit_fn: Callable[[str, Any], None] | None = None,
):
  """Visits the leaves of configs, dataclasses, mappings, lists and tuples.

  Keys are such as `a.b[0].c`. The class of a config has the key `a.cls`.

  Args:
    obj_to_visit: the nest.
    visit_fn: called with the key and value of each leaf.
    enter_fn: called before anything that has elements; if it returns False,
      `visit_fn` is called instead. None enters everything.
    exit_fn: called after the elements.

  Raises:
    UserError: a value contains itself.
  """
  entered: set[int] = set()

  def visit(key: str, value: Any):
    items = _items(key, value)
    if items is None or (enter_fn and not enter_fn(key, value)):
      visit_fn(key, value)
      return
    if id(value) in entered:
      raise errors.UserError(f'{key} contains itself')
    entered.add(id(value))
    for name, item in items:
      visit(name, item)
    if exit_fn:
      exit_fn(key, value)
    entered.remove(id(value))

  visit('', obj_to_visit)


def nested_struct_to_text(
  obj_to_visit: Any, include_types: bool = False, separator: str = ':'
) -> Any:
  """Returns `key : value` lines of a config or another nest, sorted by key.

  Args:
    obj_to_visit: see `visit_nested_struct`. Lists and tuples are one value,
      unless all their elements are configs or hyperparameters.
    include_types: whether the names of the values' types are returned, too.
    separator: between key and value.

  Returns:
    The text; or the text and {key: type}.
  """
  texts, kinds = {}, {}

  def visit(key, value):
    kinds[key] = type(value).__name__
    is_text = isinstance(value, str)
    texts[key] = _quoted(value) if is_text else str(_representation(value))

  visit_nested_struct(obj_to_visit, visit, enter_fn=_is_entered)
  text = ''.join(f'{key} {separator} {texts[key]}\n' for key in sorted(texts))
  return (text, kinds) if include_types else text


def _is_entered(key: str, value: Any) -> bool:
  del key
  if isinstance(value, list | tuple) and not hasattr(value, '_fields'):
    kinds = (fdl.Buildable, BaseHyperParams)
    return all(isinstance(v, kinds) for v in value)
  return not isinstance(value, range)


def _quoted(text: str) -> str:
  quote = "'" if text.count("'") <= text.count('"') else '"'
  escaped = text.replace('\\', '\\\\').replace(quote, '\\' + quote)
  return f'{quote}{escaped}{quote}'


def _representation(value: Any) -> Any:
  """Returns something whose `str` is the text of a value."""
  if isinstance(value, Mapping):
    items = sorted((k, _representation(v)) for k, v in value.items())
    return dict(items)
  if isinstance(value, np.ndarray):
    return np.array2string(value, separator=', ')
  if isinstance(value, BaseHyperParams):
    return _representation(_values(value))
  if isinstance(value, StrOverride) or _is_dataclass(value):
    return str(value)
  if isinstance(value, tuple) and hasattr(value, '_fields'):
    return _representation(value._asdict())
  if isinstance(value, list | tuple):
    return type(value)(_representation(v) for v in value)
  if isinstance(value, int | float | bool | str | enum.Enum):
    return value
  if isinstance(value, type):
    return f'type/{value.__module__}/{value.__qualname__}'
  if callable(value) and hasattr(value, '__qualname__'):
    return f'callable/{inspect.getmodule(value).__name__}/{value.__qualname__}'
  if isinstance(value, fdl.Buildable):
    return repr(value)
  return type(value).__name__
