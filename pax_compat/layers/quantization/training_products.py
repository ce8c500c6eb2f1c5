"""Products of training with rounded gradients, and with noise on weights."""

from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.quantization import operations, rounding
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizedTrainingParams,
  WeightQuantizationParams,
)
from pax_compat.layers.quantization.utils import (
  split_equation,
  without_ellipsis,
)


def custom_einsum(
  x: jax.Array,
  w: jax.Array,
  *,
  eqn: str,
  prng_key: jax.Array,
  params: QuantizedTrainingParams,
) -> jax.Array:
  """Multiplies two arrays; both and the gradients are rounded in training.

  Without gradients, that is outside of training, nothing is rounded.

  Args:
    x: the inputs, floats.
    w: the weight, floats.
    eqn: 'inputs,weight->outputs'.
    prng_key: the key of random rounding.
    params: bits and dtypes.

  Raises:
    UserError: bits and casts of the same direction are both set.
  """
  for name in ('fwd', 'bwd'):
    settings = [getattr(params, f'{x}_{name}') for x in ('bits', 'cast_bits')]
    if None not in settings:
      raise errors.UserError(
        f'bits_{name} is {settings[0]} and cast_bits_{name} {settings[1]};'
        ' expected one of them to be None'
      )
  eqn = without_ellipsis(eqn, x, w)

  @jax.custom_vjp
  def product(x, w, key):
    del key
    return jnp.einsum(eqn, x, w)

  def forward(x, w, key):
    inputs, weight, outputs = split_equation(eqn)
    bits = params.bits_fwd
    qx, scale_x = _rounded(x, inputs, weight, bits)
    qw, scale_w = _rounded(w, weight, inputs, bits)
    if params.cast_bits_fwd is not None:
      qx, qw = (_cast(y, params.cast_bits_fwd) for y in (qx, qw))
    result = jnp.einsum(
      eqn, qx, qw, preferred_element_type=params.einsum_output_dtype
    )
    dtype = params.einsum_scale_output_dtype
    result = _scaled(result, outputs, scale_w, weight, dtype)
    result = _scaled(result, outputs, scale_x, inputs, dtype)
    return _in_dtype(result, params), (qx, qw, scale_x, scale_w, key)

  def backward(kept, gradient):
    qx, qw, scale_x, scale_w, key = kept
    inputs, weight, outputs = split_equation(eqn)
    of_x = _gradient(
      f'{outputs},{weight}->{inputs}', gradient, qw, scale_w, key, params
    )
    of_w = _gradient(
      f'{outputs},{inputs}->{weight}', gradient, qx, scale_x, key, params
    )
    return of_x, of_w, None

  product.defvjp(forward, backward)
  return product(x, w, prng_key)


def _gradient(
  eqn: str, gradient, other, scale, key, params: QuantizedTrainingParams
) -> jax.Array:
  """Returns the gradient of one array of a product.

  Args:
    eqn: 'outputs,other->array'.
    gradient: gradient of the outputs.
    other: the other array, rounded.
    scale: its scales; None if it is not rounded.
    key: the key of random rounding.
    params: see `custom_einsum`.
  """
  outputs, letters, result = split_equation(eqn)
  gradient = _scaled(
    gradient, outputs, scale, letters, params.einsum_output_dtype
  )
  gradient, own_scale = _rounded(
    gradient,
    outputs,
    letters,
    params.bits_bwd,
    random_rounding=params.random_rounding_bwd,
    key=key,
  )
  if params.cast_bits_bwd is not None:
    gradient = _cast(gradient, params.cast_bits_bwd)
  found = jnp.einsum(
    eqn, gradient, other, preferred_element_type=params.einsum_output_dtype
  )
  found = _scaled(
    found, result, own_scale, outputs, params.einsum_scale_output_dtype
  )
  return _in_dtype(found, params)


