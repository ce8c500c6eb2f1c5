"""What layers must not be called with."""

import jax
import jax.numpy as jnp
import pytest

from pax_compat import errors, layers

D = 3


@pytest.mark.parametrize(
  ('config', 'field'),
  [
    (layers.Linear.config(input_dims=D, output_dims=5), 'Linear.input_dims'),
    (layers.Bias.config(dims=D), 'Bias.dims'),
    (layers.LayerNorm.config(dim=D), 'LayerNorm.dim'),
    (layers.RmsNorm.config(dim=D), 'RmsNorm.dim'),
    (layers.RmsNormNoScale.config(dim=D), 'RmsNormNoScale.dim'),
    (layers.BatchNorm.config(dim=D), 'BatchNorm.dim'),
    (
      layers.GroupNorm.config(dim=D, num_groups=1, input_rank=3),
      'GroupNorm.dim',
    ),
    (layers.WeightNormL2.config(dim=D), 'WeightNormL2.dim'),
    (layers.SpectralNorm.config(dim=D), 'SpectralNorm.dim'),
  ],
)
@pytest.mark.parametrize('features', [1, D + 1])
def test_another_number_of_features(config, field, features):
  layer = config.Instantiate()
  layer.init(jax.random.key(0), jnp.ones([2, 2, D]))
  with pytest.raises(errors.UserError, match=f'^{field} is 3, but the inputs'):
    layer.init(jax.random.key(0), jnp.ones([2, 2, features]))


def test_the_message_has_the_path_of_the_layer():
  config = layers.FeedForward.config(input_dims=D, output_dims=D)
  message = r'^linear: Linear.input_dims is 3, .* \[2, 4\]; expected a last'
  with pytest.raises(errors.UserError, match=message):
    config.Instantiate().init(jax.random.key(0), jnp.ones([2, 4]))


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_ids_are_integers(style):
  layer = layers.Embedding.config(
    num_classes=5, input_dims=D, lookup_style=style
  ).Instantiate()
  layer.init(jax.random.key(0), jnp.ones([2], jnp.uint8))
  with pytest.raises(errors.UserError, match='ids have the dtype float32'):
    layer.init(jax.random.key(0), jnp.ones([2]))
