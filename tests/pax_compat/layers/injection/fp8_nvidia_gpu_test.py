"""Products in 8 bits; `tests.pax.layers_test` holds them against Pax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.base_layer import PARAMS
from pax_compat.layers.injection.fp8_nvidia_gpu import (
  Fp8EinsumGatedOp,
  Fp8EinsumOp,
)

_EQUATION = '...i,io->...o'
# The largest float8_e4m3fn and float8_e5m2.
_E4M3, _E5M2 = 448.0, 57344.0
_MODES = pytest.mark.parametrize('direct', [True, False])


def _normal(*shape, seed=0):
  return jax.random.normal(jax.random.key(seed), shape)


def _made(cls, *inputs, **fields):
  layer = cls.config(amax_history_length=3, **fields).Instantiate()
  variables = layer.init(jax.random.key(0), _EQUATION, *inputs)
  return layer, base_layer.unbox(variables)


def _rounded(x, scale, dtype, largest):
  x = np.clip(np.asarray(x) / scale, -largest, largest)
  return x.astype(dtype).astype(np.float32) * scale


@_MODES
def test_steps_round_by_the_largest_values_before(direct):
  """Outputs, gradients and histories of three steps are those of numpy."""
  layer, variables = _made(
    Fp8EinsumOp, _normal(4, 6), _normal(6, 5), use_direct_quant=direct
  )
  assert {k: v.shape for k, v in variables[PARAMS].items()} == {
    f'{name}_{what}': shape
    for name in ('input', 'kernel', 'output_grad')
    for what, shape in (('amax_history', (3,)), ('scale', (1,)))
  }
  histories, scales = np.zeros([3, 3], np.float32), np.ones(3, np.float32)
  for step in range(3):
    x, w = 10 * _normal(4, 6, seed=step), _normal(6, 5, seed=10 + step)
    g = 1e-3 * _normal(4, 5, seed=20 + step)

    def loss(variables, x, w, g=g):
      y = layer.apply(variables, _EQUATION, x, w)
      return jnp.sum(y * g), y

    grad = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    (variables, of_x, of_w), y = grad(variables, x, w)

    limits = np.array([_E4M3, _E4M3, _E5M2], np.float32)
    largest = histories.max(1)
    scales = np.where(largest > 0, largest / limits, scales)
    histories = np.roll(histories, -1, axis=1)
    histories[:, 0] = [np.max(np.abs(array)) for array in (x, w, g)]
    x = _rounded(x, scales[0], jnp.float8_e4m3fn, _E4M3)
    w = _rounded(w, scales[1], jnp.float8_e4m3fn, _E4M3)
    g = _rounded(g, scales[2], jnp.float8_e5m2, _E5M2)
    for ours, expected in ((y, x @ w), (of_x, g @ w.T), (of_w, x.T @ g)):
      size = np.max(np.abs(expected))
      np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5 * size)
    for i, name in enumerate(('input', 'kernel', 'output_grad')):
      np.testing.assert_allclose(
        variables[PARAMS][f'{name}_amax_history'], histories[i], rtol=1e-6
      )
      np.testing.assert_allclose(
        variables[PARAMS][f'{name}_scale'], scales[i : i + 1], rtol=1e-6
      )


@_MODES
def test_a_gate_is_another_product_of_the_same_inputs(direct):
  x, w, of_gate = _normal(4, 6), _normal(6, 5, seed=1), _normal(6, 5, seed=2)
  mode = dict(use_direct_quant=direct)
  both, variables = _made(Fp8EinsumGatedOp, x, w, of_gate, **mode)
  one, _ = _made(Fp8EinsumOp, x, w, **mode)
  # Scales of a later step.
  params = {
    name: 0.1 + jnp.abs(_normal(*value.shape, seed=i))
    for i, (name, value) in enumerate(sorted(variables[PARAMS].items()))
  }
  of_input = {k: v for k, v in params.items() if k.startswith('input')}
  gated = {
    k.removesuffix('_gated'): v for k, v in params.items() if 'gated' in k
  }
  first = {k: v for k, v in params.items() if 'gated' not in k}

  def loss(params, layer, *weights):
    y = jnp.stack(layer.apply({PARAMS: params}, _EQUATION, x, *weights))
    return jnp.sum(y**2), y

  grad = jax.grad(loss, has_aux=True)
  found, (y, gate) = grad(params, both, w, of_gate)
  alone, of_first = grad(first, one, w)
  other, of_second = grad(gated | of_input, one, of_gate)
  np.testing.assert_array_equal(y, of_first)
  np.testing.assert_array_equal(gate, of_second)
  for name, value in alone.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)
  for name in gated:
    np.testing.assert_array_equal(found[f'{name}_gated'], other[name], name)


def test_bfloat16_keeps_scales():
  linear = layers.Linear.config(
    input_dims=6,
    output_dims=5,
    fprop_dtype=jnp.bfloat16,
    einsum_tpl=Fp8EinsumOp.config(),
  ).Instantiate()
  variables = base_layer.unbox(linear.init(jax.random.key(0), _normal(4, 6)))

  def loss(variables):
    return jnp.sum(linear.apply(variables, _normal(4, 6)).astype(jnp.float32))

  gradients = jax.grad(loss)(variables)[PARAMS]['einsum']
  largest = jnp.max(jnp.abs(_normal(4, 6).astype(jnp.bfloat16)))
  history = gradients['input_amax_history']
  assert history.dtype == jnp.float32 and history.shape == (1024,)
  assert history[0] == largest and not history[1:].any()


@pytest.mark.parametrize(
  'cls, arrays, fields, message',
  [
    (Fp8EinsumOp, 3, {}, 'Fp8EinsumOp multiplies 2 arrays, got 3'),
    (Fp8EinsumGatedOp, 2, {}, 'Fp8EinsumGatedOp multiplies 3 arrays, got 2'),
    (Fp8EinsumOp, 2, {'amax_history_length': 0}, 'amax_history_length'),
    (
      Fp8EinsumOp,
      2,
      {'fprop_dtype': jnp.bfloat16},
      'the weight is float32 and the layer computes in bfloat16',
    ),
  ],
)
def test_mistakes(cls, arrays, fields, message):
  layer = cls.config(**fields).Instantiate()
  inputs = [_normal(4, 4)] * arrays
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), _EQUATION, *inputs)