def _rounded(x, letters: str, others: str, bits: int | None, **settings):
  """Returns an array in few bits, and its scales of the remaining letters."""
  if bits is None:
    return x, None
  dims = [i for i, c in enumerate(letters) if c in others]
  values, scale, _ = rounding.reduce_precision(x, dims, bits=bits, **settings)
  return values, jnp.squeeze(scale, tuple(dims))


def _scaled(x, letters: str, scale, scaled: str, dtype) -> jax.Array:
  """Returns `x` times the scales of an array with the letters `scaled`.

  Args:
    x: an array.
    letters: its letters.
    scale: scales of those letters of `scaled` that `letters` has; None for
      none.
    scaled: the letters of the scaled array.
    dtype: dtype of the result.
  """
  if scale is None:
    return x
  kept = ''.join(c for c in scaled if c in letters)
  return jnp.einsum(
    f'{letters},{kept}->{letters}', x, scale, preferred_element_type=dtype
  )


def _cast(x: jax.Array, bits: int) -> jax.Array:
  dtypes = {8: jnp.int8, 4: jnp.int4}
  if bits not in dtypes:
    raise errors.UserError(
      f'a cast to {bits} bits is not supported; use 4 or 8'
    )
  return x.astype(dtypes[bits])


def _in_dtype(x: jax.Array, params: QuantizedTrainingParams) -> jax.Array:
  dtype = params.bwd_output_dtype
  return x if dtype is None else x.astype(dtype)


def fakequant_vn(
  eqn: str,
  w: jax.Array,
  next_prng_key: jax.Array,
  wp: WeightQuantizationParams,
  step: jax.Array | None = None,
  do_eval: bool = False,
  bits: int = 8,
  calculation_dtype: Any = jnp.bfloat16,
  use_symmetric: bool = True,
) -> jax.Array:
  """Returns a weight with noise instead of rounding, for training.

  Args:
    eqn: the equation of its product.
    w: the weight.
    next_prng_key: the key of the noise.
    wp: the settings `vn_*` and `stop_scale_gradient`.
    step: number of the step, [], if `wp.vn_start_step` is above 0.
    do_eval: whether the weight is rounded instead.
    bits: number of bits then.
    calculation_dtype: dtype of the computation then.
    use_symmetric: must be True.

  Raises:
    UserError: a setting is missing, or not supported.
  """
  if wp.vn_scale is None or not use_symmetric:
    raise errors.UserError(
      'FQ_VN needs weight_params.vn_scale, and use_symmetric to be True'
    )
  if do_eval:
    return operations.fakequant_einsum(
      eqn,
      w,
      bits=bits,
      calculation_dtype=calculation_dtype,
      use_symmetric=use_symmetric,
    )
  if wp.vn_noise_type == 'uniform':
    noise = jax.random.uniform(
      next_prng_key, w.shape, w.dtype, minval=-0.5, maxval=0.5
    )
  elif wp.vn_noise_type == 'normal':
    noise = jax.random.normal(next_prng_key, w.shape, w.dtype)
  else:
    raise errors.UserError(
      f"vn_noise_type is {wp.vn_noise_type!r}; expected 'uniform' or 'normal'"
    )
  dims = {
    'Linf': None,
    'PerChannelLinf': tuple(operations.eqn_to_weight_contract_dims(eqn)),
  }
  if wp.vn_weight_norm_type not in dims:
    raise errors.UserError(
      f'vn_weight_norm_type is {wp.vn_weight_norm_type!r}; expected'
      " 'Linf' or 'PerChannelLinf'"
    )
  axis = dims[wp.vn_weight_norm_type]
  scale = wp.vn_scale * jnp.max(jnp.abs(w), axis=axis, keepdims=True)
  if wp.vn_start_step > 0:
    if step is None:
      raise errors.UserError(
        'vn_start_step needs the number of the step: set use_step_count'
      )
    scale = jnp.where(step >= wp.vn_start_step, scale, 0.0)
  if wp.stop_scale_gradient:
    scale = jax.lax.stop_gradient(scale)
  return w + scale.astype(w.dtype) * noise
