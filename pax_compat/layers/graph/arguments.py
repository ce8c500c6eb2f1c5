"""Layers without weights that select, join or reshape values.

They connect the children of `containers.Sequential`, `containers.Parallel` and
`graph.Graph`. A layer with several outputs returns a tuple.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.nested_map import NestedMap


class Apply(base_layer.BaseLayer):
  """Calls a function.

  Attributes:
    fn: the function, of arrays or structures of them.
  """

  fn: Callable[..., Any] = REQUIRED

  def __call__(self, *args) -> Any:
    """Returns `fn(*args)`."""
    return self.fn(*args)


class ApplyToEach(base_layer.BaseLayer):
  """Calls a function with each argument that is not None.

  Attributes:
    fn: the function, of one argument.
  """

  fn: Callable[[Any], Any] = REQUIRED

  def __call__(self, *args) -> Any:
    """Returns a tuple of the results, or the only result."""
    return _one_or_all(tuple(None if x is None else self.fn(x) for x in args))


class Select(base_layer.BaseLayer):
  """Returns some of its arguments.

  Attributes:
    indices: of the arguments, in the order of the outputs; None for all.
  """

  indices: Sequence[int] | None = None

  def __call__(self, *args) -> Any:
    """Returns a tuple of the arguments, or the only one.

    Raises:
      UserError: an index is out of range.
    """
    if self.indices is None:
      return _one_or_all(args)
    for i in self.indices:
      if not 0 <= i < len(args):
        raise errors.UserError(
          f'Select.indices has {i}, but there are {len(args)} arguments;'
          f' expected 0 to {len(args) - 1}'
        )
    return _one_or_all(tuple(args[i] for i in self.indices))


class MakeNestedMap(base_layer.BaseLayer):
  """Packs its arguments into a NestedMap.

  Attributes:
    keys: dotted paths of the arguments, such as `ids` or `features.audio`.
  """

  keys: Sequence[str] = REQUIRED

  def __call__(self, *args) -> NestedMap:
    """Returns the NestedMap.

    Raises:
      UserError: the number of arguments is not that of keys.
    """
    if len(args) != len(self.keys):
      raise errors.UserError(
        f'MakeNestedMap: got {len(args)} arguments; expected'
        f' {", ".join(self.keys)}'
      )
    result = NestedMap()
    for key, value in zip(self.keys, args, strict=True):
      *parents, last = key.split('.')
      node = result
      for name in parents:
        node = node.setdefault(name, NestedMap())
      node[last] = value
    return result


class Reshape(base_layer.BaseLayer):
  """Reshapes arrays.

  Attributes:
    shape: the new shape; one dimension may be -1, to be inferred.
  """

  shape: Sequence[int] = REQUIRED

  def __call__(self, inputs: Any) -> Any:
    """Returns the array, or each array of a structure, reshaped."""
    return jax.tree.map(lambda x: jnp.reshape(x, self.shape), inputs)


class Concat(base_layer.BaseLayer):
  """Concatenates arrays.

  Attributes:
    axis: the dimension to concatenate.
  """

  axis: int = REQUIRED

  def __call__(self, *args: jax.Array) -> jax.Array:
    """Returns the concatenated arguments."""
    return jnp.concatenate(args, axis=self.axis)


class Slice(base_layer.BaseLayer):
  """Slices arrays.

  Attributes:
    key: per dimension, an index, or the start, stop and step of a slice.
  """

  key: Sequence[int | tuple] = REQUIRED

  def __call__(self, inputs: Any) -> Any:
    """Returns the slice of the array, or of each array of a structure."""
    key = tuple(
      slice(*k) if isinstance(k, tuple | list) else k for k in self.key
    )
    return jax.tree.map(lambda x: x[key], inputs)


class LogShapes(base_layer.BaseLayer):
  """Returns its arguments, and logs their shapes during tracing."""

  def __call__(self, *args) -> Any:
    """Returns a tuple of the arguments, or the only one."""
    for i, arg in enumerate(args):
      shapes = jax.tree.map(lambda x: f'{x.dtype}{list(x.shape)}', arg)
      logging.info('%s: argument %d is %s', '.'.join(self.path), i, shapes)
    return _one_or_all(args)


def _one_or_all(outputs: tuple) -> Any:
  return outputs[0] if len(outputs) == 1 else outputs
