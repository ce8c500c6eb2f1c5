"""Products of training with rounded gradients, and with noise on weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.quantization import training_products
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizedTrainingParams,
  WeightQuantizationParams,
)

_KEY = jax.random.key(0)


@pytest.mark.parametrize('bits, error', [(None, 1e-5), (8, 0.03)])
@pytest.mark.parametrize(
  'eqn, shapes',
  [
    ('...c,cd->...d', ([2, 3, 4], [4, 5])),
    ('abd,kdnh->kabnh', ([2, 3, 4], [2, 4, 3, 5])),
  ],
)
def test_gradients_are_near_those_of_floats(eqn, shapes, bits, error):
  random = np.random.RandomState(0)
  x, w = (jnp.asarray(random.normal(size=n), jnp.float32) for n in shapes)
  params = QuantizedTrainingParams(bits, bits, einsum_output_dtype=jnp.float32)

  def loss(product, x, w):
    return jnp.sum(jnp.sin(product(x, w)))

  def rounded(x, w):
    return training_products.custom_einsum(
      x, w, eqn=eqn, prng_key=_KEY, params=params
    )

  def plain(x, w):
    return jnp.einsum(eqn, x, w)

  found = jax.value_and_grad(loss, (1, 2))(rounded, x, w)
  expected = jax.value_and_grad(loss, (1, 2))(plain, x, w)
  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert np.abs(a - b).max() < error * max(1, np.abs(b).max())
  if bits:
    assert np.abs(found[1][1] - expected[1][1]).max() > 0
  np.testing.assert_array_equal(rounded(x, w), plain(x, w))


def test_bits_exclude_casts():
  with pytest.raises(errors.UserError, match='cast_bits_bwd 4; expected one'):
    training_products.custom_einsum(
      jnp.ones([2, 2]),
      jnp.ones([2, 2]),
      eqn='ab,bc->ac',
      prng_key=_KEY,
      params=QuantizedTrainingParams(cast_bits_bwd=4),
    )


def test_noise_begins_at_a_step_and_is_rounding_in_evaluation():
  params = WeightQuantizationParams(vn_scale=0.1, vn_start_step=3)
  w = jax.random.normal(_KEY, [4, 3])

  def noisy(step, **settings):
    return training_products.fakequant_vn(
      'ab,bc->ac', w, _KEY, params, step, bits=4, **settings
    )

  np.testing.assert_array_equal(noisy(2), w)
  noise = noisy(3) - w
  bound = 0.05 * jnp.max(jnp.abs(w), axis=0)
  assert np.all(np.abs(noise) <= bound) and np.any(np.abs(noise) > bound / 2)
  rounded = noisy(0, do_eval=True)
  assert len(np.unique(np.asarray(rounded)[:, 0])) <= 4
  with pytest.raises(errors.UserError, match='set use_step_count'):
    noisy(None)
