"""Tokenizers of videos; their numbers are held against Pax's in tests/pax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.layers import video
from tests.pax.layer_cases import normal


def _norm():
  return video.GroupNormSpatial.config(num_groups=2)


def _config(**fields):
  def codec(cls, **more):
    block = video.ResBlock.config(norm_layer_tpl=_norm())
    return cls.config(norm_tpl=_norm(), res_block_tpl=block, **more)

  norm = video.CondNormLayer.config(group_norm_tpl=_norm())
  sizes = dict(
    encoder_tpl=codec(video.Encoder),
    decoder_tpl=codec(video.Decoder, cond_norm_tpl=norm),
    temporal_downsample=(True,),
    channel_multipliers=(1, 2),
    embedding_dim=4,
    filters=4,
    num_res_blocks=1,
  )
  return video.VQVaeModel.config(**(sizes | fields))


@functools.cache
def _model():
  model = _config().Instantiate()
  return model, model.init(jax.random.key(0), normal(1, 5, 8, 8, 3))


def test_a_video_goes_in_and_out():
  model, variables = _model()
  videos = normal(2, 5, 8, 12, 3)
  call = functools.partial(model.apply, variables)
  decoded, output = call(videos)
  assert decoded.shape == videos.shape
  ids = call(videos, method='encode_to_indices')
  assert ids.shape == (2, 3, 4, 6)
  np.testing.assert_array_equal(ids, output.encoding_indices)
  of_ids = call(ids, method='decode_from_indices')
  np.testing.assert_allclose(of_ids, decoded, atol=1e-5)
  latents = call(videos, method='encode_to_latents')
  np.testing.assert_array_equal(latents, output.raw)
  of_latents = call(latents, method='decode_from_latents')
  np.testing.assert_allclose(of_latents, decoded, atol=1e-5)


def test_the_first_frame_is_encoded_as_an_image():
  model, variables = _model()
  videos = normal(1, 5, 8, 8, 3)
  encode = functools.partial(model.apply, variables, method='encode_to_latents')
  image = encode(videos[:, :1])
  np.testing.assert_allclose(encode(videos)[:, :1], image, atol=1e-5)
  decode = functools.partial(model.apply, variables, method='decode')
  latents = encode(videos)
  np.testing.assert_allclose(
    decode(latents)[:, :1], decode(latents[:, :1]), atol=1e-5
  )


@pytest.mark.slow
def test_training_reduces_the_losses():
  model, variables = _model()
  videos = 0.3 * normal(1, 5, 8, 8, 3)
  optimizer = optax.adam(3e-3)

  def loss(params):
    decoded, output = model.apply({'params': params}, videos)
    return jnp.mean((decoded - videos) ** 2) + output.quantizer_loss

  @jax.jit
  def step(params, state):
    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value

  params = variables['params']
  state, values = optimizer.init(params), []
  for _ in range(30):
    params, state, value = step(params, state)
    values.append(float(value))
  assert values[-1] < 0.5 * values[0]


@pytest.mark.parametrize(
  'quantizer',
  [
    video.LookupFreeQuantizer.config(),
    video.ScalarQuantizer.config(dim_widths=(4, 3, 2, 2)),
  ],
)
@pytest.mark.parametrize('train', [True, False])
def test_in_bfloat16(quantizer, train):
  config = _config(quantizer_tpl=quantizer, fprop_dtype=jnp.bfloat16)
  model = config.Instantiate()
  videos = jax.ShapeDtypeStruct([1, 3, 4, 4, 3], jnp.float32)
  with base_layer.eval_mode(not train):
    (decoded, output), variables = jax.eval_shape(
      lambda x: model.init_with_output(jax.random.key(0), x), videos
    )
  assert decoded.dtype == jnp.bfloat16 and decoded.shape == videos.shape
  assert output.encoding_indices.shape == (1, 2, 2, 2)
  weights = jax.tree.leaves(base_layer.unbox(variables))
  assert {x.dtype for x in weights} == {jnp.dtype(jnp.float32)}


def test_values_beyond_the_stages_are_ignored():
  short, long = (
    video.Encoder.config(
      filters=32,
      num_res_blocks=1,
      channel_multipliers=(1, 1),
      temporal_downsample=halved,
    ).Instantiate()
    for halved in ((False,), (False, True, True))
  )
  x = normal(1, 2, 4, 4, 3)
  variables = short.init(jax.random.key(0), x)
  np.testing.assert_array_equal(
    short.apply(variables, x), long.apply(variables, x)
  )


def test_an_activation_of_the_discriminator_without_a_slope():
  config = video.Discriminator.config(
    filters=2,
    image_height=4,
    image_width=6,
    channel_multipliers=(1,),
    activation_tpl=layers.Swish.config(),
  )
  logits, _ = config.Instantiate().init_with_output(
    jax.random.key(0), normal(3, 1, 4, 6, 3)
  )
  assert logits.shape == (3, 1)


def _init(config, x):
  config.Instantiate().init(jax.random.key(0), x)


@pytest.mark.parametrize(
  'config, shape, message',
  [
    (_config(), (1, 4, 8, 8, 3), r'T = 1 \+ a multiple of 2'),
    (_config(), (4, 8, 8, 3), r'T = 1 \+ a multiple of 2'),
    (_config(num_res_blocks=0), (1, 5, 8, 8, 3), 'num_res_blocks is 0'),
    (_config(temporal_downsample=()), (1, 5, 8, 8, 3), 'at least 1 values'),
    (_config(channel_multipliers=()), (1, 5, 8, 8, 3), 'a stage'),
    (
      video.Encoder.config(conv_downsample=False),
      (1, 5, 8, 8, 3),
      'conv_downsample is False',
    ),
    (
      video.Decoder.config(
        res_block_tpl=video.ResBlock.config(use_conv_shortcut=True)
      ),
      (1, 1, 2, 2, 8),
      'use_conv_shortcut is True',
    ),
    (
      video.Discriminator.config(
        activation_tpl=layers.LeakyReLU.config(negative_slope=0.1)
      ),
      (1, 1, 256, 256, 3),
      'negative_slope is 0.1',
    ),
    (
      video.Discriminator.config(),
      (1, 2, 256, 256, 3),
      r'expected \[B, 1, 256, 256, 3\]',
    ),
  ],
)
def test_what_does_not_fit(config, shape, message):
  with pytest.raises(errors.UserError, match=message):
    _init(config, jnp.zeros(shape))
