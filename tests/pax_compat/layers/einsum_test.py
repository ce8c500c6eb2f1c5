"""The einsum layer against numpy."""

import math

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, WeightInit
from pax_compat.layers import einsum

RNG = np.random.default_rng(0)

# Equation, shape of the input, of the weight, of the bias.
CASES = [
  ('...d,df->...f', (2, 3, 4), (4, 5), (5,)),
  ('btd,dnh->btnh', (2, 3, 4), (4, 2, 5), (2, 5)),
  ('btnh,dnh->btd', (2, 3, 2, 5), (4, 2, 5), (4,)),
  ('bd, hnd -> bnh', (2, 4), (5, 3, 4), (3, 5)),
  ('ebd,edf->ebf', (3, 2, 4), (3, 4, 5), (5,)),
]


def _normal(*shape):
  return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(('eqn', 'x', 'w', 'b'), CASES)
@pytest.mark.parametrize('use_bias', [True, False])
def test_einsum(eqn, x, w, b, use_bias):
  layer = einsum.Einsum.config(
    eqn=eqn, w_shape=w, use_bias=use_bias
  ).Instantiate()
  x, weights = _normal(*x), {'w': _normal(*w)}
  want = np.einsum(eqn, x, weights['w'])
  if use_bias:
    weights['b'] = _normal(*b)
    want = want + weights['b']
  np.testing.assert_allclose(
    layer.apply({PARAMS: weights}, x), want, rtol=1e-4, atol=1e-5
  )
  first = base_layer.unbox(layer.init_boxed(jax.random.key(0), x)[PARAMS])
  assert {k: v.shape for k, v in first.items()} == {
    k: v.shape for k, v in weights.items()
  }
  if use_bias:
    np.testing.assert_array_equal(first['b'], np.zeros(b))


@pytest.mark.parametrize(
  ('eqn', 'fan_in', 'fan_out'),
  [('bd,dnh->bnh', 20, 30 * 40), ('bnh,dnh->bd', 30 * 40, 20)],
)
def test_fans_are_those_of_the_equation(eqn, fan_in, fan_out):
  x = np.zeros([1, 20] if eqn.startswith('bd') else [1, 30, 40], np.float32)

  def deviation(init):
    layer = einsum.Einsum.config(
      eqn=eqn, w_shape=(20, 30, 40), params_init=init
    )
    first = layer.Instantiate().init_boxed(jax.random.key(0), x)[PARAMS]
    return np.std(first['w'].value)

  # Of 24,000 draws, the deviation has a standard error of 0.5%.
  for init, want in (
    (WeightInit.GaussianSqrtFanIn(), 1 / math.sqrt(fan_in)),
    (WeightInit.GaussianSqrtFanOut(), 1 / math.sqrt(fan_out)),
    (WeightInit.Xavier(), math.sqrt(2 / (fan_in + fan_out))),
  ):
    np.testing.assert_allclose(deviation(init), want, rtol=0.02)


def test_the_bias_is_split_as_the_weight():
  layer = einsum.Einsum.config(
    eqn='bd,hnd->bnh',
    w_shape=(5, 3, 4),
    use_bias=True,
    weight_split_dims_mapping=base_layer.WeightSharding.config(
      wt=['mdl', None, 'data']
    ),
  ).Instantiate()
  first = layer.init_boxed(jax.random.key(0), np.zeros([2, 4]))[PARAMS]
  splits = {
    k: tuple(v.meta.tensor_split_dims_mapping) for k, v in first.items()
  }
  assert splits == {'w': ('mdl', None, 'data'), 'b': (None, 'mdl')}


@pytest.mark.parametrize(
  ('eqn', 'w_shape', 'message'),
  [
    ('bd,df', (4, 5), "eqn is 'bd,df'; expected 'input,weight->output'"),
    ('bd->b', (4, 5), "eqn is 'bd->b'; expected"),
    ('bd,...df->bf', (4, 5), 'a weight of letters only'),
    ('bd,df->bf', (4, 5, 6), r'w_shape is \[4, 5, 6\], .* of 2 dimensions'),
    ('bd,df->fb', (4, 5), "'f', are not the last ones of the output"),
  ],
)
def test_equations_that_do_not_fit(eqn, w_shape, message):
  layer = einsum.Einsum.config(eqn=eqn, w_shape=w_shape, use_bias=True)
  with pytest.raises(errors.UserError, match=message):
    layer.Instantiate().init_boxed(jax.random.key(0), np.zeros([2, 4]))
