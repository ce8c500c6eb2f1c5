"""Rounding of arrays as a layer, for quantization-aware training (AQT)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config
from pax_compat.layers.quantization import rounding
from pax_compat.layers.quantization.quantization_hparams import (
  ActQuantizationParams,
  WeightQuantizationParams,
)


class TensorQuantizer(base_layer.BaseLayer):
  """Rounds an array to few bits, with the gradient of a copy.

  Attributes:
    precision: number of bits, at most 23; None does not round.
    stop_scale_gradient: whether scales have no gradient.
    min_clipping: the smallest factor on the bound that is tried; None tries
      none.
    num_optimize_clipping: how many factors are tried, from 1 down.
    clipping_coeff: a fixed factor on the bound; None for 1.
    add_scale_eps: whether the precision of the dtype is added to scales; else
      those of 0 become 1.
    unsigned_int_bounds: whether integers begin at 0.
    use_symmetric: whether zero is the integer 0; else there are zero points.
    quant_loss_weight: weight of the mean squared error of rounding as auxiliary
      loss; None for none.
    kurt_loss_weight: likewise of the squared difference of the kurtosis from
      `kurt`.
    kurt: the wanted kurtosis; 1.8 is that of a uniform distribution.
    optimize_clipping_per_channel: whether each scale has a factor of its own.
    sub_channels: number of blocks of a dimension with a scale for each, see
      `operations.aqt_einsum`.
  """

  precision: int | None = None
  stop_scale_gradient: bool = False
  min_clipping: float | None = None
  num_optimize_clipping: int | None = None
  clipping_coeff: float | None = None
  add_scale_eps: bool | None = True
  unsigned_int_bounds: bool = False
  use_symmetric: bool = True
  quant_loss_weight: float | None = None
  kurt_loss_weight: float | None = None
  kurt: float = 1.8
  optimize_clipping_per_channel: bool = False
  sub_channels: int | None = None

  def setup(self):
    if self.precision is not None and not 1 <= self.precision <= 23:
      raise errors.UserError(
        f'TensorQuantizer.precision is {self.precision}; expected 1 to 23'
      )
    tries = (self.min_clipping, self.num_optimize_clipping)
    if (tries[0] is None) != (tries[1] is None):
      raise errors.UserError(
        f'min_clipping is {tries[0]} and num_optimize_clipping {tries[1]};'
        ' expected both or neither'
      )
    if tries[0] is None and self.optimize_clipping_per_channel:
      raise errors.UserError(
        'optimize_clipping_per_channel needs min_clipping and'
        ' num_optimize_clipping'
      )
    if tries[0] is not None and (
      not 0 < tries[0] < 1 or tries[1] <= 0 or self.clipping_coeff is not None
    ):
      raise errors.UserError(
        f'min_clipping is {tries[0]}, num_optimize_clipping {tries[1]} and'
        f' clipping_coeff {self.clipping_coeff}; expected a number between 0'
        ' and 1, a positive one, and None'
      )
    if self.clipping_coeff is not None and not 0 <= self.clipping_coeff <= 1:
      raise errors.UserError(
        f'clipping_coeff is {self.clipping_coeff}; expected 0 to 1'
      )

  def __call__(self):
    """Does nothing; the methods are called."""

  def get_quant_scale(
    self, x: jax.Array, contract_dims: int | Sequence[int] | None
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the scales of an array, and its smallest values.

    Args:
      x: the array.
      contract_dims: dimensions that share a scale; None for one scale.

    Returns:
      Both of the shape of `x` with `contract_dims` of size 1; the second is
      None if `use_symmetric`.
    """
    axis = _axis(contract_dims)
    if self.min_clipping is None:
      return self._scale_and_smallest(x, axis, self.clipping_coeff)

    def tried(factor):
      scale, smallest = self._scale_and_smallest(x, axis, factor)
      values, zero = self._scaled(x, scale, smallest)
      rounded = self.dequantize(self.to_quant(values), scale, axis, zero)
      per_channel = self.optimize_clipping_per_channel
      error = jnp.sum(
        jnp.abs(x - rounded),
        axis=axis if per_channel else None,
        keepdims=True,
      )
      return error, scale, smallest

    factors = jnp.linspace(
      1.0, self.min_clipping, self.num_optimize_clipping, dtype=x.dtype
    )
    found, *tries = jax.vmap(tried)(factors)
    best = jnp.argmin(found, axis=0)[None]
    scale, smallest = (
      None if values is None else _taken(values, best) for values in tries
    )
    return scale, smallest

  def _scale_and_smallest(self, x, axis, factor):
    if self.precision is None:
      return jnp.ones([1] * x.ndim, x.dtype), None
    low, high = rounding.get_min_max(self.precision, self.unsigned_int_bounds)
    bound, smallest = rounding.bounds(x, axis, use_symmetric=self.use_symmetric)
    steps = high if self.use_symmetric else high - low
    if factor is not None:
      bound = bound * factor
      smallest = None if smallest is None else smallest * factor
    scale = bound / steps
    if self.stop_scale_gradient:
      scale = jax.lax.stop_gradient(scale)
    epsilon = -1.0 if self.add_scale_eps else None
    return rounding.nonzero_scale(scale, x.dtype, epsilon), smallest

  def update(self, x: jax.Array):
    """Does nothing: statistics of inputs are not kept."""

  def to_quant(self, x: jax.Array) -> jax.Array:
    """Returns numbers that were divided by their scale as integers."""
    if self.precision is None:
      return x
    low, high = rounding.get_min_max(self.precision, self.unsigned_int_bounds)
    return jnp.clip(rounding.pass_through(x + 0.5, jnp.floor), low, high)

  def dequantize(
    self,
    q_x: jax.Array,
    q_scale: jax.Array,
    contract_dims: int | Sequence[int] | None,
    zp_time_scale: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the numbers that integers stand for.

    Args:
      q_x: the integers.
      q_scale: their scales.
      contract_dims: see `quantize`; not used.
      zp_time_scale: zero points times scales; None if symmetric.

    Raises:
      UserError: there are zero points if and only if `use_symmetric`.
    """
    del contract_dims
    if self.use_symmetric != (zp_time_scale is None):
      raise errors.UserError(
        'expected zero points if and only if use_symmetric is False'
      )
    if zp_time_scale is None:
      return q_x * q_scale
    return q_x * q_scale - zp_time_scale

  def _scaled(self, x, scale, smallest):
    """Returns what is rounded, and zero points times scales."""
    if smallest is None:
      return x / scale, None
    low, _ = rounding.get_min_max(self.precision, self.unsigned_int_bounds)
    zero = low - smallest / scale
    return x / scale + zero, scale * zero

  def quantize(
    self,
    x: jax.Array,
    contract_dims: int | Sequence[int] | None,
    squeeze_scale: bool = True,
    quantized_dtype: Any = None,
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Rounds an array to integers.

    Args:
      x: the array.
      contract_dims: dimensions that share a scale; None for one scale.
      squeeze_scale: whether scales and zero points lack these dimensions.
      quantized_dtype: dtype of the integers; None keeps that of `x`. With
        `int8` no auxiliary losses are added.

    Returns:
      The integers, the scales, and the zero points times scales (None if
      symmetric).
    """
    axis = _axis(contract_dims)
    scale, smallest = self.get_quant_scale(x, axis)
    values, zero = self._scaled(x, scale, smallest)
    values = self.to_quant(values)
    if quantized_dtype != jnp.int8 and not self.do_eval:
      self._add_losses(x, self.dequantize(values, scale, axis, zero), axis)
    if squeeze_scale:
      axis = None if self.precision is None else axis
      scale = jnp.squeeze(scale, axis)
      zero = None if zero is None else jnp.squeeze(zero, axis)
    if quantized_dtype is not None:
      values = values.astype(quantized_dtype)
    return values, scale, zero

  def _add_losses(self, x: jax.Array, rounded: jax.Array, axis):
    if self.quant_loss_weight is not None:
      loss = jnp.mean(jnp.square(x - rounded)) * self.quant_loss_weight
      self.add_summary('quant_loss', loss)
      self.add_aux_loss('quant_loss', loss)
    if self.kurt_loss_weight is not None:
      deviation = jnp.std(x, axis=axis, keepdims=True)
      deviation = rounding.nonzero_scale(deviation, x.dtype, None)
      mean = jnp.mean(x, axis=axis, keepdims=True)
      kurtosis = jnp.mean(((x - mean) / deviation) ** 4.0, axis=axis)
      loss = jnp.mean(jnp.square(kurtosis - self.kurt)) * self.kurt_loss_weight
      self.add_summary('kurt_loss', loss)
      self.add_aux_loss('kurt_loss', loss)


def _axis(dims: int | Sequence[int] | None):
  return dims if dims is None or isinstance(dims, int) else tuple(dims)


def _taken(values: jax.Array, best: jax.Array) -> jax.Array:
  """Returns what `values` [tries, ...] have at `best` [1, ...]."""
  best = jnp.broadcast_to(best, (1, *values.shape[1:]))
  return jnp.take_along_axis(values, best, axis=0)[0]


def create_tensor_quantizer(
  name: str,
  quant_params: ActQuantizationParams | WeightQuantizationParams | None,
) -> Config:
  """Returns the template of the quantizer of inputs or of a weight.

  Args:
    name: its name.
    quant_params: the settings; None does not round.
  """
  if quant_params is None:
    return TensorQuantizer.config(name=name)
  cls = quant_params.override_quantizer_cls or TensorQuantizer
  tpl = cls.config(
    name=name,
    precision=quant_params.precision,
    stop_scale_gradient=quant_params.stop_scale_gradient,
    unsigned_int_bounds=quant_params.unsigned_int_bounds,
  )
  if isinstance(quant_params, ActQuantizationParams):
    return tpl.set(use_symmetric=quant_params.symmetric)
  for field in (
    'min_clipping',
    'num_optimize_clipping',
    'add_scale_eps',
    'use_symmetric',
    'quant_loss_weight',
    'kurt_loss_weight',
    'kurt',
    'optimize_clipping_per_channel',
    'sub_channels',
  ):
    setattr(tpl, field, getattr(quant_params, field))
  factor = quant_params.clipping_coeff
  return tpl.set(clipping_coeff=None if factor == 1.0 else factor)
