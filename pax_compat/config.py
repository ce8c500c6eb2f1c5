"""Configuration: Fiddle underneath, the Pax spellings on top.

A configurable class is a dataclass whose fields are its hyperparameters. They
are declared as plain fields or in a nested `class HParams(BaseHParams)`; both
mean the same. `Layer.HParams(dims=4)` and `Layer.HParams.config(dims=4)` give a
`Config`, `Layer.HParams.partial(dims=4)` a Fiddle `Partial`.

A `Config` is built by `Instantiate()`, which builds this one object only: what
its fields hold, child templates included, reaches the object as it stands. So a
parent decides when, how often and with which dimensions its children are built.
Only a field declared by `instance_field` asks for its config to be built too.
"""

import copy
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from pax_compat import errors


class _Required:
  """The value of a field that must be set before its config is used."""

  def __repr__(self):
    return 'REQUIRED'

  def __deepcopy__(self, memo):
    return self

  def __copy__(self):
    return self

  def __getattr__(self, name: str):
    raise AttributeError(
      f'the attribute {name!r} was read from a required field that is not set'
      ' yet; set the field first'
    )

  def __setattr__(self, name: str, value: Any):
    raise AttributeError(
      f'the attribute {name!r} was set on a required field that is not set yet;'
      ' set the field first'
    )


REQUIRED: Any = _Required()


class RequiredError(errors.UserError):
  """A required field was never set.

  Attributes:
    cls: name of the class that has the field.
    field: its name.
    path: where the config stands that has the field, as far as is known.
  """

  def __init__(self, cls: str, field: str, path: str = ''):
    where = f'{path}.{field}' if path else f'{cls}.{field}'
    super().__init__(f'{where} is required{f" by {cls}" if path else ""}')
    self.cls = cls
    self.field = field
    self.path = path

  def within(self, path: str) -> 'RequiredError':
    """Returns the same error with `path` in front of its path."""
    whole = '.'.join(filter(None, (path, self.path)))
    return RequiredError(self.cls, self.field, whole)


# Fields that flax.linen adds to every module and no user sets.
_HIDDEN_FIELDS = ('parent',)
# Marks fields whose configs are built together with the object that has them.
_BUILT = 'built'


class UnknownFieldError(errors.UserError, AttributeError):
  """The value was asked for of a field that there is not.

  An `AttributeError` too, as Python wants it of what is asked for; an error
  when a field is set is none, since `hasattr` would hide it.
  """


class Config(fdl.Config):
  """A Fiddle config with the methods that Pax users know."""

  def __init__(self, fn_or_cls, /, *args, **kwargs):
    super().__init__(fn_or_cls)
    if dataclasses.is_dataclass(fn_or_cls):
      for field in dataclasses.fields(fn_or_cls):
        if (
          field.init
          and field.name not in kwargs
          and field.default_factory is not dataclasses.MISSING
        ):
          super().__setattr__(field.name, field.default_factory())
    if args:
      raise errors.UserError(
        f'{fn_or_cls.__qualname__}: fields are set by name, got the'
        f' positional values {args!r}'
      )
    self.set(**kwargs)

  @property
  def cls(self) -> Any:
    """The class (or function) that this config builds."""
    return fdl.get_callable(self)

  def __getattr__(self, name: str) -> Any:
    try:
      return super().__getattr__(name)
    except AttributeError:
      if not name.startswith('__'):  # Those are asked for by Python.
        try:
          _check_field(self, name)
        except errors.UserError as e:
          raise UnknownFieldError(str(e)) from None
      raise

  def __setattr__(self, name: str, value: Any):
    _check_field(self, name)
    super().__setattr__(name, value)

  def set(self, **fields) -> 'Config':
    """Sets fields by name and returns this config.

    Raises:
      UserError: a name is not a field; the message suggests the nearest.
    """
    for name, value in fields.items():
      setattr(self, name, value)
    return self

  def clone(self) -> 'Config':
    """Returns a deep copy, templates included."""
    return copy.deepcopy(self)

  def Instantiate(self, **overrides) -> Any:  # noqa: N802 (Pax's spelling)
    """Builds the object.

    Args:
      **overrides: fields that replace those of this config, for this object.

    Returns:
      The object, whose fields hold what this config's fields hold.

    Raises:
      UserError: a required field was never set, or an override is no field.
    """
    return _build(self, overrides, {})

  def build(self, overrides: dict[str, Any]) -> Any:
    """Builds the object as one that belongs to no other yet.

    Modules of flax that are built in the `setup` of another one belong to it,
    unless they are built by this method. Otherwise it is `Instantiate`.
    """
    return _build(self, overrides, {}, **_without_parent(self))


