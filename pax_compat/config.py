"""Configuration: Fiddle configs with the Pax spellings.

A configurable class is a dataclass whose fields are its hyperparameters:

    >>> class Dense(Configurable):
    ...   dims: int = REQUIRED
    ...   use_bias: bool = True
    >>> class Block(Configurable):
    ...   dense_tpl: Config = sub_config_field(Dense)

    >>> dense = Dense.config(dims=4)
    >>> dense.Instantiate().dims
    4
    >>> Dense.config(dim=4)
    Traceback (most recent call last):
    pax_compat.errors.UserError: Dense has no field 'dim'; did you mean: dims?
    >>> Dense.config().Instantiate()
    Traceback (most recent call last):
    pax_compat.config.RequiredError: Dense.dims is required

Assignment shares a config; `clone` copies it, templates included:

    >>> block = Block.config(dense_tpl=dense)
    >>> copy_of_block = block.clone()
    >>> dense.dims = 8
    >>> block.dense_tpl.dims, copy_of_block.dense_tpl.dims
    (8, 4)

Fields may also be declared in a nested `class HParams(BaseHParams)`, as in Pax.
`Dense.HParams(dims=4)` and `Dense.HParams.config(dims=4)` return a `Config`,
`Dense.HParams.partial(dims=4)` a Fiddle `Partial`.

`Instantiate()` builds one object. Configs in fields that are annotated as such,
like child templates, are passed to it as configs. So a parent decides when, how
often and with which dimensions its children are built. Configs in other fields,
or in lists and dicts in them, and in a field that is declared by
`instance_field`, are built with the object.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self, TypeVar

import fiddle as fdl

from pax_compat import errors
from pax_compat.config_core import absent_fields, annotations
from pax_compat.config_core.fiddle_state import (
  ATOMIC,
  class_name,
  deep_copy,
  field_names,
  field_values,
  hidden_fields,
  is_set,
  parameters,
  set_fields,
  takes_any_name,
  unset_to,
)

_T = TypeVar('_T')


class _Required:
  """Default value of a field that must be set before its config is built."""

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
  """A required field was not set.

  Attributes:
    cls: the name of the class that declares the field.
    field: the name of the field.
    path: the path of the config that has the field, '' if not known.
  """

  def __init__(self, cls: str, field: str, path: str = ''):
    where = f'{path}.{field}' if path else f'{cls}.{field}'
    super().__init__(f'{where} is required{f" by {cls}" if path else ""}')
    self.cls = cls
    self.field = field
    self.path = path

  def within(self, path: str) -> 'RequiredError':
    """Returns the same error with `path` prepended to its path."""
    whole = '.'.join(filter(None, (path, self.path)))
    return RequiredError(self.cls, self.field, whole)


# Metadata key of fields whose configs are built with the object: what makes the
# default in a config; see `built_field`.
_IN_CONFIG = 'in_config'
# Metadata key of fields with Fiddle tags.
TAGS = 'tags'


class UnknownFieldError(errors.UserError, AttributeError):
  """A field was read that does not exist.

  It is also an `AttributeError`, so that `hasattr` and `getattr` with a default
  work. The error for setting an unknown field is a plain `UserError`.
  """


class InvalidConfigError(errors.UserError, ValueError):
  """A configuration that is not possible, a `ValueError` in Pax."""


class Config(fdl.Config[_T]):
  """A Fiddle config with the methods of Pax's configs."""

  def __init__(self, fn_or_cls: Callable[..., _T], /, *args, **kwargs):
    super().__init__(fn_or_cls)
    if args:
      kwargs = {**_by_name(fn_or_cls, args), **kwargs}
    self._fill_in(kwargs)
    self.set(**kwargs)

  def _fill_in(self, given: Collection[str]):
    """Sets the fields with default factories, and adds the tags of fields."""
    for field in _dataclass_fields(self.cls):
      if field.init and _is_made(field) and field.name not in given:
        super().__setattr__(field.name, _default_config(field))
      for tag in field.metadata.get(TAGS, ()):
        fdl.add_tag(self, field.name, tag)

  @property
  def cls(self) -> Any:
    """The class (or function) that this config builds."""
    return fdl.get_callable(self)

  def __getattr__(self, name: str) -> Any:
    try:
      return super().__getattr__(name)
    except AttributeError:
      if not name.startswith('__'):  # Python looks these up itself.
        computed = getattr(self.cls, name, None)
        if isinstance(computed, property):
          return computed.fget(self)  # Of fields only, such as `mesh_shape`.
        try:
          _check_field(self, name)
        except errors.UserError as e:
          raise UnknownFieldError(str(e)) from None
      raise

  def __setattr__(self, name: str, value: Any):
    if name == 'cls' and name not in parameters(self):
      self._drop_defaults_without(value)
      fdl.update_callable(self, value)
      self._fill_in(set_fields(self))
      return
    if name not in parameters(self):
      absent = absent_fields.find(self.cls, name)
      if absent is not None and absent.accepts(name, value):
        return
    _check_field(self, name)
    super().__setattr__(name, value)

  def _drop_defaults_without(self, cls: Any):
    """Unsets those that a class lacks, of fields that have made defaults."""
    known = parameters(fdl.Config(cls))
    for field in _dataclass_fields(self.cls):
      name = field.name
      if name not in known and _is_made(field) and is_set(self, name):
        if getattr(self, name) == _default_config(field):
          delattr(self, name)

  def set(self, **fields) -> Self:
    """Sets fields by name and returns this config.

    Raises:
      UserError: a name is not a field; the message suggests the nearest names.
    """
    for name, value in fields.items():
      setattr(self, name, value)
    return self

  Set = set

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    return deep_copy(self, memo)

  def clone(self) -> Self:
    """Returns a deep copy, templates included."""
    return copy.deepcopy(self)

  def copy_fields_from(
    self, source: 'Config', missing_fields_in_self: Collection[str] = ()
  ):
    """Sets the fields to copies of those of another config.

    A field that `source` does not have stays as it is.

    Args:
      source: another config.
      missing_fields_in_self: fields of `source` that this one may lack.

    Raises:
      InvalidConfigError: `source` has another field that this config does not
        have, or has no value for a field without a default.
      UserError: `source` is not a config.
    """
    if not isinstance(source, Config):
      raise errors.UserError(
        f'copy_fields_from: expected a config, got {source!r}'
      )
    known = field_names(self)
    values = field_values(source.clone())
    for name in field_names(source):
      if name not in known and name not in missing_fields_in_self:
        raise InvalidConfigError(
          f'Copying incompatible HParams: {name!r} not in self, a config of'
          f' {class_name(self)}{errors.did_you_mean(name, known)}'
        )
    for name in filter(known.__contains__, field_names(source)):
      if name not in values:
        raise InvalidConfigError(
          f"Can't copy from missing required value {class_name(source)}.{name}"
        )
      # A parent may still set what was never set.
      if is_set(source, name) or not unset_to(self, name, values[name]):
        setattr(self, name, values[name])

  @property
  def mesh_shape(self) -> Any:
    """Devices along each axis over all slices; None without a mesh."""
    if 'mesh_shape' in parameters(self):
      return field_values(self).get('mesh_shape')
    return whole_mesh_shape(self.ici_mesh_shape, self.dcn_mesh_shape)

  def Instantiate(self, **overrides) -> _T:  # noqa: N802 (Pax's spelling)
    """Builds the object.

    Args:
      **overrides: values of fields for this object only.

    Raises:
      UserError: a required field is not set, or an override is not a field.
    """
    return _build(self, overrides, {})

  def build(self, overrides: dict[str, Any]) -> _T:
    """Builds the object without a flax parent; otherwise as `Instantiate`.

    flax makes a module that is built in the `setup` of another module its
    child. Passing `parent=None` prevents this.
    """
    return _build(self, overrides, {}, **_without_parent(self))


