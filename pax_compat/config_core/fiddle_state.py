"""Reads what a Fiddle config holds: its class, its fields and their values.

Fiddle keeps the state of a config in dunder attributes. Only these functions
and `Config` itself use them.
"""

import collections
import copy
import inspect
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

# Fields that flax.linen adds to every module. They are not hyperparameters, but
# may be set.
HIDDEN_FIELDS = ('parent',)
# Types of values that hold no configs, and that copies share.
ATOMIC = frozenset({bool, int, float, str, type, type(None)})


def class_name(config: fdl.Buildable) -> str:
  """Returns the unqualified name of the class that `config` builds."""
  return fdl.get_callable(config).__qualname__


def field_names(config: fdl.Buildable) -> list[str]:
  """Returns the names of a config's fields in the order of declaration.

  Of a function with `**kwargs`, those that were set follow.
  """
  declared = parameters(config)
  names = [
    name
    for name, parameter in declared.items()
    if name not in HIDDEN_FIELDS and parameter.kind not in _ANY_NAME
  ]
  return names + [name for name in set_fields(config) if name not in declared]


def field_values(config: fdl.Buildable) -> dict[str, Any]:
  """Returns a config's fields with their values, set or default."""
  defaults = {
    name: parameter.default
    for name, parameter in parameters(config).items()
    if parameter.default is not parameter.empty
  }
  values = {**defaults, **set_fields(config)}
  return {n: values[n] for n in field_names(config) if n in values}


def set_fields(config: fdl.Buildable) -> dict[str, Any]:
  """Returns the fields of a config that were set, with their values.

  A field with a default factory counts as set, because each config gets its own
  value at the start. Changing the returned dict does not change the config.
  """
  arguments = config.__arguments__
  return {n: v for n, v in arguments.items() if n not in HIDDEN_FIELDS}


def hidden_fields(config: fdl.Buildable) -> dict[str, Any]:
  """Returns the fields that were set and are not hyperparameters."""
  arguments = config.__arguments__
  return {n: v for n, v in arguments.items() if n in HIDDEN_FIELDS}


def is_set(config: fdl.Buildable, field: str) -> bool:
  """Returns whether a field of a config was set; see `set_fields`."""
  return field in config.__arguments__


# Kinds of the parameters `*args` and `**kwargs`.
_ANY_NAME = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def takes_any_name(config: fdl.Buildable) -> bool:
  """Whether a function has `**kwargs`."""
  kinds = [p.kind for p in parameters(config).values()]
  return inspect.Parameter.VAR_KEYWORD in kinds


def parameters(config: fdl.Buildable) -> Mapping[str, inspect.Parameter]:
  """Returns the parameters of the class or function of a config, by name."""
  return config.__signature_info__.parameters


def copied_state(config: fdl.Buildable, memo: dict[int, Any]) -> dict[str, Any]:
  """Returns the attributes of a deep copy of a config.

  Args:
    config: the config.
    memo: of `copy.deepcopy`.
  """
  history, tags = config.__argument_history__, config.__argument_tags__
  return {
    **vars(config),
    '__arguments__': {
      k: v if type(v) in ATOMIC else copy.deepcopy(v, memo)
      for k, v in config.__arguments__.items()
    },
    '__argument_history__': type(history)(
      {k: [*v] for k, v in history.items()}
    ),
    '__argument_tags__': collections.defaultdict(
      set, {k: {*v} for k, v in tags.items()}
    ),
  }