def _build(
  config: Config, overrides: dict[str, Any], built: dict[int, Any], **hidden
) -> Any:
  """Builds an object, and what its fields made by `instance_field` hold.

  Args:
    config: of the object.
    overrides: replace its fields.
    built: what was built before, by the config's id; gets what is built now.
    **hidden: fields that no user sets.
  """
  for name in overrides:
    _check_field(config, name)
  fields = {**field_values(config), **overrides}
  for name, value in fields.items():
    if value is REQUIRED:
      raise RequiredError(class_name(config), name)
    if isinstance(value, Config) and name in _instance_fields(config):
      if id(value) not in built:
        hides = _without_parent(value)
        try:
          built[id(value)] = _build(value, {}, built, **hides)
        except RequiredError as e:
          raise e.within(name) from None
      fields[name] = built[id(value)]
  return config.cls(**fields, **hidden)


def _without_parent(config: Config) -> dict[str, None]:
  return {'parent': None} if 'parent' in _parameters(config) else {}


def _instance_fields(config: Config) -> list[str]:
  if not dataclasses.is_dataclass(config.cls):
    return []
  fields = dataclasses.fields(config.cls)
  return [f.name for f in fields if f.metadata.get(_BUILT)]


def _check_field(config: fdl.Buildable, name: str):
  known = field_names(config)
  if name not in known:
    raise errors.UserError(
      f'{class_name(config)} has no field {name!r}'
      + errors.did_you_mean(name, known)
    )


def class_name(config: fdl.Buildable) -> str:
  """Returns the unqualified name of the class that `config` builds."""
  return fdl.get_callable(config).__qualname__


def field_names(config: fdl.Buildable) -> list[str]:
  """Returns the names of a config's fields, in the order of declaration."""
  return [n for n in _parameters(config) if n not in _HIDDEN_FIELDS]


def field_values(config: fdl.Buildable) -> dict[str, Any]:
  """Returns a config's fields with their values, set or default."""
  defaults = {
    name: parameter.default
    for name, parameter in _parameters(config).items()
    if parameter.default is not parameter.empty
  }
  values = {**defaults, **set_fields(config)}
  return {n: values[n] for n in field_names(config) if n in values}


# Fiddle keeps the state of a config in attributes with double underscores. Only
# the functions below use them; other modules call these functions.


def set_fields(config: fdl.Buildable) -> dict[str, Any]:
  """Returns the fields of a config that were set, with their values.

  A field with a default factory counts as set: its config has a value of its
  own from the start. Changing the returned dict does not change the config.
  """
  return dict(config.__arguments__)


def is_set(config: fdl.Buildable, field: str) -> bool:
  """Returns whether a field of a config was set; see `set_fields`."""
  return field in config.__arguments__


def _parameters(config: fdl.Buildable) -> Mapping[str, inspect.Parameter]:
  """Returns the parameters of what a config builds, by name."""
  return config.__signature_info__.parameters


