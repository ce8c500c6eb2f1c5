"""What a parent says about its child, beside what the child's template says.

A parent works out its children's dimensions and hands them rates and flags of
its own. What it leaves open stays as the template has it; where both speak,
they have to agree, so that no setting is lost.
"""

import copy
from typing import Any

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, field_names, set_fields


def agreed(where: str, tpl: Config, **fields) -> dict[str, Any]:
  """Returns the fields for `create_child` that a parent wants to set.

  Args:
    where: the parent's class and the name of its field that holds `tpl`.
    tpl: the child's template.
    **fields: what the parent says; None leaves a field to the template.

  Raises:
    UserError: the template sets one of the fields to something else.
  """
  said = {name: value for name, value in fields.items() if value is not None}
  set_before = set_fields(tpl)
  for name, value in said.items():
    own = set_before.get(name, REQUIRED)
    if own is not REQUIRED and own is not None and own != value:
      raise errors.UserError(
        f'{where}.{name} is {own!r}, but the layer that it belongs to makes it'
        f' {value!r}; set one of the two only'
      )
  return said


def keep_prob(drop_prob: float | None) -> float | None:
  """Returns what a dropout's `keep_prob` is, or None if nothing is dropped."""
  return 1.0 - drop_prob if drop_prob else None


def split(tpl: Config, field: str, **mappings) -> dict[str, Config]:
  """Returns the field for `create_child` that says how a child is split.

  Args:
    tpl: the child's template.
    field: 'weight_split_dims_mapping' or 'activation_split_dims_mapping'.
    **mappings: the split mappings by name; None leaves one to the template.
  """
  said = {name: value for name, value in mappings.items() if value is not None}
  return {field: copy.copy(getattr(tpl, field)).set(**said)} if said else {}


def refuse_mappings(layer: base_layer.BaseLayer, *names: str):
  """Refuses split mappings that every layer has, but this one has no use for.

  Args:
    layer: a layer whose weights, or outputs, are those of its parts.
    *names: 'wt', 'out' or both.

  Raises:
    UserError: one of them is set.
  """
  for name in names:
    kind = {'wt': 'weight', 'out': 'activation'}[name]
    mappings = getattr(layer, f'{kind}_split_dims_mapping')
    if getattr(mappings, name) is None:
      continue
    own = ' or '.join(x for x in field_names(mappings) if x != name)
    raise errors.UserError(
      f'{type(layer).__name__}.{kind}_split_dims_mapping.{name} is set, but'
      f' splits nothing; expected {own or "that of the layers inside"}'
    )
