"""Products of 8-bit floats, with scales that follow the largest values.

They take the place of the products of layers:

    tpl.linear_tpl.einsum_tpl = fp8_nvidia_gpu.Fp8EinsumOp.config()

Inputs and weights are rounded to float8_e4m3fn, gradients of outputs to
float8_e5m2; see "FP8 Formats for Deep Learning",
https://arxiv.org/abs/2209.05433. The scale of an array is computed from the
largest absolute values of the last steps ("delayed scaling"), which are weights
that a train step replaces by their gradients. The rounding and the gradients
are those of flax (`flax.linen.fp8_ops`). XLA uses the FP8 units of a GPU or TPU
that has them; elsewhere it computes the same numbers more slowly.

Shapes: H steps of the history.
"""

import functools

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops

from pax_compat import base_layer, errors
from pax_compat.layers import base_ops

_GROUPS = base_layer.WeightHParamsCollection
_INPUT, _KERNEL, _GRAD = 'input', 'kernel', 'output_grad'
# Of the second product of `Fp8EinsumGatedOp`.
_GATED = '_gated'


class Fp8EinsumOp(base_layer.BaseLayer):
  """An einsum of inputs and a weight in 8 bits.

  Attributes:
    amax_history_length: H, the steps whose largest values set the scales.
    use_direct_quant: whether the product itself gets 8-bit operands; else it
      gets rounded values in the computation's dtype, from which XLA derives an
      8-bit product on GPUs that have it.
  """

  amax_history_length: int = 1024
  use_direct_quant: bool = True

  def setup(self):
    errors.check_least(self, 1, 'amax_history_length')
    for name in (_INPUT, _KERNEL, _GRAD):
      self._create_scale(name)

  def _create_scale(self, name: str, suffix: str = ''):
    """Creates the scale [1] of an array and its largest values [H]."""
    weight = functools.partial(
      base_layer.WeightHParams,
      dtype=jnp.float32,
      collections=[
        _GROUPS.OVERWRITE_WITH_GRADIENT,
        _GROUPS.DISALLOW_BFLOAT16_CONVERSION,
      ],
    )
    history = [self.amax_history_length]
    of_history = weight(history, base_layer.WeightInit.Constant(0.0))
    of_scale = weight([1], base_layer.WeightInit.Constant(1.0))
    self.create_variable(f'{name}_amax_history{suffix}', of_history)
    self.create_variable(f'{name}_scale{suffix}', of_scale)

  def __call__(self, equation: str, *args: jax.Array) -> jax.Array:
    """Returns the einsum of inputs and a weight.

    Args:
      equation: of `jnp.einsum`.
      *args: the inputs and the weight.

    Raises:
      UserError: there are not two arrays, or the weight does not have the
        computation's dtype.
    """
    base_ops.check_count(self, args, 2)
    return self._product(equation, *args)

  def _product(
    self,
    equation: str,
    inputs: jax.Array,
    weight: jax.Array,
    suffix: str = '',
  ) -> jax.Array:
    """Returns an einsum of inputs and a weight in 8 bits.

    Args:
      equation: of `jnp.einsum`.
      inputs: first operand.
      weight: second one.
      suffix: of the names of its scales. That of the inputs has none: only the
        product without suffix updates it.
    """
    dtype = self.compute_dtype
    if weight.dtype != dtype:
      raise errors.UserError(
        f'{type(self).__name__}: the weight is {weight.dtype} and the layer'
        f' computes in {jnp.dtype(dtype).name}; expected the same dtype'
      )
    of_inputs = self._scale(_INPUT)
    if suffix:
      of_inputs = jax.lax.stop_gradient(of_inputs)
    direct = self.use_direct_quant
    multiply = _einsum_of_8_bits if direct else _einsum_of_rounded
    return multiply(
      equation,
      (inputs.astype(dtype), *of_inputs),
      (weight, *self._scale(_KERNEL, suffix)),
      self._scale(_GRAD, suffix),
    )

  def _scale(self, name: str, suffix: str = '') -> tuple[jax.Array, jax.Array]:
    """Returns the scale [1] of an array and its largest values [H]."""
    names = f'{name}_scale{suffix}', f'{name}_amax_history{suffix}'
    scale, history = map(self.get_var, names)
    return scale, history


class Fp8EinsumGatedOp(Fp8EinsumOp):
  """Two einsums of the same inputs in 8 bits, for gated feed-forward layers.

  Pax returns the first product, scaled twice, in place of the second one if
  `use_direct_quant` is set; here it is the product with the gate's weight.
  """

  def setup(self):
    super().setup()
    for name in (_KERNEL, _GRAD):
      self._create_scale(name, _GATED)

  def __call__(
    self, equation: str, *args: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns both products, as `base_ops.EinsumGatedOp` does.

    Raises:
      UserError: there are not three arrays, or a weight does not have the
        computation's dtype.
    """
    base_ops.check_count(self, args, 3)
    inputs, weight, of_gate = args
    return (
      self._product(equation, inputs, weight),
      self._product(equation, inputs, of_gate, _GATED),
    )


def _einsum_of_8_bits(equation, inputs, weight, of_grad):
  """Returns an einsum of 8-bit operands; each comes with (scale, history)."""
  (lhs, lhs_scale, lhs_history), (rhs, rhs_scale, rhs_history) = inputs, weight
  grad_scale, grad_history = of_grad
  product = functools.partial(
    fp8_ops.fp8_scaled_dot_general,
    lhs_scale=lhs_scale,
    rhs_scale=rhs_scale,
    grad_scale=grad_scale,
    lhs_amax_history=lhs_history,
    rhs_amax_history=rhs_history,
    grad_amax_history=grad_history,
    quantize_compute_type=rhs.dtype,
  )
  return jnp.einsum(equation, lhs, rhs, _dot_general=product)


def _einsum_of_rounded(equation, inputs, weight, of_grad):
  """Returns an einsum of rounded operands; each comes with (scale, history)."""
  rounded = (
    fp8_ops.in_qdq(x.dtype, jnp.float8_e4m3fn, x, *scale)
    for x, *scale in (inputs, weight)
  )
  outputs = jnp.einsum(equation, *rounded, _dot_general=_dot_general)
  return fp8_ops.out_qdq(outputs.dtype, jnp.float8_e5m2, outputs, *of_grad)


def _dot_general(lhs, rhs, dimension_numbers, *_, **__):
  # It warns of the other arguments, which it has no use for.
  return fp8_ops.dot_general_with_precision(lhs, rhs, dimension_numbers)
