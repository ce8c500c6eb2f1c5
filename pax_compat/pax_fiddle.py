"""Configs under the names of Pax's `pax_fiddle`; Fiddle's functions with them.

>>> from pax_compat import base_layer
>>> class Scale(base_layer.BaseLayer):
...   factor: float = 1.0
>>> class Block(base_layer.BaseLayer):
...   scale_tpl: Config = template_field(Scale)
...   scale: Scale = instance_field(Scale)
>>> block = Config(Block, name='block').set(scale_tpl=Config(Scale, factor=2.0))
>>> block.scale.factor = 3.0
>>> layer = instantiate(block)
>>> isinstance(layer.scale_tpl, Config), layer.scale.factor
(True, 3.0)

A config in a field that is annotated as one, such as a template field, stays a
config, for `create_child`. One in an instance field or another field, or in a
list or dict in it, is built with its owner.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, Self

import fiddle as fdl
from fiddle import (  # noqa: F401 (users take them from here)
  NO_VALUE,
  Buildable,
  Tag,
  TaggedValue,
  add_tag,
  assign,
  cast,
  clear_tags,
  copy_with,
  daglish,
  deepcopy_with,
  get_callable,
  get_tags,
  materialize_defaults,
  ordered_arguments,
  remove_tag,
  set_tagged,
  set_tags,
)
from fiddle.experimental import auto_config as fdl_auto_config

from pax_compat import config as config_lib
from pax_compat.config import Config

PaxConfig = Config
TagOrTags = type[Tag] | Collection[type[Tag]]
TypeOrCallableProducingT = Callable[..., Any]

BasicTraversal = daglish.BasicTraversal
MemoizedTraversal = daglish.MemoizedTraversal
iterate = daglish.iterate


class CloneAndSetMixin:
  """`clone` and `set` for the other kinds of buildables."""

  def clone(self) -> Self:
    """Returns a deep copy."""
    return copy.deepcopy(self)

  def set(self, **fields: Any) -> Self:
    """Sets fields by name and returns this object."""
    for name, value in fields.items():
      setattr(self, name, value)
    return self

  Set = set


class PaxPartial(fdl.Partial, CloneAndSetMixin):
  """A function or class with some of its arguments; see `build`."""

  def __init__(self, fn_or_cls: Callable[..., Any], /, *args, **kwargs):
    super().__init__(fn_or_cls, *args, **kwargs)
    _fill_in(self)


class PaxArgFactory(fdl.ArgFactory, CloneAndSetMixin):
  """An argument that is built anew at each call of a `Partial`."""

  def __init__(self, fn_or_cls: Callable[..., Any], /, *args, **kwargs):
    super().__init__(fn_or_cls, *args, **kwargs)
    _fill_in(self)


def _fill_in(partial: PaxPartial | PaxArgFactory):
  """Sets the fields that have configs as defaults, built anew at each call.

  Raises:
    InvalidConfigError: such a config is within a partial: one call of the outer
      partial would share it, and another not.
  """
  made = config_lib.configured_defaults(get_callable(partial))
  for name, make in made.items():
    if config_lib.is_set(partial, name):
      continue
    default = make()
    for value, _ in daglish.iterate(default):
      within = daglish.iterate(value) if isinstance(value, fdl.Partial) else ()
      if any(isinstance(inner, Config) for inner, _ in within):
        raise config_lib.InvalidConfigError(
          f'Unable to safely replace {config_lib.class_name(partial)}.{name}:'
          f' its default has a {type(value).__name__} of a config, built'
          ' once, within a partial, whose calls build it anew'
        )
    setattr(partial, name, _as_arg_factories(default))


def _as_arg_factories(default: Any) -> Any:
  """Returns a default with ArgFactories in place of configs."""

  def traverse(value: Any, state: daglish.State) -> Any:
    if not isinstance(value, fdl.Partial):
      value = state.map_children(value)
    return (
      fdl.cast(PaxArgFactory, value) if isinstance(value, Config) else value
    )

  return daglish.MemoizedTraversal.run(traverse, default)


Partial = PaxPartial
ArgFactory = PaxArgFactory


def field(
  *,
  default_factory: Any = dataclasses.MISSING,
  tags: TagOrTags = (),
  metadata: dict | None = None,
  configurable_factory: bool = False,
  **kwargs,
) -> Any:
  """Declares a dataclass field that may have Fiddle tags.

  Args:
    default_factory: makes the default; what is decorated by `auto_config` gives
      a config.
    tags: tags that configs have on this field.
    metadata: as in `dataclasses.field`.
    configurable_factory: whether the default is a config of `default_factory`,
      which is built with the object.
    **kwargs: as in `dataclasses.field`.
  """
  tags = tuple(tags) if isinstance(tags, Collection) else (tags,)
  metadata = {**(metadata or {}), config_lib.TAGS: tags}
  if fdl_auto_config.is_auto_config(default_factory):
    if configurable_factory:
      raise config_lib.InvalidConfigError(
        "configurable_factory should not be used with auto_config'ed functions:"
        f' {default_factory!r} makes a config without it'
      )
    make = default_factory.as_buildable
    inner = config_lib.built_field(default_factory, make)
  elif configurable_factory:
    inner = config_lib.built_dataclass_field(default_factory)
  elif default_factory is dataclasses.MISSING:
    return dataclasses.field(metadata=metadata, **kwargs)
  else:
    inner = config_lib.instance_field(default_factory)
  return dataclasses.field(
    default_factory=inner.default_factory,
    metadata={**inner.metadata, **metadata},
    **kwargs,
  )


fdl_field = field


def field_has_tag(dc_field: dataclasses.Field, tag: type[Tag]) -> bool:
  """Whether a dataclass field was declared with a tag."""
  return tag in dc_field.metadata.get(config_lib.TAGS, ())


def template_field(
  template: Any = dataclasses.MISSING, tags: TagOrTags = ()
) -> Any:
  """Declares a field for a config that is not built with the object.

  Args:
    template: a class; or a function that returns a config, or an object whose
      config `auto_config` gives. The default is a config of it. None for the
      default None. Without it the field is required.
    tags: tags that configs have on this field.
  """
  if template is dataclasses.MISSING:
    return field(default=config_lib.REQUIRED, tags=tags)
  if template is None:
    return field(default=None, tags=tags)
  if fdl_auto_config.is_auto_config(template):
    template = template.as_buildable
  default = config_lib.sub_config_field(_of_configs(template)).default_factory
  tags = tuple(tags) if isinstance(tags, Collection) else (tags,)
  return dataclasses.field(
    default_factory=default, metadata={config_lib.TAGS: tags}
  )


def _of_configs(template: Any) -> Any:
  """Returns a template that makes a config, of one that makes an object."""
  if isinstance(template, type) or not inspect.isfunction(template):
    return template

  def default() -> Any:
    made = template()
    if isinstance(made, Buildable):
      return made
    return auto_config(template).as_buildable()

  return default


sub_field = template_field


def instance_field(default_factory: Any, tags: TagOrTags = ()) -> Any:
  """Declares a field for an object that is built with its owner.

  Args:
    default_factory: a class, of which the default is a config if it can be
      configured; or a function that returns the default. None for None.
    tags: tags that configs have on this field.
  """
  if default_factory is None:
    return field(default=None, tags=tags)
  if inspect.isfunction(default_factory):
    default_factory = auto_config(default_factory)
  plain = _is_plain_dataclass(default_factory)
  return field(
    default_factory=default_factory, tags=tags, configurable_factory=plain
  )


def _is_plain_dataclass(cls: Any) -> bool:
  """Whether this is a dataclass that does not make configs itself."""
  is_class = isinstance(cls, type) and dataclasses.is_dataclass(cls)
  return is_class and not hasattr(cls, 'HParams')


def auto_config(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
  """Decorates a function: `fn.as_buildable()` gives what it makes as configs.

  Args:
    fn: a function that makes objects; None returns a decorator.
    **kwargs: as in Fiddle's `auto_config`.
  """
  kinds = fdl_auto_config.ConfigTypes(
    config_cls=Config, partial_cls=PaxPartial, arg_factory_cls=PaxArgFactory
  )
  options = {
    'experimental_allow_control_flow': True,
    'experimental_config_types': kinds,
    'experimental_result_must_contain_buildable': False,
    **kwargs,
  }
  if fn is None:
    return functools.partial(auto_config, **kwargs)
  if fdl_auto_config.is_auto_config(fn):
    return fn
  return fdl_auto_config.auto_config(fn, **options)


def update_callable(
  buildable: Buildable,
  new_callable: Callable[..., Any],
  drop_invalid_args: bool = False,
):
  """Makes a config one of another class; fields of the same name stay."""
  if isinstance(buildable, Config):
    if drop_invalid_args:
      known = config_lib.field_names(Config(new_callable))
      for name in set(config_lib.set_fields(buildable)) - set(known):
        delattr(buildable, name)
    buildable.cls = new_callable
  else:
    fdl.update_callable(buildable, new_callable, drop_invalid_args)


def instantiate(config: Buildable, **kwargs: Any) -> Any:
  """Builds a config; `kwargs` replace fields for this object only.

  Raises:
    UserError: a required field is not set, or a field is unknown.
  """
  if isinstance(config, Config):
    return config.Instantiate(**kwargs)
  if kwargs:
    config = copy.copy(config)
    fdl.assign(config, **kwargs)
  return build(config)


def build(buildable: Any) -> Any:
  """Builds a config, or each config in nested lists, tuples and dicts.

  Of a `Partial` it returns a function, that takes the other arguments.
  """
  if isinstance(buildable, Config):
    return buildable.Instantiate()
  if isinstance(buildable, fdl.Buildable):
    return config_lib.build_partial(buildable)
  if isinstance(buildable, dict):
    return type(buildable)({k: build(v) for k, v in buildable.items()})
  if isinstance(buildable, list | tuple):
    values = [build(value) for value in buildable]
    named = hasattr(buildable, '_fields')
    return type(buildable)(*values) if named else type(buildable)(values)
  return buildable
