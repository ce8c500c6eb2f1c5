"""The scan with late weight gradients against `jax.lax.scan`.

Shapes: T steps, B batch, K and N dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layers.rnn import scan_products

T, B, K, N = 5, 2, 3, 3
RNG = np.random.default_rng(0)


def _normal(*shape):
  return RNG.normal(size=shape).astype(np.float32)


WEIGHTS = {'a': _normal(K, 4), 'b': _normal(4, N)}
OFFSETS = {'a': _normal(T, B, 4)}
CONSTANTS = {'shift': _normal(N)}
STATE = _normal(B, K)
XS = {'x': _normal(T, B, 4), 'flag': np.arange(T) % 2 == 0}


def _step(product, constants, state, x):
  hidden = jnp.tanh(product('a', state)) * x['x']
  new = product('b', hidden) + constants['shift']
  return jnp.where(x['flag'], new, state), jnp.sin(new)


def _plain(weights, offsets, constants, state, xs):
  def body(state, x):
    x, offset = x

    def product(name, v):
      return v @ weights[name] + (offset if name == 'a' else 0)

    return _step(product, constants, state, x)

  return jax.lax.scan(body, state, (xs, offsets['a']))


def _loss(run):
  def loss(weights, offsets, constants, state, x):
    last, ys = run(weights, offsets, constants, state, {**XS, 'x': x})
    return jnp.sum(last**2) + jnp.sum(jnp.cos(ys))

  return loss


@pytest.mark.parametrize('unroll', [1, 2])
@pytest.mark.parametrize('jit', [False, True])
def test_values_and_gradients_are_those_of_a_scan(unroll, jit):
  def ours(*args):
    return scan_products.scan(_step, *args, unroll=unroll)

  given = WEIGHTS, OFFSETS, CONSTANTS, STATE, XS
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
    ours(*given),
    _plain(*given),
  )
  given = *given[:-1], XS['x']
  gradients = jax.grad(_loss(ours), range(5))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    (jax.jit(gradients) if jit else gradients)(*given),
    jax.grad(_loss(_plain), range(5))(*given),
  )


def test_no_matrix_is_added_up_step_by_step():
  """No loop of the backward pass has such a matrix among what it returns."""

  def ours(*args):
    return scan_products.scan(_step, *args)

  jaxpr = jax.make_jaxpr(jax.grad(_loss(ours)))(
    WEIGHTS, OFFSETS, CONSTANTS, STATE, XS['x']
  )
  returned = [
    var.aval.shape
    for eqn in jaxpr.jaxpr.eqns
    if eqn.primitive.name == 'scan'
    for var in eqn.outvars
  ]
  assert returned  # There are loops.
  assert not {w.shape for w in WEIGHTS.values()} & set(returned)


def test_gradients_of_bfloat16_weights():
  half = jax.tree.map(
    lambda x: jnp.asarray(x, jnp.bfloat16), (WEIGHTS, OFFSETS, CONSTANTS, STATE)
  )

  def ours(*args):
    return scan_products.scan(_step, *args)

  x = jnp.asarray(XS['x'], jnp.bfloat16)
  gradients = jax.grad(_loss(ours))(*half, x)
  exact = jax.grad(_loss(_plain))(WEIGHTS, OFFSETS, CONSTANTS, STATE, XS['x'])
  for name, gradient in gradients.items():
    assert gradient.dtype == jnp.bfloat16
    scale = np.abs(exact[name]).max()
    assert np.abs(gradient - exact[name]).max() < 0.1 * scale
