"""MobileNet; its numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.layers.mobilenet import networks


def test_the_known_number_of_weights():
  layer = layers.MobileNet.config(num_classes=1000).Instantiate()
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  made = jax.eval_shape(layer.init, jax.random.key(0), images)
  weights = jax.tree.leaves(base_layer.unbox(made['params']))
  assert sum(int(np.prod(x.shape)) for x in weights) == 3504872


@pytest.mark.parametrize('size, expected', [(11.2, 16), (24, 24), (3, 8)])
def test_numbers_of_channels(size, expected):
  assert networks.divisible(size, 8, 8) == expected


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'strides': (1,)}, 'strides has 1 numbers; expected 17'),
    ({'num_classes': 5, 'multiplier': 1.4}, 'multiplier of at most 1'),
  ],
)
def test_fields_that_do_not_fit(fields, message):
  layer = layers.MobileNet.config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), jnp.zeros([1, 32, 32, 3]))
