"""Residual networks; their numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from tests.pax import layer_cases

IMAGES = layer_cases.normal(2, 8, 8, 4)


def _count(config, image=224):
  shape = jax.ShapeDtypeStruct((1, image, image, 3), jnp.float32)
  made = jax.eval_shape(config.Instantiate().init, jax.random.key(0), shape)
  return sum(
    int(np.prod(x.shape))
    for x in jax.tree.leaves(base_layer.unbox(made['params']))
  )


# Without the 1000 classes, counts of weights as published for these networks.
@pytest.mark.parametrize(
  ('name', 'weights'), [('ResNet18', 11176512), ('ResNet50', 23508032)]
)
def test_networks_have_the_known_number_of_weights(name, weights):
  assert _count(getattr(layers.ResNet, f'HParams{name}')()) == weights


@pytest.mark.parametrize(
  'name, blocks',
  [
    ('ResNet34', [3, 4, 6, 3]),
    ('ResNet56', [3, 3, 9, 3]),
    ('ResNet83', [3, 3, 18, 3]),
    ('ResNet101', [3, 4, 23, 3]),
    ('ResNet152', [3, 8, 36, 3]),
  ],
)
def test_depths(name, blocks):
  assert getattr(layers.ResNet, f'HParams{name}')().blocks == blocks


def test_a_block_begins_as_its_shortcut():
  layer = layers.ResNetBlock.config(
    input_dim=4, output_dim=4, zero_init_residual=True
  ).Instantiate()
  variables = base_layer.unbox(layer.init(jax.random.key(0), IMAGES))
  outputs, _ = layer.apply(variables, IMAGES, mutable=['non_trainable'])
  np.testing.assert_array_equal(outputs, np.maximum(IMAGES, 0))


def test_training_drops_the_convolutions_of_some_examples():
  layer = layers.ResNetBlock.config(
    input_dim=4, output_dim=4, residual_droppath_prob=0.5
  ).Instantiate()
  keys = {'params': jax.random.key(0), 'random': jax.random.key(1)}
  images = np.tile(IMAGES, [8, 1, 1, 1])
  variables = base_layer.unbox(layer.init(keys, images))
  mutable = ['non_trainable']
  outputs, _ = layer.apply(variables, images, rngs=keys, mutable=mutable)
  dropped = (outputs == np.maximum(images, 0)).all((1, 2, 3))
  assert 0 < dropped.sum() < 16
  with base_layer.eval_mode():
    outputs = layer.apply(variables, images)
  assert not (outputs == np.maximum(images, 0)).all((1, 2, 3)).any()


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (layers.ResNet.config(blocks=[1]), r'ResNet.blocks is \[1\]; expected 4'),
    (
      layers.ResNetBlock.config(
        input_dim=4,
        output_dim=4,
        zero_init_residual=True,
        conv_params=layers.ConvBNAct.config(batch_norm_tpl=None),
      ),
      'requires conv_params.batch_norm_tpl',
    ),
    (
      layers.ResNetBasicBlock.config(
        input_dim=4, output_dim=4, zero_init_residual=True
      ),
      'use ResNetBlock',
    ),
  ],
)
def test_fields_that_do_not_fit(config, message):
  with pytest.raises(errors.UserError, match=message):
    jax.eval_shape(config.Instantiate().init, jax.random.key(0), IMAGES)
