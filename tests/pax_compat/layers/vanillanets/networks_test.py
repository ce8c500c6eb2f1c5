"""VanillaNet; its numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, layers
from pax_compat.layers.vanillanets import blocks


def test_the_activation_keeps_the_second_moment():
  x = np.random.default_rng(0).normal(size=100_000)
  moment = jnp.mean(blocks.tailored_lrelu(0.4, x) ** 2)
  np.testing.assert_allclose(moment, 1, atol=0.02)


@pytest.mark.parametrize(
  'depth, blocks_of_stages', [(101, [3, 4, 23, 3]), (152, [3, 8, 36, 3])]
)
def test_depths(depth, blocks_of_stages):
  config = getattr(layers.VanillaNet, f'HParamsVanillaNet{depth}')()
  assert config.blocks == blocks_of_stages


def test_as_many_blocks_as_stages():
  layer = layers.VanillaNet.config(blocks=[1]).Instantiate()
  with pytest.raises(errors.UserError, match=r'blocks is \[1\]; expected 4'):
    layer.init(jax.random.key(0), jnp.zeros([1, 32, 32, 3]))
