"""A scan over time that computes each matrix's gradient in one product.

JAX accumulates the gradient of a matrix used in a `lax.scan` step by step: each
step computes a thin product, and reads and writes a whole matrix. Here the
backward loop computes only the gradients of the products; one product over all
steps then gives the gradient of the matrix. The products are saved for the
backward loop; values between them are recomputed, which is faster than writing
and reading them.

Shapes: T steps, K and N dims of a matrix, "..." further axes, such as batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

Arrays = dict[str, jax.Array]

_PRODUCT = 'product'

# (product, constants, state, x) -> (state, y). `product(name, v)` multiplies
# v [..., K] by the weight of that name; it is called once per weight.
Step = Callable[..., tuple[Any, Any]]


def scan(
  step: Step,
  weights: Arrays,
  offsets: Arrays,
  constants: Any,
  state: Any,
  xs: Any,
  *,
  unroll: int = 1,
) -> tuple[Any, Any]:
  """Runs all steps, like `jax.lax.scan`.

  Args:
    step: computes a step. It must not close over differentiated values.
    weights: the matrices [K, N] that `step` multiplies by, by name.
    offsets: summands of products, [T, ..., N], by the weight's name; optional
      for each weight.
    constants: further arrays, the same for each step.
    state: the initial state.
    xs: arrays [T, ...], scanned over.
    unroll: steps per iteration of the compiled loop.

  Returns:
    The last state, and the stacked outputs of the steps, [T, ...].
  """
  static = (step, unroll)
  return _scan(static, weights, offsets, constants, state, xs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(static, weights, offsets, constants, state, xs):
  return _scan_and_factors(static, weights, offsets, constants, state, xs)[0]


def _forward(static, weights, offsets, constants, state, xs):
  run = functools.partial(_scan_and_factors, static, weights)
  _, factors = jax.eval_shape(run, offsets, constants, state, xs)
  # The gradient of an offset is that of its product: each product has one.
  missing = {
    name: jnp.zeros([*v.shape[:-1], weights[name].shape[1]], v.dtype)
    for name, v in factors.items()
    if name not in offsets
  }
  result, pull_back, factors = jax.vjp(
    run, {**offsets, **missing}, constants, state, xs, has_aux=True
  )
  given = {name: None for name in offsets}
  return result, (pull_back, factors, weights, given)


def _backward(static, residuals, derivatives):
  del static
  pull_back, factors, weights, given = residuals
  of_products, *others = pull_back(derivatives)
  of_weights = {
    name: _of_weight(factors[name], of_products[name]).astype(weight.dtype)
    for name, weight in weights.items()
  }
  of_offsets = {name: of_products[name] for name in given}
  return of_weights, of_offsets, *others


_scan.defvjp(_forward, _backward)


def _of_weight(factor: jax.Array, of_product: jax.Array) -> jax.Array:
  """Returns the gradient [K, N] of a matrix, in float32 or wider."""
  # As matrices: a CPU takes 1.5 times as long to contract several axes.
  factor, of_product = (
    x.reshape([-1, x.shape[-1]]) for x in (factor, of_product)
  )
  return jnp.matmul(
    factor.T,
    of_product,
    preferred_element_type=jnp.promote_types(factor.dtype, jnp.float32),
  )


def _scan_and_factors(static, weights, offsets, constants, state, xs):
  """Returns the result of the scan, and the products' inputs [T, ..., K]."""
  step, unroll = static

  def body(state, x_and_offset):
    x, offset = x_and_offset
    factors = {}

    def product(name, v):
      factors[name] = v
      result = v @ weights[name]
      if name in offset:
        result = result + offset[name]
      return checkpoint_name(result, _PRODUCT)

    state, y = step(product, constants, state, x)
    return state, (y, factors)

  policy = jax.checkpoint_policies.save_only_these_names(_PRODUCT)
  body = jax.checkpoint(body, prevent_cse=False, policy=policy)
  state, (ys, factors) = jax.lax.scan(body, state, (xs, offsets), unroll=unroll)
  return (state, ys), factors
