"""Layers that are made of other layers: in a row, side by side, with branches.

A part of such a layer is a template, of which a child is built, or a plain
function. `graph.Graph` connects parts in any other way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import tracers

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config

# A template of a layer, or a function.
Part = Config | Callable[..., Any]


def create_part(parent: base_layer.BaseLayer, name: str, part: Part):
  """Builds a part as a child of `parent`, unless it is a function.

  Args:
    parent: the layer that is in its `setup`.
    name: of the child.
    part: a template or a function.

  Raises:
    UserError: `part` is neither.
  """
  if isinstance(part, Config):
    parent.create_child(name, part)
  elif isinstance(part, nn.Module) or not callable(part):
    hint = (
      '; a module of flax goes into a DirectFlaxModuleAdapter'
      if isinstance(part, nn.Module)
      else ''
    )
    raise errors.UserError(
      f'{".".join((*parent.path, name))}: expected the config of a layer or a'
      f' function, got {part!r}{hint}'
    )


def get_part(
  parent: base_layer.BaseLayer, name: str, part: Part
) -> Callable[..., Any]:
  """Returns what `create_part` made of a part, to be called."""
  return getattr(parent, name) if isinstance(part, Config) else part


def refuse_mappings(container: base_layer.BaseLayer):
  """Raises a UserError if a container is to be split over the mesh itself."""
  for name, value in (
    ('weight_split_dims_mapping.wt', container.weight_split_dims_mapping.wt),
    (
      'activation_split_dims_mapping.out',
      container.activation_split_dims_mapping.out,
    ),
  ):
    if value is not None:
      raise errors.UserError(
        f'{type(container).__name__}.{name} is {list(value)}, but its parts'
        ' have the weights and compute the outputs; expected mappings of theirs'
      )


def as_tuple(value: Any) -> tuple[Any, ...]:
  """Returns a tuple or list as a tuple, and anything else in a tuple."""
  return tuple(value) if isinstance(value, tuple | list) else (value,)


class _Layers(base_layer.BaseLayer):
  """Base of the containers that have a list of parts.

  Attributes:
    layers: the parts. Children are called `layers_0`, `layers_1` and so on, by
      their places. The same template twice is one layer twice.
  """

  layers: Sequence[Part] = REQUIRED

  def setup(self):
    refuse_mappings(self)
    if not self.layers:
      raise errors.UserError(
        f'{type(self).__name__}.layers is empty; expected at least one'
      )
    for i, part in enumerate(self.layers):
      create_part(self, f'layers_{i}', part)

  def parts(self) -> list[Callable[..., Any]]:
    """Returns the parts in their order, to be called."""
    return [
      get_part(self, f'layers_{i}', part) for i, part in enumerate(self.layers)
    ]


class Sequential(_Layers):
  """Gives each part the output of the one before.

  Attributes:
    unpack_tuples: whether a tuple becomes the next part's positional arguments;
      else it is one argument.
    unpack_dicts: whether a dict (a NestedMap too) becomes its keyword
      arguments.
  """

  unpack_tuples: bool = True
  unpack_dicts: bool = True

  def __call__(self, *args, **kwargs) -> Any:
    """Returns the output of the last part; the arguments go to the first."""
    first, *rest = self.parts()
    outputs = first(*args, **kwargs)
    for part in rest:
      if isinstance(outputs, tuple) and self.unpack_tuples:
        outputs = part(*outputs)
      elif isinstance(outputs, dict) and self.unpack_dicts:
        outputs = part(**outputs)
      else:
        outputs = part(outputs)
    return outputs


def flat(outputs: Sequence[Any]) -> Any:
  """Returns outputs and the parts of those that are tuples, in one tuple.

  A single one is returned as it is.
  """
  parts = tuple(part for output in outputs for part in as_tuple(output))
  return parts[0] if len(parts) == 1 else parts


_MERGES = {
  'tuple': tuple,
  'flat': flat,
  'sum': sum,
  'concat': lambda outputs: jnp.concatenate(outputs, axis=-1),
}


class Parallel(_Layers):
  """Gives every part the same arguments.

  Attributes:
    merge: what becomes of the list of outputs: `tuple`, `flat` (a tuple into
      which outputs that are tuples are opened), `sum`, `concat` (along the last
      dimension), or a function of the list.
  """

  merge: str | Callable[[list], Any] = 'tuple'

  def __call__(self, *args, **kwargs) -> Any:
    """Returns the merged outputs of all parts.

    Raises:
      UserError: `merge` names nothing that is known.
    """
    merge = self.merge
    if not callable(merge):
      if merge not in _MERGES:
        raise errors.UserError(
          f'{type(self).__name__}.merge is {merge!r}; expected a function, or'
          f' one of {", ".join(_MERGES)}'
          + errors.did_you_mean(str(merge), _MERGES)
        )
      merge = _MERGES[merge]
    return merge([part(*args, **kwargs) for part in self.parts()])


class Branch(base_layer.BaseLayer):
  """A layer that also returns what some of the layers inside it compute.

  Attributes:
    body: the layer.
    fetches: the inner layers, by their paths below the body, such as
      `layers_0` or `ffn.linear`. They must not lie within a repeated or
      rematerialised layer, whose insides cannot be seen.
  """

  body: Config = REQUIRED
  fetches: Sequence[str] = ()

  def setup(self):
    refuse_mappings(self)
    self.create_child('main', self.body)

  def __call__(self, *args, **kwargs) -> tuple:
    """Returns the body's outputs, then one output for each of `fetches`.

    Raises:
      UserError: a fetched layer is not there, is called more than once, or lies
        where it cannot be seen.
    """
    depth = len(self.main.path)
    seen: dict[str, list] = {}

    def record(call, call_args, call_kwargs, context):
      output = call(*call_args, **call_kwargs)
      path = '.'.join(context.module.path[depth:])
      if path and context.method_name in ('__call__', 'fprop'):
        seen.setdefault(path, []).append((tracers.current_trace(), output))
      return output

    with nn.intercept_methods(record):
      outputs = as_tuple(self.main(*args, **kwargs))
    return outputs + tuple(self._fetched(name, seen) for name in self.fetches)

  def _fetched(self, name: str, seen: dict[str, list]) -> Any:
    if name not in seen:
      raise errors.UserError(
        f'{type(self).__name__}.fetches: the body calls no layer {name!r}'
        + errors.did_you_mean(name, seen)
      )
    here = tracers.current_trace()
    if any(trace != here for trace, _ in seen[name]):
      raise errors.UserError(
        f'{type(self).__name__}.fetches: {name!r} lies within a repeated or'
        ' rematerialised layer; expected one outside'
      )
    if len(seen[name]) > 1:
      raise errors.UserError(
        f'{type(self).__name__}.fetches: {name!r} is called'
        f' {len(seen[name])} times; expected once'
      )
    return seen[name][0][1]