class HParamsMeta(type):
  """Makes `Layer.HParams(...)` build a `Config` of `Layer`."""

  owner: Any = None

  def __call__(cls, *args, **fields) -> Config:
    return cls.config(*args, **fields)

  def config(cls, *args, **fields) -> Config:
    """Returns a `Config` of the class that these hyperparameters belong to."""
    return Config(cls._owner(), *args, **fields)

  def partial(cls, **fields) -> fdl.Partial:
    """Returns a Fiddle `Partial` of the class, for callables with arguments."""
    partial = fdl.Partial(cls._owner())
    for name, value in fields.items():
      _check_field(partial, name)
      setattr(partial, name, value)
    return partial

  def _owner(cls) -> Any:
    if cls.owner is None:
      raise errors.UserError(f'{cls.__qualname__} belongs to no class yet')
    return cls.owner


class BaseHParams(metaclass=HParamsMeta):
  """Base of the nested `HParams` classes that declare hyperparameters."""


def declare_hparams(cls: type):
  """Turns a nested `HParams` declaration of `cls` into fields of `cls`.

  Call it from `__init_subclass__`, before the class becomes a dataclass.
  """
  declared = cls.__dict__.get('HParams')
  if declared is not None:
    own = declared.__dict__
    annotations = dict(own.get('__annotations__', {}))
    cls.__annotations__ = {
      **annotations,
      **cls.__dict__.get('__annotations__', {}),
    }
    for name in annotations:
      if name in own:
        setattr(cls, name, own[name])
  else:
    cls.HParams = HParamsMeta('HParams', (BaseHParams,), {})
    cls.HParams.__qualname__ = f'{cls.__qualname__}.HParams'
  cls.HParams.owner = cls


class Configurable:
  """Base of the configurable classes that are not flax modules.

  Subclasses become keyword-only dataclasses by themselves.
  """

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if '__init__' in vars(cls):
      raise errors.UserError(
        f'{cls.__qualname__} has an __init__; expected a __post_init__(self),'
        ' which finds the fields in self'
      )
    declare_hparams(cls)
    dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)

  @classmethod
  def config(cls, **fields) -> Config:
    """Returns a `Config` of this class."""
    return Config(cls, **fields)

  def check(self, holds: bool, wrong: str):
    """Raises a UserError that says what is `wrong`, unless the check `holds`.

    Args:
      holds: the outcome.
      wrong: the field, its value, and what was expected.
    """
    if not holds:
      raise errors.UserError(f'{type(self).__name__}: {wrong}')


def refused(name: str, why: str, *shortcuts: str) -> type[Configurable]:
  """Returns a class that stands for a class of Pax which is not supported.

  Its configs raise a UserError, whatever fields are given.

  Args:
    name: the class's name.
    why: why it is not supported, and what to use instead.
    *shortcuts: names of its functions that return ready-made configs.
  """

  def refuse():
    raise errors.UserError(f'{name} is not supported: {why}')

  # The default is made before any field is checked: this error comes first.
  default = dataclasses.field(default_factory=refuse)
  members = {
    '__doc__': f'`{name}` of Pax, which is not supported.',
    '__annotations__': {'unsupported': Any},
    'unsupported': default,
    **{shortcut: staticmethod(refuse) for shortcut in shortcuts},
  }
  return type(name, (Configurable,), members)


def sub_config_field(hparams: Any, **overrides) -> Any:
  """Declares a field whose default is a fresh config.

  Args:
    hparams: a class, its `HParams`, or a function that returns a config.
    **overrides: fields to set on the default config.
  """

  def default():
    if isinstance(hparams, HParamsMeta):
      return hparams.config(**overrides)
    if isinstance(hparams, type):
      return Config(hparams, **overrides)
    return hparams().set(**overrides)

  return dataclasses.field(default_factory=default)


def instance_field(default_factory: Any) -> Any:
  """Declares a field whose default is a fresh `default_factory()`.

  Where that is a configurable class, the default is its config, and a config in
  this field is built together with the object that has the field: it is no
  template. One config in two such fields is one object.
  """
  if isinstance(default_factory, HParamsMeta):
    default_factory = default_factory.owner
  if not hasattr(default_factory, 'HParams'):
    return dataclasses.field(default_factory=default_factory)
  return dataclasses.field(
    default_factory=lambda: Config(default_factory), metadata={_BUILT: True}
  )
