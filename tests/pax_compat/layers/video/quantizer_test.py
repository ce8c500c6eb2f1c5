"""Quantizers without codebooks; also held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers import video
from tests.pax.layer_cases import normal


def _quantized(config, inputs, train: bool = True):
  layer = config.Instantiate()
  with base_layer.eval_mode(not train):
    return layer.apply({}, inputs)


def _decoded(config, ids):
  return config.Instantiate().apply({}, ids, method='decode_ids')


@pytest.mark.parametrize('method', ['sine', 'tanh'])
@pytest.mark.parametrize('train', [True, False])
def test_indices_are_those_of_the_values(method, train):
  config = video.ScalarQuantizer.config(
    dim_widths=(5, 4, 2), bound_method=method
  )
  values, output = _quantized(config, 1.5 * normal(200, 3), train)
  ids = np.asarray(output.encoding_indices)
  assert ids.min() >= 0 and ids.max() < 40 and len(set(ids)) > 20
  np.testing.assert_allclose(_decoded(config, ids), values, atol=1e-6)
  odd, even = np.unique(np.round(values[:, 0])), np.unique(values[:, 2])
  np.testing.assert_array_equal(odd, [-2, -1, 0, 1, 2])
  np.testing.assert_allclose(np.abs(even), 0.5, atol=1e-6)


def test_each_index_has_its_own_values():
  config = video.ScalarQuantizer.config(dim_widths=(3, 4))
  values = _decoded(config, jnp.arange(12))
  assert len(np.unique(values, axis=0)) == 12
  as_floats = _decoded(config, jnp.arange(12.0) + 0.1)
  np.testing.assert_array_equal(values, as_floats)


def test_values_stay_in_range_without_eps_in_evaluations():
  config = video.ScalarQuantizer.config(
    dim_widths=(3, 4), bound_method='tanh', eps=0.0
  )
  x = jnp.array([[99.0, 99.0], [-99.0, -99.0]])
  values, output = _quantized(config, x, train=False)
  np.testing.assert_allclose(values, [[1, 1.5], [-1, -1.5]])
  np.testing.assert_array_equal(output.encoding_indices, [11, 0])
  _, output = _quantized(config, x)
  np.testing.assert_array_equal(output.encoding_indices, [11, 0])


@pytest.mark.parametrize('groups', [1, 2, 3, 8])
def test_signs_of_groups(groups):
  config = video.LookupFreeQuantizer.config(num_token_groups=groups)
  signs, output = _quantized(config, normal(5, 2, 8), train=False)
  np.testing.assert_array_equal(signs, np.sign(normal(5, 2, 8)))
  shape = (5, 2) if groups == 1 else (5, 2, groups)
  assert output.encoding_indices.shape == shape
  assert output.encoding_indices.dtype == jnp.uint32
  assert 'quantizer_loss' not in output
  np.testing.assert_array_equal(
    _decoded(config, output.encoding_indices), signs
  )


def test_the_first_dim_is_the_lowest_bit():
  config = video.LookupFreeQuantizer.config(embedding_dim=3)
  _, output = _quantized(config, jnp.array([[1.0, -1.0, -1.0], [-1, -1, 0]]))
  np.testing.assert_array_equal(output.encoding_indices, [1, 4])


def test_an_index_of_all_32_bits():
  config = video.LookupFreeQuantizer.config(
    embedding_dim=32, entropy_loss_ratio=0
  )
  _, output = _quantized(config, jnp.ones([1, 32]))
  assert int(output.encoding_indices[0]) == 2**32 - 1
  decoded = _decoded(config, output.encoding_indices)
  np.testing.assert_array_equal(decoded, jnp.ones([1, 32]))


def test_groups_that_no_dim_is_left_for():
  config = video.LookupFreeQuantizer.config(embedding_dim=5, num_token_groups=4)
  signs, output = _quantized(config, normal(3, 5))
  assert output.encoding_indices.shape == (3, 3)
  decoded = _decoded(config, output.encoding_indices)
  np.testing.assert_allclose(decoded, signs, atol=1e-6)


def test_gradients_are_those_of_the_inputs_in_training():
  config = video.LookupFreeQuantizer.config()
  x, factor = normal(3, 8), normal(3, 8, seed=1)

  def total(x, train):
    return jnp.sum(_quantized(config, x, train)[0] * factor)

  np.testing.assert_allclose(jax.grad(total)(x, True), factor, rtol=1e-6)
  assert not np.any(jax.grad(total)(x, False))


def test_one_group_for_entropies_is_exact():
  """Independent bits of a single vector have no other entropy of the mean."""
  x = normal(1, 4)
  losses = [
    _quantized(
      video.LookupFreeQuantizer.config(
        embedding_dim=4, entropy_loss_groups=groups, entropy_temperature=1.0
      ),
      x,
    )[1].entropy_loss
    for groups in (1, 4)
  ]
  # Of one vector, both entropies are the same; with bits apart, a mean of bits.
  np.testing.assert_allclose(losses[0], 0, atol=1e-4)
  probs = np.stack([1 / (1 + np.exp(-4 * x)), 1 / (1 + np.exp(4 * x))])
  of_bits = -np.sum(probs * np.log(probs))
  np.testing.assert_allclose(losses[1], 0.1 * of_bits * 3 / 4, rtol=1e-3)


def test_losses_of_bfloat16_are_float32():
  config = video.LookupFreeQuantizer.config(fprop_dtype=jnp.bfloat16)
  x = jnp.asarray(normal(3, 8), jnp.bfloat16)
  signs, output = _quantized(config, x)
  assert signs.dtype == jnp.bfloat16
  assert output.quantizer_loss.dtype == jnp.float32


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(entropy_loss_groups=9), 'entropy_loss_groups is 9'),
    (dict(entropy_loss_groups=0), 'entropy_loss_groups is 0'),
    (dict(embedding_dim=9, entropy_loss_groups=4), 'equal size of 9 dims'),
    (dict(entropy_loss_type='argmin'), 'did you mean: argmax'),
    (
      dict(entropy_loss_type='argmax', entropy_loss_groups=2),
      "'softmax' with entropy_loss_groups > 1",
    ),
    (dict(embedding_dim=33), 'groups of at most 32 of 33 dims'),
    (dict(embedding_dim=4), 'embedding_dim is 4'),
  ],
)
def test_lookup_free_fields_that_do_not_fit(fields, message):
  config = video.LookupFreeQuantizer.config(**fields)
  with pytest.raises(errors.UserError, match=message):
    _quantized(config, normal(2, 8))


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(bound_method='cosine'), 'bound_method'),
    (dict(dim_widths=(2, 0)), 'dim_widths'),
    (dict(dim_widths=(2**16, 2**16)), 'dim_widths'),
    (dict(dim_widths=(2, 2)), 'last dimension of 2'),
  ],
)
def test_scalar_fields_that_do_not_fit(fields, message):
  config = video.ScalarQuantizer.config(**fields)
  with pytest.raises(errors.UserError, match=message):
    _quantized(config, normal(2, 8))
