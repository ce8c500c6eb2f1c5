"""Blocks for videos; their numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import video
from tests.pax.layer_cases import normal


def _applied(config, *inputs):
  layer = config.Instantiate()
  return layer.init_with_output(jax.random.key(0), *inputs)[0]


def test_a_position_becomes_neighbours_in_time_and_space():
  # Channels in the order of time, height, width.
  x = jnp.arange(8.0).reshape(1, 1, 1, 1, 8)
  y = video.depth_to_space(x, 2, 1)
  np.testing.assert_array_equal(y[0, ..., 0], np.arange(8).reshape(2, 2, 2))


def test_frames_are_normalized_by_themselves():
  layer = video.GroupNormSpatial.config(dim=4, num_groups=2).Instantiate()
  x = normal(1, 3, 5, 4, 4)
  variables = layer.init(jax.random.key(0), x)
  whole = layer.apply(variables, x)
  np.testing.assert_allclose(jnp.mean(whole, (2, 3)).sum(-1), 0, atol=1e-5)
  one = layer.apply(variables, x[:, 1:2])
  np.testing.assert_allclose(whole[:, 1:2], one, atol=1e-6)


def test_more_dimensions_than_frames_may_share_no_statistics():
  config = video.GroupNormSpatial.config(
    dim=4, num_groups=2, num_ignored_dims=2, input_rank=3
  )
  rows = _applied(config, normal(2, 3, 5, 4, 4))
  assert rows.shape == (2, 3, 5, 4, 4)
  np.testing.assert_allclose(jnp.mean(rows, 3).sum(-1), 0, atol=1e-5)


@pytest.mark.parametrize('dilation', [1, 2])
def test_a_causal_convolution_sees_no_later_frame(dilation):
  layer = video.CausalConv.config(
    filter_shape=(3, 3, 3, 2, 2), dilations=(dilation,) * 3
  ).Instantiate()
  x = normal(1, 5, 6, 6, 2)
  variables = layer.init(jax.random.key(0), x)
  y = layer.apply(variables, x)
  assert y.shape == x.shape
  changed = layer.apply(variables, _without_frames_from(x, 3))
  np.testing.assert_array_equal(y[:, :3], changed[:, :3])
  assert np.abs(y[:, 3:] - changed[:, 3:]).max() > 0.1


def _without_frames_from(x, frame):
  x = x.copy()
  x[:, frame:] = 0
  return x


def test_the_first_frame_is_before_the_others():
  # With a kernel over time only, a constant video stays constant.
  layer = video.CausalConv.config(filter_shape=(3, 1, 1, 1, 1)).Instantiate()
  ones = jnp.ones([1, 4, 2, 2, 1])
  weight = jnp.full([3, 1, 1, 1, 1], 1 / 3)
  params = {'w': weight, 'b': jnp.zeros(1)}
  np.testing.assert_allclose(layer.apply({'params': params}, ones), 1, 1e-6)


@pytest.mark.parametrize('size', range(2, 8))
def test_a_blur_keeps_the_mean(size):
  config = video.BlurPool3D.config(
    filter_size=size, strides=(1, 1, 1), padding='VALID'
  )
  y = _applied(config, jnp.full([1, 7, 7, 7, 2], 3.0))
  assert y.shape == (1, *[8 - size] * 3, 2)
  np.testing.assert_allclose(y, 3.0, rtol=1e-6)


def test_a_blur_in_bfloat16():
  config = video.BlurPool3D.config(fprop_dtype=jnp.bfloat16)
  y = _applied(config, normal(1, 3, 4, 4, 2))
  assert y.dtype == jnp.bfloat16 and y.shape == (1, 2, 2, 2, 2)


def test_a_block_of_the_discriminator_halves_sizes_rounded_up():
  config = video.DiscriminatorResBlock.config(input_dim=2, output_dim=3)
  assert _applied(config, normal(1, 5, 4, 7, 2)).shape == (1, 3, 2, 4, 3)


@pytest.mark.parametrize(
  'call, message',
  [
    (
      lambda: video.depth_to_space(jnp.zeros([1, 1, 2, 2, 8]), 2, 2),
      r'expected \[B, T, H, W, 16\]',
    ),
    (
      lambda: _applied(
        video.CausalConv.config(filter_shape=(3, 3, 3, 2, 2)),
        jnp.zeros([1, 3, 3, 2]),
      ),
      'expected 5 dimensions',
    ),
    (
      lambda: _applied(
        video.CausalConv.config(filter_shape=(3, 3, 3, 2, 2), padding='SAME'),
        normal(1, 3, 3, 3, 2),
      ),
      "padding is 'SAME'",
    ),
    (
      lambda: _applied(
        video.ResBlock.config(input_dim=3, output_dim=2), normal(1, 3, 3, 3, 2)
      ),
      'input_dim is 3',
    ),
    (
      lambda: _applied(
        video.DiscriminatorResBlock.config(input_dim=3), normal(1, 3, 3, 3, 2)
      ),
      'input_dim is 3',
    ),
    (
      lambda: _applied(
        video.BlurPool3D.config(filter_size=8), normal(1, 3, 3, 3, 2)
      ),
      'filter_size is 8',
    ),
  ],
)
def test_what_does_not_fit(call, message):
  with pytest.raises(errors.UserError, match=message):
    call()
