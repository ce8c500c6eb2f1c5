"""Convolutions and poolings of images: shapes and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import linears, poolings
from pax_compat.layers.convolutions import conv
from pax_compat.layers.convolutions.conv_classifier import ConvPoolNetwork


def _config(pools=2):
  return ConvPoolNetwork.config(
    image_shape=(8, 6, 1),
    conv_tpls=[
      conv.ConvBNAct.config(filter_shape=shape, batch_norm_tpl=None)
      for shape in ((3, 3, 1, 2), (3, 3, 2, 4))
    ],
    pool_tpls=[
      poolings.Pooling.config(window_shape=(2, 2), window_stride=(2, 2))
    ]
    * pools,
    fc_tpl=linears.FeedForward.config(input_dims=2 * 2 * 4, output_dims=5),
  )


def test_images_may_be_flat():
  layer = _config().Instantiate()
  images = np.random.default_rng(0).normal(size=(3, 8, 6, 1)).astype('f')
  found, weights = layer.init_with_output(jax.random.key(0), images)
  assert found.shape == (3, 5)
  flat = layer.apply(weights, images.reshape([3, -1]))
  np.testing.assert_array_equal(found, flat)


def test_what_is_refused():
  with pytest.raises(errors.UserError, match='2 conv_tpls and 1 pool_tpls'):
    _config(pools=1).Instantiate().init(jax.random.key(0), jnp.ones([1, 48]))
  with pytest.raises(errors.UserError, match=r'expected images of \[8, 6, 1\]'):
    _config().Instantiate().init(jax.random.key(0), jnp.ones([2, 47]))