def whole_mesh_shape(
  within: Sequence[int] | None, between: Sequence[int] | None
) -> Sequence[int] | None:
  """Returns the devices along each axis of a mesh, over all slices.

  Args:
    within: devices along each axis, within a slice; None for no mesh.
    between: slices along each axis; None for a single slice.
  """
  if within is None or between is None:
    return within
  return [i * d for i, d in zip(within, between, strict=True)]


def _by_name(fn_or_cls: Callable[..., Any], args: tuple) -> dict[str, Any]:
  """Returns positional arguments by name, for what takes some."""
  try:
    return inspect.signature(fn_or_cls).bind_partial(*args).arguments
  except TypeError:
    raise errors.UserError(
      f'{fn_or_cls.__qualname__}: fields are set by name, got the'
      f' positional values {args!r}'
    ) from None


def _build(
  config: Config, overrides: dict[str, Any], built: dict[int, Any], **hidden
) -> Any:
  """Builds an object and the configs in its fields that are not templates.

  Args:
    config: the config of the object.
    overrides: values that replace those of the config.
    built: objects that were built before, by the id of their config. New ones
      are added.
    **hidden: values of fields that users do not set.
  """
  for name in overrides:
    _check_field(config, name)
  fields = {**field_values(config), **overrides}
  for name, value in fields.items():
    if value is REQUIRED:
      raise RequiredError(class_name(config), name)
    if type(value) not in ATOMIC:
      fields[name] = _in_object(config.cls, name, value, built)
  return config.cls(**fields, **{**hidden_fields(config), **hidden})


