"""Sets a field in all inputs whose class has it."""

from typing import Any

import fiddle as fdl
from fiddle import daglish

from pax_compat import config as config_lib


def set_in(config: config_lib.Config, field: str, value: Any) -> int:
  """Sets a field in the config of an input and in nested ones.

  Args:
    config: the config; nested ones are, for example, those of a `MultiInput`.
    field: name of the field.
    value: its value.

  Returns:
    The number of configs that have the field.
  """
  found = [
    nested
    for nested, _ in daglish.iterate(config)
    if isinstance(nested, fdl.Config)
    and field in config_lib.field_names(nested)
  ]
  for nested in found:
    setattr(nested, field, value)
  return len(found)
