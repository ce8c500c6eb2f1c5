"""Tests of transposed convolutions."""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.convolutions.transposed_convolutions import (
  TransposedConv2D,
)


@pytest.mark.parametrize(('kernel', 'stride'), [(2, 2), (3, 2), (4, 1), (1, 3)])
def test_it_is_the_gradient_of_a_convolution(kernel, stride):
  layer = TransposedConv2D.config(
    filter_shape=(kernel, kernel, 2, 3), filter_stride=(stride, stride)
  ).Instantiate()
  x = np.random.default_rng(0).normal(size=(1, 4, 5, 3)).astype(np.float32)
  variables = layer.init(jax.random.key(0), x)

  def convolve(image):
    return jax.lax.conv_general_dilated(
      image,
      variables['params']['w'],
      (stride, stride),
      'SAME',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )

  found = layer.apply(variables, x)
  assert found.shape == (1, 4 * stride, 5 * stride, 2)
  _, gradient = jax.vjp(convolve, np.zeros_like(found))
  np.testing.assert_allclose(found, gradient(x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'filter_shape': (2, 2, 3)}, 'filter_shape is .* expected 4 numbers'),
    ({'filter_shape': (2, 2, 2, 4)}, 'the last one of 4'),
  ],
)
def test_settings_that_do_not_fit(fields, message):
  layer = TransposedConv2D.config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), np.zeros((1, 4, 4, 3), np.float32))
