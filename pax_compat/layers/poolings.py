"""Pooling layers.

Shapes: B batch, T time, H height, W width, D channels. In spectrograms H is
time and W is frequency.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.layers.paddings import apply_paddings, expand_paddings

_TYPES = ('MAX', 'AVG')
_PADDINGS = ('SAME', 'VALID')


def _check_choice(layer: base_layer.BaseLayer, field: str, choices):
  value = getattr(layer, field)
  if value not in choices:
    raise errors.UserError(
      f'{type(layer).__name__}.{field} is {value!r}; expected one of'
      f' {", ".join(choices)}'
    )


def _lowest(dtype) -> np.generic:
  """Returns the identity of the maximum for a dtype."""
  if jnp.issubdtype(dtype, jnp.inexact):
    return np.array(-np.inf, dtype)
  if jnp.issubdtype(dtype, jnp.integer):
    return np.array(jnp.iinfo(dtype).min, dtype)
  raise errors.UserError(
    f'pooling of {jnp.dtype(dtype)}; expected a numeric dtype'
  )


def _pool(
  inputs: jax.Array,
  paddings: jax.Array | None,
  *,
  pooling_type: str,
  window: Sequence[int],
  strides: Sequence[int],
  padding: str,
) -> jax.Array:
  """Returns maxima or means over windows, without padded positions.

  Args:
    inputs: [B, ...].
    paddings: leading dimensions of `inputs`, or None.
    pooling_type: 'MAX' or 'AVG'.
    window: window size for each dimension of `inputs`.
    strides: stride for each dimension of `inputs`.
    padding: 'SAME' or 'VALID'.
  """
  how = tuple(window), tuple(strides), padding
  if pooling_type == 'MAX':
    lowest = _lowest(inputs.dtype)
    if paddings is not None:
      inputs = apply_paddings(inputs, paddings, lowest)
    return jax.lax.reduce_window(inputs, lowest, jax.lax.max, *how)
  x, valid = inputs.astype(jnp.float32), jnp.ones([1] * inputs.ndim)
  if paddings is not None:
    x = apply_paddings(x, paddings)
    valid = (expand_paddings(paddings, x) <= 0).astype(jnp.float32)
  # A window at the border averages only the positions inside the input.
  sizes = zip(x.shape, valid.shape, window, strides, strict=True)
  valid = jnp.broadcast_to(
    valid, [own if w == s == 1 else whole for whole, own, w, s in sizes]
  )
  total = jax.lax.reduce_window(x, 0.0, jax.lax.add, *how)
  count = jax.lax.reduce_window(valid, 0.0, jax.lax.add, *how)
  return _in_dtype_of(inputs, total / jnp.maximum(count, 1.0))


def _in_dtype_of(inputs: jax.Array, means: jax.Array) -> jax.Array:
  """Returns means in the dtype of the inputs, unless that is an integer."""
  floating = jnp.issubdtype(inputs.dtype, jnp.inexact)
  return means.astype(inputs.dtype) if floating else means


class Pooling(base_layer.BaseLayer):
  """Maxima or means over windows of [B, H, W, D].

  Attributes:
    window_shape: height and width of the windows.
    window_stride: stride in height and width.
    pooling_type: 'MAX' or 'AVG'.
    padding: 'SAME' has an output for each stride of the input; 'VALID' uses
      only windows inside the input.
  """

  window_shape: Sequence[int] = REQUIRED
  window_stride: Sequence[int] = REQUIRED
  pooling_type: str = 'MAX'
  padding: str = 'SAME'

  def setup(self):
    for field in ('window_shape', 'window_stride'):
      sizes = getattr(self, field)
      if len(sizes) != 2 or any(size < 1 for size in sizes):
        raise errors.UserError(
          f'Pooling.{field} is {list(sizes)}; expected a height and a width of'
          ' at least 1'
        )
    _check_choice(self, 'pooling_type', _TYPES)
    _check_choice(self, 'padding', _PADDINGS)

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array | None]:
    """Pools.

    Args:
      inputs: [B, H, W, D].
      paddings: [B, H], where H is time, or None.

    Returns:
      The outputs [B, H', W', D] and their paddings [B, H'] (None if there were
      none). With a stride in time, or 'VALID', an output is padded if any
      position of its window is. Padded outputs are 0.
    """
    outputs = _pool(
      inputs,
      paddings,
      pooling_type=self.pooling_type,
      window=[1, *self.window_shape, 1],
      strides=[1, *self.window_stride, 1],
      padding=self.padding,
    )
    if paddings is not None:
      paddings = self._output_paddings(paddings)
      outputs = apply_paddings(outputs, paddings)
    outputs = self.shard(outputs, self.activation_split_dims_mapping.out)
    return outputs, paddings

  def _output_paddings(self, paddings: jax.Array) -> jax.Array:
    if self.window_stride[0] == 1 and self.padding == 'SAME':
      return paddings
    return _pool(
      paddings,
      None,
      pooling_type='MAX',
      window=[1, self.window_shape[0]],
      strides=[1, self.window_stride[0]],
      padding=self.padding,
    )


class GlobalPooling(base_layer.BaseLayer):
  """Maximum or mean over whole dimensions.

  Attributes:
    pooling_type: 'MAX' or 'AVG'.
    pooling_dims: the dimensions to reduce, counted from 0.
    keepdims: whether to keep them with size 1.
  """

  pooling_type: str = 'AVG'
  pooling_dims: Sequence[int] = REQUIRED
  keepdims: bool = False

  def setup(self):
    _check_choice(self, 'pooling_type', _TYPES)

  def __call__(
    self,
    inputs: jax.Array,
    epsilon: float = 1e-8,
    compatible_paddings: jax.Array | None = None,
  ) -> jax.Array:
    """Returns `inputs` [...] without the pooled dimensions.

    Args:
      inputs: [...].
      epsilon: added to the denominator of a mean.
      compatible_paddings: leading dimensions of `inputs`, optionally followed
        by dimensions of size 1. If everything is padded, the result is 0.

    Raises:
      UserError: the inputs do not have the dimensions.
    """
    dims = tuple(self.pooling_dims)
    if not all(0 <= dim < inputs.ndim for dim in dims):
      raise errors.UserError(
        f'GlobalPooling.pooling_dims is {list(dims)}; expected dimensions of'
        f' inputs of shape {list(inputs.shape)}, counted from 0'
      )
    paddings = compatible_paddings
    if paddings is None:
      paddings = jnp.zeros([1] * inputs.ndim)
    valid = expand_paddings(paddings, inputs) <= 0
    if self.pooling_type == 'MAX':
      lowest = jnp.asarray(_lowest(inputs.dtype))
      outputs = jnp.max(jnp.where(valid, inputs, lowest), dims, keepdims=True)
      outputs = jnp.where(jnp.any(valid, dims, keepdims=True), outputs, 0)
    else:
      x = jnp.where(valid, inputs, 0).astype(jnp.float32)
      each = math.prod(inputs.shape[d] for d in dims if valid.shape[d] == 1)
      count = each * jnp.sum(valid, dims, keepdims=True, dtype=jnp.float32)
      means = jnp.sum(x, dims, keepdims=True) / (count + epsilon)
      outputs = _in_dtype_of(inputs, means)
    outputs = outputs if self.keepdims else jnp.squeeze(outputs, dims)
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class Pooling1D(base_layer.BaseLayer):
  """Maxima or means over windows in time of [B, T, ...].

  Attributes:
    stride: stride of the windows.
    window: length of the windows; 0 takes `stride`.
    pooling_type: 'MAX' or 'AVG'.
  """

  stride: int = 1
  window: int = 0
  pooling_type: str = 'AVG'

  def setup(self):
    if self.stride < 1 or self.window < 0:
      raise errors.UserError(
        f'Pooling1D: stride is {self.stride} and window {self.window}; expected'
        ' at least 1, and at least 0'
      )
    _check_choice(self, 'pooling_type', _TYPES)

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array | None]:
    """Pools.

    Args:
      inputs: [B, T, ...].
      paddings: [B, T], or None.

    Returns:
      The outputs [B, ceil(T / stride), ...] and their paddings (None if there
      were none): those of every stride-th position. As in Pax, a padded output
      is the mean of what its window has, and 0 for 'MAX'.
    """
    others = [1] * (inputs.ndim - 2)
    outputs = _pool(
      inputs,
      paddings,
      pooling_type=self.pooling_type,
      window=[1, self.window or self.stride, *others],
      strides=[1, self.stride, *others],
      padding='SAME',
    )
    if paddings is not None:
      paddings = paddings[:, :: self.stride]
      if self.pooling_type == 'MAX':
        outputs = apply_paddings(outputs, paddings)
    outputs = self.shard(outputs, self.activation_split_dims_mapping.out)
    return outputs, paddings
