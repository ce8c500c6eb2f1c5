"""A chain of layers that treats its arguments as a stack.

Each layer takes as many of the first arguments as it requires; its outputs
replace the first ones. The rest is passed on.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config


class Chain(base_layer.BaseLayer):
  """Applies layers in sequence, with a stack of arguments.

  Attributes:
    layers: their templates; None is skipped. A child has the name of its
      template, or else `layers_<i>`; so has a template with the name `layers`.
  """

  layers: Sequence[Config | None] = REQUIRED

  def setup(self):
    for name, tpl in self._named():
      self.create_child(name, tpl)

  def _named(self) -> list[tuple[str, Config]]:
    layers = [tpl for tpl in self.layers if tpl is not None]
    named = [
      # The attribute `layers` has the templates.
      (f'layers_{i}' if tpl.name in (None, '', 'layers') else tpl.name, tpl)
      for i, tpl in enumerate(layers)
    ]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
      raise errors.UserError(
        f'Chain.layers have the names {names}; expected different ones, as'
        ' chain() gives them'
      )
    return named

  def __call__(self, *args, **kwargs) -> Any:
    """Returns the stack after the last layer: one value, or a tuple.

    Args:
      *args: the stack.
      **kwargs: each is passed to the layers that have such an argument.
    """
    return self.call_chain(*args, **kwargs)[-1]

  def call_chain(self, *args, **kwargs) -> Sequence[Any]:
    """Returns the stacks after each of the layers."""
    layers = [getattr(self, name) for name, _ in self._named()]
    return call_chain(layers, *args, **kwargs)


def call_chain(
  layers: Sequence[Callable[..., Any] | None], *args, **kwargs
) -> list[Any]:
  """Calls layers in sequence; see `Chain`.

  Returns:
    The stacks after each layer; without layers, the arguments.
  """
  stacks, stack = [], args
  for layer in layers:
    if layer is not None:
      stack = as_stack(_call(layer, *stack, **kwargs))
      stacks.append(_unpacked(stack))
  return stacks or [_unpacked(args)]


def _call(layer: Callable[..., Any], *args, **kwargs) -> Any:
  """Returns the stack after a layer."""
  parameters = inspect.signature(layer.__call__).parameters
  count, takes_all = 0, False
  for name, parameter in parameters.items():
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
      takes_all = True
    if takes_all or name in kwargs or parameter.default is not parameter.empty:
      break
    count += 1
  if count > len(args):
    raise errors.UserError(
      f'{getattr(layer, "name", None) or type(layer).__name__} requires'
      f' {count} arguments, but the chain has {len(args)}'
    )
  if takes_all:
    outputs = layer(*args, **kwargs)
  else:
    own = {k: v for k, v in kwargs.items() if k in parameters}
    outputs = layer(*args[:count], **own)
  outputs = () if outputs is None else as_stack(outputs)
  return (*outputs, *args[len(outputs) :])


def as_stack(value: Any) -> tuple[Any, ...]:
  """Returns a tuple as it is, anything else as its only element."""
  return value if isinstance(value, tuple) else (value,)


def _unpacked(stack: tuple[Any, ...]) -> Any:
  return stack[0] if len(stack) == 1 else stack
