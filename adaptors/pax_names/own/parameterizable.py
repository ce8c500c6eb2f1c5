"""`BaseParameterizable`: classes with an `__init__(hparams)`, as in older Pax.

    class Scale(BaseParameterizable):
      _USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE = True

      class HParams(BaseHyperParams):
        factor: float = 1.0

    Scale(Scale.HParams(factor=2.0)).hparams.factor
    Scale.config(factor=2.0).Instantiate().hparams.factor

Pax asks for the mark in each such class, and until 2023 did not: a class with
`HParams` of its own needs none here. Others inherit from
`FiddleBaseParameterizable`.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import fiddle as fdl

from pax_compat import config as config_lib
from pax_compat import errors, pax_fiddle
from pax_compat.base_hyperparams import BaseHyperParams

_MARK = '_USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE'
_HPARAMS = 'hparams'

# Default of an argument whose field has a factory.
_FROM_FACTORY = object()


class BaseParameterizable:
  """Base of classes that are made from an object of their `HParams`.

  An `__init__` has the argument `hparams`; others beside it are arguments of
  `config`, `partial` and `make`, too.
  """

  HParams: ClassVar[type[BaseHyperParams]] = BaseHyperParams

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    # Until 2023 Pax asked for no mark, and classes had `HParams`.
    if not hasattr(cls, _MARK) and 'HParams' not in vars(cls):
      raise errors.UserError(
        f'{cls.__qualname__} inherits from BaseParameterizable; expected'
        f' FiddleBaseParameterizable, or HParams or {_MARK} = True in the class'
      )
    cls.HParams = _bound(cls.HParams, cls)
    others = _init_arguments(cls)
    fields = list(_field_arguments(cls.HParams))
    for name in sorted({p.name for p in fields} & {p.name for p in others}):
      raise TypeError(
        f'Duplicated parameter of {cls.__qualname__}: {name} is a field of'
        ' HParams and an argument of __init__'
      )
    cls.make = classmethod(_maker([p.name for p in others]))
    cls.make.__func__.__qualname__ = f'{cls.__qualname__}.make'
    cls.make.__func__.__signature__ = inspect.Signature(
      [
        inspect.Parameter('cls', inspect.Parameter.POSITIONAL_ONLY),
        *fields,
        *others,
      ]
    )

  def __init__(self, hparams: BaseHyperParams):
    self._hparams = hparams.clone()

  @property
  def hparams(self) -> BaseHyperParams:
    """The hyperparameters of this object."""
    return self._hparams

  @classmethod
  def make(cls, **fields: Any) -> Self:
    """Returns an object with these fields of `HParams`.

    That of a subclass has its fields and arguments as signature.
    """
    return cls(cls.HParams(**fields))

  @classmethod
  def config(cls, **fields: Any) -> config_lib.Config[Self]:
    """Returns a config whose fields are those of `HParams`."""
    return pax_fiddle.Config(cls.make, **fields)

  @classmethod
  def partial(cls, **fields: Any) -> fdl.Partial:
    """Returns a partial config; see `config`."""
    return pax_fiddle.Partial(cls.make, **fields)


def _bound(hparams: type[BaseHyperParams], owner: type) -> type:
  """Returns the class of hyperparameters with the field `cls`, the owner."""

  def copy_fields_from(self, source, missing_fields_in_self=None):
    super(bound, self).copy_fields_from(source, missing_fields_in_self)
    self.cls = owner

  def instantiate(self, **others):
    """Returns an object with these hyperparameters."""
    return self.cls(self, **others)

  bound = type(hparams)(
    'HParams',
    (hparams,),
    {
      '__annotations__': {'cls': type},
      '__doc__': hparams.__doc__,
      '__module__': owner.__module__,
      '__qualname__': f'{owner.__qualname__}.HParams',
      '_attribute_overrides': (*hparams._attribute_overrides, 'cls'),
      'cls': owner,
      'copy_fields_from': copy_fields_from,
      'Instantiate': instantiate,
    },
  )
  return bound


def _init_arguments(cls: type) -> list[inspect.Parameter]:
  """Returns the arguments of `__init__` beside the hyperparameters."""
  _, *given = inspect.signature(cls.__init__).parameters.values()
  if _HPARAMS not in {p.name for p in given}:
    raise TypeError(
      f'{cls.__qualname__}.__init__ must have a parameter named {_HPARAMS}'
    )
  return [
    p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for p in given
    if p.name != _HPARAMS
  ]


def _field_arguments(
  hparams: type[BaseHyperParams],
) -> Iterator[inspect.Parameter]:
  """Yields an argument for each field but `cls`."""
  for field in dataclasses.fields(hparams):
    if field.name == 'cls':
      continue
    default = inspect.Parameter.empty
    if field.default is not dataclasses.MISSING:
      default = field.default
    elif field.default_factory is not dataclasses.MISSING:
      default = _FROM_FACTORY
    yield inspect.Parameter(
      field.name, inspect.Parameter.KEYWORD_ONLY, default=default
    )


def _maker(others: list[str]):
  """Returns the function `make` of a class.

  Args:
    others: names of the arguments that are not fields.
  """

  def make(cls, **given: Any):
    """Returns an object with these fields of `HParams`."""
    own = {name: given.pop(name) for name in others if name in given}
    own, given = (
      {name: _built(value) for name, value in values.items()}
      for values in (own, given)
    )
    given = {k: v for k, v in given.items() if v is not _FROM_FACTORY}
    return cls(cls.HParams(**given), **own)

  return make


def _built(value: Any) -> Any:
  return value.Instantiate() if isinstance(value, config_lib.Config) else value
