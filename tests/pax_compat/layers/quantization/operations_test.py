"""Products with rounded arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.quantization import (
  operations,
  optimization,
  rounding,
  sub_channels,
)
from pax_compat.layers.quantization.tensor_quantizers import TensorQuantizer

_RANDOM = np.random.RandomState(0)


@pytest.mark.parametrize('symmetric_inputs', [True, False])
@pytest.mark.parametrize('symmetric', [True, False])
@pytest.mark.parametrize(
  'eqn, shapes',
  [
    ('...yh,zy->...zh', ([2, 4, 5], [3, 4])),
    ('...d,kdnh->k...nh', ([2, 3, 4], [3, 4, 2, 5])),
    ('...nh,dnh->...d', ([3, 2, 4], [5, 2, 4])),
  ],
)
def test_a_product_of_integers_is_near_that_of_floats(
  eqn, shapes, symmetric, symmetric_inputs
):
  x, w = (jnp.asarray(_RANDOM.normal(size=shape)) for shape in shapes)
  qw, scale, zero = operations.reduce_einsum_weight_precision(
    eqn, w, jnp.float32, use_symmetric=symmetric
  )
  qx, *of_inputs = operations.reduce_einsum_activation_precision(
    eqn, x, per_channel=True, symmetric=symmetric_inputs
  )
  found = operations.einsum(eqn, qx, qw, scale, zero, *of_inputs)
  expected = jnp.einsum(eqn, x, w)
  assert found.shape == expected.shape
  assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_product_of_integers_is_an_integer():
  x = jnp.array([[1, 2, 3], [4, 1, 2]], jnp.int8)
  w = jnp.array([[1, 2, 1], [2, 1, 2], [1, 3, 1]], jnp.int16)
  found = operations.einsum('...y,yz->...z', x, w, jnp.array([1, 2, 3]))
  np.testing.assert_array_equal(found, [[8, 26, 24], [8, 30, 24]])
  assert found.dtype == jnp.int32
  swapped = operations.einsum(
    'yz,...y->...z', x, w, jnp.array([1, 2, 3]), swap_xw=True
  )
  np.testing.assert_array_equal(found, swapped)


def test_blocks_have_equations_of_their_own():
  x = jnp.asarray(_RANDOM.normal(size=[4, 2, 4]))
  w = jnp.asarray(_RANDOM.normal(size=[2, 4, 3]))
  qw, scale, zero = operations.reduce_einsum_weight_precision(
    None, w, jnp.float32, use_symmetric=False, contract_dims=[1]
  )
  found = operations.einsum(
    '...sc,scz->...sz',
    x,
    qw,
    scale,
    zero,
    scale_eqn='...sz,sz->...z',
    zp_eqn='...sc,sz->...z',
  )
  expected = np.einsum('bsc,scz->bz', x, w)
  assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_rounded_inputs_of_training_exclude_zero_points():
  quantizer = TensorQuantizer.config(precision=8, use_symmetric=False)
  quantizer = quantizer.Instantiate().bind({})
  x, w = jnp.ones([2, 3]), jnp.ones([3, 4])
  with pytest.raises(errors.UserError, match='leave act_params None'):
    operations.aqt_einsum(
      'ab,bc->ac', x, w, lhs_quantizer=quantizer, rhs_quantizer=quantizer
    )


def test_blocks_within_a_dimension():
  shape, dims = sub_channels.get_sub_channel_shape([4, 32, 16], 8, [0, 1])
  assert (shape, dims) == ([4, 4, 8, 16], [0, 2])
  assert sub_channels.get_scale_shape(shape, dims) == [4, 16]
  other = sub_channels.get_sub_channel_shape([4, 30], 8, [1])
  assert other == ([4, 30], [1])
  with pytest.raises(errors.UserError, match='not a multiple'):
    sub_channels.get_sub_channel_shape(
      [4, 30], 8, [1], error_on_misaligned_shape=True
    )


def test_the_bound_of_the_smallest_error():
  t = jnp.array([[1.0, 2.0, 3.0], [4.0, 1.0, 2.0]])
  bound = jnp.max(t, axis=0, keepdims=True)
  found = optimization.get_best_bound(t, bound, -8, 7, 2.0, per_channel=True)
  np.testing.assert_allclose(found, [[4.0, 1.9, 3.0]], rtol=1e-6)
  found = optimization.get_best_bound(t, bound, -8, 7, 2.0)
  np.testing.assert_allclose(found, [[4.0, 2.0, 3.0]], rtol=1e-6)


def test_other_kinds_of_rounding():
  t = jnp.array([[1.0, 2.0, 5.5, 2.9], [0.0, 0.0, 0.0, 0.0]])
  values, scale, _ = rounding.reduce_precision(t, [1], add_scale_eps=True)
  assert values.tolist() == [[23, 46, 127, 67], [0, 0, 0, 0]]
  assert 0 < scale[1, 0] < 1e-6
  values, scale, _ = rounding.reduce_precision(
    t, [1], use_fp=True, save_fp8_to_int8=False
  )
  np.testing.assert_allclose(values * scale, t, rtol=0.07)
  signs, scale, _ = rounding.reduce_precision(
    t - 2.0, [1], bits=1, quant_method='bin'
  )
  assert signs[0].tolist() == [-1, 1, 1, 1]
  np.testing.assert_allclose(scale[:, 0], [1.35, 2.0], rtol=1e-6)
  many = jnp.full([1000], 0.25).at[0].set(127.0)
  values, _, _ = rounding.reduce_precision(
    many, None, random_rounding=True, key=jax.random.key(0)
  )
  assert 0.2 < np.mean(values[1:]) < 0.3
  half = jnp.array([70000.0, -5.0])
  np.testing.assert_allclose(rounding.clip_to_fp16(half), [69300.0, -5.0])


def test_floats_of_four_bits():
  fp4 = rounding.FP4()
  x = jnp.array([[-26, 2.3], [33.3, 4.1]])
  np.testing.assert_array_equal(fp4.round(x), [[-6, 2], [6, 4]])
  nudged = operations.fakequant_einsum('ab,bc->ac', x, bits=4, use_fp=True)
  assert np.abs(nudged - x).max() < 1e-5


def test_a_matrix_of_low_rank_is_its_product():
  x = jnp.asarray(_RANDOM.normal(size=[2, 5, 1]) * _RANDOM.normal(size=[3]))
  left, right = rounding.factorize_weight(x, 1)
  np.testing.assert_allclose(left @ right, x, atol=1e-5)
  left, right = rounding.factorize_weight(x, 4)
  assert left.shape == (2, 5, 3) and right.shape == (2, 3, 3)
