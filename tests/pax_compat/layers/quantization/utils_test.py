"""Equations of products, packing of 4 bits, and search in configs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, layers
from pax_compat.layers.quantization import utils


@pytest.mark.parametrize(
  'eqn, shapes',
  [
    ('ab,bc->ac', ([2, 3], [3, 4])),
    ('abd,kdnh->kabnh', ([2, 3, 4], [5, 4, 6, 7])),
    ('abc,acd->dab', ([2, 3, 4], [2, 4, 5])),
    ('abc,cbd->ad', ([2, 3, 4], [4, 3, 5])),
  ],
)
def test_dimension_numbers_are_those_of_the_equation(eqn, shapes):
  x, y = (np.random.RandomState(0).normal(size=shape) for shape in shapes)
  numbers, order = utils.einsum_eqn_to_dimension_numbers(eqn)
  product = jax.lax.dot_general(x, y, numbers)
  product = product if order is None else jnp.transpose(product, order)
  np.testing.assert_allclose(product, np.einsum(eqn, x, y), atol=1e-5)


@pytest.mark.parametrize(
  'eqn, message',
  [
    ('...a,ab->...b', "expected no '...'"),
    ('aab,bc->ac', 'each letter once'),
    ('ab,cd->bd', 'of one array only'),
    ('ab->b', "expected 'inputs,weight->outputs'"),
  ],
)
def test_other_equations_are_refused(eqn, message):
  with pytest.raises(errors.UserError, match=message):
    utils.einsum_eqn_to_dimension_numbers(eqn)


@pytest.mark.parametrize(
  'dtypes, expected',
  [
    ('int8 int16', 'int16'),
    ('uint8 int8', 'int16'),
    ('uint8 int16', 'int16'),
    ('uint32 int8', 'int32'),
  ],
)
def test_the_smallest_type_of_both(dtypes, expected):
  x, y = (jnp.ones([1], dtype) for dtype in dtypes.split())
  assert utils.get_smallest_matching_dtype(x, y) == expected
  assert utils.get_smallest_matching_dtype(y, x) == expected


def test_unsigned_values_are_packed():
  x = jnp.arange(16, dtype=jnp.uint8).reshape(1, 16)
  packed = utils.pack_4bit(x, 1)
  assert packed.shape == (1, 2)
  np.testing.assert_array_equal(utils.unpack_4bit(packed, 1, jnp.uint8), x)
  with pytest.raises(errors.UserError, match='int32 cannot be packed'):
    utils.pack_4bit(packed, 1)


@pytest.mark.parametrize('max_reduction', [True, False])
def test_products_of_low_rank_have_the_shapes_of_their_equations(max_reduction):
  eqn, shape = '...nh,dnh->...d', (3, 4, 8)
  left, right, *shapes, left_dims, right_dims = utils.get_lora_shape_and_eqn(
    shape, 2, eqn, max_reduction
  )
  of_left, of_right = (jnp.ones(x) for x in shapes)
  between = jnp.einsum(left, jnp.ones([5, 4, 8]), of_left)
  assert jnp.einsum(right, between, of_right).shape == (5, 3)
  assert {shapes[0][i] for i in left_dims} == {2}
  assert {shapes[1][i] for i in right_dims} == {2}
  split = utils.get_right_weight_split_dims_mapping(['x', 'y', 'z'], right_dims)
  assert split == (('x', 'y', None) if max_reduction else ('x', None, None))
  split = utils.get_left_weight_split_dims_mapping(['x', 'y', 'z'], left_dims)
  assert len(split) == of_left.ndim
  assert utils.get_left_weight_split_dims_mapping(None, left_dims) is None


def test_templates_are_found_once_each():
  linear = layers.Linear.config()
  config = layers.FeedForward.config(linear_tpl=linear)
  found = utils.find_target_tpl([config, {'x': linear}], [layers.Linear])
  assert len(found) == 1 and found[0] is linear
