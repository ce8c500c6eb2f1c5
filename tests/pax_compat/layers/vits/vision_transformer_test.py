"""Vision Transformers; their numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, layers
from pax_compat.layers import vits
from tests.pax import layer_cases


def test_patches_and_back():
  images = layer_cases.normal(2, 6, 4, 3)
  patches = vits.image_to_patch(images, 2)
  assert patches.shape == (2, 6, 12)
  np.testing.assert_array_equal(
    patches[0, 2].reshape(2, 2, 3), images[0, 2:4, :2]
  )
  back = vits.patch_to_image(patches, images.shape, 2)
  np.testing.assert_array_equal(back, images)


def test_class_tokens_are_around_the_patches():
  layer = layers.VitEntryLayers.config(
    patch_size=2,
    input_dims=12,
    output_dims=8,
    prepend_cls_tokens=1,
    append_cls_tokens=2,
    pos_emb_tpl=None,
  ).Instantiate()
  images = layer_cases.normal(2, 4, 6, 3)
  tokens, _ = layer.init_with_output(jax.random.key(0), images)
  assert tokens.shape == (2, 1 + 6 + 2, 8)
  zero = (np.abs(np.asarray(tokens)).max(-1) == 0).all(0)
  np.testing.assert_array_equal(np.flatnonzero(zero), [0, 7, 8])


def test_an_embedding_of_its_own_size_stays():
  emb = layer_cases.normal(1, 6, 4)
  same = vits.interpolate_embedding_2d(emb, (2, 3), (2, 3))
  np.testing.assert_allclose(same, emb, rtol=1e-6)
  larger = vits.interpolate_embedding_2d(jnp.ones([1, 6, 4]), (2, 3), (4, 5))
  np.testing.assert_allclose(larger, np.ones([1, 20, 4]), rtol=1e-6)


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: vits.image_to_patch(jnp.zeros([1, 5, 4, 3]), 2), 'multiples of'),
    (lambda: vits.image_to_patch(jnp.zeros([5, 4, 3]), 2), 'expected batch'),
    (
      lambda: vits.interpolate_embedding_2d(
        jnp.zeros([1, 5, 4]), (2, 3), (1, 1)
      ),
      r'expected \[1, 6, dims\]',
    ),
    (
      lambda: (
        layers.VitEntryLayers.config(
          input_dims=2, output_dims=2, pos_emb_tpl=None
        )
        .Instantiate()
        .init(jax.random.key(0), jnp.zeros([2, 2]))
      ),
      r'inputs of shape \[2, 2\]',
    ),
    (
      lambda: (
        layers.VisionTransformer.config(transformer_layers_tpl=None)
        .Instantiate()
        .init(jax.random.key(0), jnp.zeros([2, 2, 2]))
      ),
      'transformer_layers_tpl is None',
    ),
  ],
)
def test_what_does_not_fit(call, message):
  with pytest.raises(errors.UserError, match=message):
    call()