def _in_object(cls: Any, name: str, value: Any, built: dict[int, Any]) -> Any:
  """Returns the value of a field in an object; templates stay configs."""
  if _has_config(value) and name not in configured_defaults(cls):
    if annotations.is_template(cls, name):
      return value
  return _with_built(value, built, name)


def _has_config(value: Any) -> bool:
  """Whether a value is a config, or a list, tuple or dict with one."""
  if type(value) is dict:
    value = list(value.values())
  if type(value) in (list, tuple):
    return any(map(_has_config, value))
  return isinstance(value, fdl.Buildable)


def _with_built(value: Any, built: dict[int, Any], path: str) -> Any:
  """Builds a config; copies a container, with what is built of its configs.

  Args:
    value: a value of a field.
    built: as in `_build`.
    path: the path of the value, for errors.
  """
  if isinstance(value, fdl.Buildable):
    if id(value) not in built:
      try:
        built[id(value)] = _built(value, built)
      except RequiredError as e:
        raise e.within(path) from None
    return built[id(value)]
  if type(value) is dict:
    return {
      k: _with_built(v, built, f'{path}[{k!r}]') for k, v in value.items()
    }
  if type(value) in (list, tuple):
    items = enumerate(value)
    return type(value)(_with_built(v, built, f'{path}[{i}]') for i, v in items)
  return value


def _built(config: fdl.Buildable, built: dict[int, Any]) -> Any:
  if isinstance(config, Config):
    return _build(config, {}, built, **_without_parent(config))
  cls = fdl.get_callable(config)
  fields = {
    name: _in_object(cls, name, value, built)
    for name, value in set_fields(config).items()
  }
  return config.__build__(**fields)


def build_partial(partial: fdl.Buildable) -> Callable[..., Any]:
  """Builds the function of a `Partial`, and its configs as `Instantiate`."""
  return _built(partial, {})


def _without_parent(config: Config) -> dict[str, None]:
  return {'parent': None} if 'parent' in parameters(config) else {}


def _dataclass_fields(cls: Any) -> tuple[dataclasses.Field, ...]:
  return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _check_field(config: fdl.Buildable, name: str):
  if name not in parameters(config) and not takes_any_name(config):
    known = field_names(config)
    absent = absent_fields.find(fdl.get_callable(config), name)
    instead = f' of Pax: {absent.why}' if absent else ''
    raise errors.UserError(
      f'{class_name(config)} has no field {name!r}'
      + (instead or errors.did_you_mean(name, known))
    )


class HParamsMeta(type):
  """Makes `Layer.HParams(...)` build a `Config` of `Layer`."""

  owner: Any = None
  stands_for_config = True  # In annotations.

  def __call__(cls, *args, **fields) -> Config:
    return cls.config(*args, **fields)

  def config(cls, *args, **fields) -> Config:
    """Returns a `Config` of the class that these hyperparameters belong to."""
    return Config(cls._owner(), *args, **fields)

  def partial(cls, **fields) -> fdl.Partial:
    """Returns a Fiddle `Partial` of the class, which takes the other fields."""
    partial = fdl.Partial(cls._owner())
    for name, value in fields.items():
      _check_field(partial, name)
      setattr(partial, name, value)
    return partial

  def _owner(cls) -> Any:
    if cls.owner is None:
      raise errors.UserError(
        f'{cls.__qualname__} does not belong to a class yet'
      )
    return cls.owner


