"""Containers of layers: sequential, parallel, with branches.

Their components are templates, from which children are built, or plain
functions. `graph.Graph` connects components arbitrarily.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import tracers

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.template_fields import refuse_mappings

# A template of a layer, or a function.
Component = Config | Callable[..., Any]


def create_component(
  parent: base_layer.BaseLayer, name: str, component: Component
):
  """Builds a component as a child of `parent`, unless it is a function.

  Args:
    parent: the layer, called from its `setup`.
    name: of the child.
    component: a template or a function.

  Raises:
    UserError: `component` is neither.
  """
  if isinstance(component, Config):
    parent.create_child(name, component)
  elif isinstance(component, nn.Module) or not callable(component):
    hint = (
      '; wrap a flax module in a DirectFlaxModuleAdapter'
      if isinstance(component, nn.Module)
      else ''
    )
    raise errors.UserError(
      f'{".".join((*parent.path, name))}: expected the config of a layer or a'
      f' function, got {component!r}{hint}'
    )


def get_component(
  parent: base_layer.BaseLayer, name: str, component: Component
) -> Callable[..., Any]:
  """Returns the child of a template, or the function itself."""
  return getattr(parent, name) if isinstance(component, Config) else component


def as_tuple(value: Any) -> tuple[Any, ...]:
  """Converts a list to a tuple; wraps anything but a tuple in a tuple."""
  return tuple(value) if isinstance(value, tuple | list) else (value,)


class _Layers(base_layer.BaseLayer):
  """Base of the containers with a list of components.

  Attributes:
    layers: the components. Child i is named `layers_<i>`. The same template
      object twice is one layer, called twice.
  """

  layers: Sequence[Component] = REQUIRED

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    if not self.layers:
      raise errors.UserError(
        f'{type(self).__name__}.layers is empty; expected at least one'
      )
    for i, component in enumerate(self.layers):
      create_component(self, f'layers_{i}', component)

  def components(self) -> list[Callable[..., Any]]:
    """Returns the layers and functions in order."""
    return [
      get_component(self, f'layers_{i}', component)
      for i, component in enumerate(self.layers)
    ]


class Sequential(_Layers):
  """Applies components in sequence.

  Attributes:
    unpack_tuples: whether a tuple is unpacked into the next component's
      positional arguments; else it is one argument.
    unpack_dicts: whether a dict (or NestedMap) is unpacked into its keyword
      arguments.
  """

  unpack_tuples: bool = True
  unpack_dicts: bool = True

  def __call__(self, *args, **kwargs) -> Any:
    """Returns the last component's output; the first takes the arguments."""
    first, *rest = self.components()
    outputs = first(*args, **kwargs)
    for component in rest:
      if isinstance(outputs, tuple) and self.unpack_tuples:
        outputs = component(*outputs)
      elif isinstance(outputs, dict) and self.unpack_dicts:
        outputs = component(**outputs)
      else:
        outputs = component(outputs)
    return outputs


def flat(outputs: Sequence[Any]) -> Any:
  """Flattens a list of outputs and tuples of outputs.

  Returns:
    A tuple, or the only output.
  """
  flattened = tuple(x for output in outputs for x in as_tuple(output))
  return flattened[0] if len(flattened) == 1 else flattened


_MERGES = {
  'tuple': tuple,
  'flat': flat,
  'sum': sum,
  'concat': lambda outputs: jnp.concatenate(outputs, axis=-1),
}


class Parallel(_Layers):
  """Applies all components to the same arguments.

  Attributes:
    merge: how the list of outputs is merged: `tuple`, `flat` (a tuple in which
      nested tuples are flattened), `sum`, `concat` (along the last dimension),
      or a function of the list.
  """

  merge: str | Callable[[list], Any] = 'tuple'

  def __call__(self, *args, **kwargs) -> Any:
    """Returns the merged outputs of all components.

    Raises:
      UserError: `merge` is an unknown name.
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
    return merge(
      [component(*args, **kwargs) for component in self.components()]
    )


class Branch(base_layer.BaseLayer):
  """A layer that also returns outputs of layers inside it.

  Attributes:
    body: the layer.
    fetches: paths of inner layers relative to the body, such as `layers_0` or
      `ffn.linear`. They must not be inside a repeated or rematerialised layer,
      whose intermediate values are not accessible.
  """

  body: Config = REQUIRED
  fetches: Sequence[str] = ()

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self.create_child('main', self.body)

  def __call__(self, *args, **kwargs) -> tuple:
    """Returns the body's outputs, then one output for each of `fetches`.

    Raises:
      UserError: a fetched layer does not exist, is called more than once, or is
        inside a repeated or rematerialised layer.
    """
    depth = len(self.main.path)
    recorded: dict[str, list] = {}

    def record(call, call_args, call_kwargs, context):
      output = call(*call_args, **call_kwargs)
      path = '.'.join(context.module.path[depth:])
      if path and context.method_name in ('__call__', 'fprop'):
        recorded.setdefault(path, []).append((tracers.current_trace(), output))
      return output

    with nn.intercept_methods(record):
      outputs = as_tuple(self.main(*args, **kwargs))
    return outputs + tuple(
      self._fetched(name, recorded) for name in self.fetches
    )

  def _fetched(self, name: str, recorded: dict[str, list]) -> Any:
    if name not in recorded:
      raise errors.UserError(
        f'{type(self).__name__}.fetches: the body calls no layer {name!r}'
        + errors.did_you_mean(name, recorded)
      )
    current = tracers.current_trace()
    if any(trace != current for trace, _ in recorded[name]):
      raise errors.UserError(
        f'{type(self).__name__}.fetches: {name!r} is inside a repeated or'
        ' rematerialised layer; expected one outside'
      )
    if len(recorded[name]) > 1:
      raise errors.UserError(
        f'{type(self).__name__}.fetches: {name!r} is called'
        f' {len(recorded[name])} times; expected once'
      )
    return recorded[name][0][1]
