"""Fields that a parent sets on its children's templates.

A parent computes its children's dimensions and passes on its own rates and
flags. A field that it leaves at None stays as in the template; if both set a
field, the values must be equal, so that no setting is lost:

  >>> from pax_compat.layers import linears
  >>> tpl = linears.Linear.config(input_dims=8)
  >>> agreed('MyLayer.linear_tpl', tpl, input_dims=8, output_dims=4)
  {'input_dims': 8, 'output_dims': 4}
  >>> agreed('MyLayer.linear_tpl', tpl, input_dims=None, output_dims=4)
  {'output_dims': 4}
"""

import copy
from typing import Any

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, field_names, set_fields


def agreed(where: str, tpl: Config, **fields) -> dict[str, Any]:
  """Returns the fields for `create_child` that a parent sets.

  Args:
    where: the parent's class and the name of its field that contains `tpl`.
    tpl: the child's template.
    **fields: the parent's values; None leaves a field to the template.

  Raises:
    UserError: the template sets one of the fields to another value.
  """
  values = {name: value for name, value in fields.items() if value is not None}
  set_before = set_fields(tpl)
  for name, value in values.items():
    own = set_before.get(name, REQUIRED)
    if own is not REQUIRED and own is not None and own != value:
      raise errors.UserError(
        f'{where}.{name} is {own!r}, but its parent layer sets it to'
        f' {value!r}; set only one of the two'
      )
  return values


def create_agreed(layer: base_layer.BaseLayer, name: str, field: str, **fields):
  """Creates a child from a template, with fields that its parent sets.

  Args:
    layer: the parent.
    name: of the child.
    field: the parent's field that contains the template.
    **fields: see `agreed`.

  Raises:
    UserError: see `agreed`.
  """
  tpl = getattr(layer, field)
  where = f'{type(layer).__name__}.{field}'
  layer.create_child(name, tpl, **agreed(where, tpl, **fields))


def keep_prob(drop_prob: float | None) -> float | None:
  """Returns the `keep_prob` of a dropout, or None if nothing is dropped."""
  return 1.0 - drop_prob if drop_prob else None


def split(tpl: Config, field: str, **mappings) -> dict[str, Config]:
  """Returns the sharding field of a child, for `create_child`.

  Args:
    tpl: the child's template.
    field: 'weight_split_dims_mapping' or 'activation_split_dims_mapping'.
    **mappings: split mappings by name; None leaves one to the template.
  """
  values = {
    name: value for name, value in mappings.items() if value is not None
  }
  return {field: copy.copy(getattr(tpl, field)).set(**values)} if values else {}


def refuse_mappings(layer: base_layer.BaseLayer, *names: str):
  """Refuses split mappings that a layer inherits but does not use.

  Args:
    layer: a layer whose weights, or outputs, are those of its children.
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
      f' has no effect; expected {own or "that of the layers inside"}'
    )