class BaseHParams(metaclass=HParamsMeta):
  """Base of the nested `HParams` classes that declare hyperparameters."""


def declare_hparams(cls: type):
  """Turns the nested `HParams` of `cls` into fields of `cls`.

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

  Subclasses become keyword-only dataclasses automatically.
  """

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if '__init__' in vars(cls):
      raise errors.UserError(
        f'{cls.__qualname__} has an __init__; expected a __post_init__(self),'
        ' which reads the fields from self'
      )
    declare_hparams(cls)
    dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)

  @classmethod
  def config(cls, **fields) -> Config[Self]:
    """Returns a `Config` of this class."""
    return Config(cls, **fields)

  @property
  def hparams(self) -> Config[Self]:
    """A new config with the fields of this object."""
    names = [f.name for f in dataclasses.fields(self) if f.init]
    return Config(type(self), **{n: getattr(self, n) for n in names})

  def check(self, condition: bool, wrong: str):
    """Raises a UserError unless a condition is true.

    Args:
      condition: the outcome of the check.
      wrong: the message: the field, its value, and what was expected.
    """
    if not condition:
      raise errors.UserError(f'{type(self).__name__}: {wrong}')


def refused(name: str, why: str, *shortcuts: str) -> type[Configurable]:
  """Returns a placeholder for a class of Pax that is not supported.

  Making a config of it raises a UserError.

  Args:
    name: the name of the class.
    why: why it is not supported, and what to use instead.
    *shortcuts: names of its static methods that return configs.
  """

  def refuse():
    raise errors.UserError(f'{name} is not supported: {why}')

  # The default is made before fields are checked, so this error comes first.
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
    hparams: a class, its `HParams`, or a function that returns a config; None
      for the default None.
    **overrides: fields to set on the default config.
  """
  if hparams is None:
    return dataclasses.field(default=None)

  def default():
    if isinstance(hparams, HParamsMeta):
      return hparams.config(**overrides)
    if isinstance(hparams, type):
      return Config(hparams, **overrides)
    return hparams().set(**overrides)

  return dataclasses.field(default_factory=default)


def instance_field(default_factory: Any) -> Any:
  """Declares a field whose default is a fresh `default_factory()`.

  For a configurable class, the default is its config. A config in this field is
  not a template: it is built together with the object that has the field. A
  config that two such fields share is built once.
  """
  if isinstance(default_factory, HParamsMeta):
    default_factory = default_factory.owner
  if not hasattr(default_factory, 'HParams'):
    return dataclasses.field(default_factory=default_factory)

  def in_config():
    return Config(default_factory)

  return built_field(in_config, in_config)


def built_field(
  default_factory: Callable[[], Any], in_config: Callable[[], Any]
) -> Any:
  """Declares a field whose config is built with the object.

  Args:
    default_factory: makes the default in an object that has no config.
    in_config: makes the default in a config.
  """
  return dataclasses.field(
    default_factory=default_factory, metadata={_IN_CONFIG: in_config}
  )


def built_dataclass_field(cls: type) -> Any:
  """Declares a field for an object of a dataclass.

  In a config, the default is a config of the class, built with the object; of
  an object that is made without a config it is an object.
  """
  return built_field(cls, lambda: Config(cls))


def _is_made(field: dataclasses.Field) -> bool:
  """Whether a factory makes the default of a field."""
  return field.default_factory is not dataclasses.MISSING


def _default_config(field: dataclasses.Field) -> Any:
  """Returns the default of a field with a factory, in a config."""
  return field.metadata.get(_IN_CONFIG, field.default_factory)()


def configured_defaults(cls: Any) -> dict[str, Callable[[], Any]]:
  """Returns what makes the configs in fields of `built_field`, by field."""
  fields = _dataclass_fields(cls)
  return {
    f.name: f.metadata[_IN_CONFIG] for f in fields if _IN_CONFIG in f.metadata
  }
