"""Cases of layers for videos."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from tests.pax.layer_cases import Case, FunctionCase, normal

_VIDEO = normal(2, 3, 5, 4, 6)
_RGB = normal(1, 5, 8, 7, 3)
_EMBEDDINGS = normal(2, 3, 2, 8)
_LOGITS = normal(3, 1), normal(3, 1, seed=1)
_WIDTHS = 5, 4, 3
# Of group normalizations with few channels.
_GROUPS = 2


def _layer(cls: str, **fields):
  return lambda n: n.Config(getattr(n.layers, cls), **fields)


def _norm(n):
  return n.Config(n.layers.GroupNormSpatial, num_groups=_GROUPS)


def _block(n, **fields):
  fields.setdefault('norm_layer_tpl', _norm(n))
  return n.Config(n.layers.ResBlock, **fields)


def _codec(cls: str, **fields):
  """An encoder or decoder of three stages."""
  sizes = dict(
    filters=4,
    embedding_dim=3,
    num_res_blocks=2,
    temporal_downsample=(True, False),
    channel_multipliers=(1, 2, 1),
  )

  def config(n):
    tpl = n.Config(getattr(n.layers, cls), **(sizes | fields))
    tpl.norm_tpl, tpl.res_block_tpl = _norm(n), _block(n)
    if cls == 'Decoder':
      norm = n.Config(n.layers.CondNormLayer, group_norm_tpl=_norm(n))
      tpl.cond_norm_tpl = norm
    return tpl

  return config


def _model(quantizer: str = 'LookupFreeQuantizer', **quantizer_fields):
  def config(n):
    return n.Config(
      n.layers.VQVaeModel,
      encoder_tpl=_codec('Encoder')(n),
      decoder_tpl=_codec('Decoder')(n),
      quantizer_tpl=n.Config(getattr(n.layers, quantizer), **quantizer_fields),
      temporal_downsample=(False, True),
      channel_multipliers=(1, 1, 2),
      embedding_dim=3,
      filters=4,
      num_res_blocks=1,
    )

  return config


def _discriminator(**fields):
  sizes = dict(
    filters=4,
    num_frames=5,
    image_height=8,
    image_width=7,
    channel_multipliers=(1, 2),
  )
  return _layer('Discriminator', **(sizes | fields))


def _arrays(layer, *inputs):
  """Returns the outputs of a layer, numbers as arrays."""
  return jax.tree.map(jnp.asarray, layer(*inputs))


def _losses(layer, real, fake, video, reconstructed, quantizer_loss, penalty):
  predictions = dict(
    logits_real=real,
    logits_fake=fake,
    reconstructed=reconstructed,
    quantizer_loss=quantizer_loss,
    r1_gradient_penalty=penalty,
  )
  return layer(predictions, types.SimpleNamespace(video=video))


_OF_LOSSES = (
  *_LOGITS,
  normal(3, 2, 4, 4, 3),
  normal(3, 2, 4, 4, 3, seed=1),
  np.float32(0.7),
  np.float32(0.3),
)


def _penalty(n):
  weight = normal(4, 2)

  def logits(x):
    return jnp.tanh(x @ weight)

  def penalty(x):
    return n.layers.r1_gradient_penalty(x, logits, 2.0)[1]

  x = normal(3, 4)
  return n.layers.r1_gradient_penalty(x, logits), jax.grad(penalty)(x)


def _lookup_free(**fields):
  # Colder by default, so that most gradients are 0.
  temperature = dict(entropy_temperature=0.5)
  return _layer('LookupFreeQuantizer', **(temperature | fields))


CASES = {
  'depth_to_space': FunctionCase(
    lambda n: n.layers.depth_to_space(normal(2, 3, 2, 3, 16), 2, 2)
  ),
  'depth_to_space_of_images': FunctionCase(
    lambda n: n.layers.depth_to_space(normal(2, 3, 2, 3, 8), 1, 2)
  ),
  'scan_function': FunctionCase(
    lambda n: n.layers.scan_function(lambda x, y: (x * y, x[:, 0]), 1)(
      normal(2, 3, 4), normal(2, 3, 4, seed=1)
    )
  ),
  'group_norm': Case(
    _layer('GroupNormSpatial', dim=6, num_groups=3), (_VIDEO,)
  ),
  'cond_norm': Case(
    lambda n: n.Config(
      n.layers.CondNormLayer, group_norm_tpl=_norm(n), dim=6, emb_dim=3
    ),
    (_VIDEO, normal(2, 3, 5, 4, 3)),
  ),
  'causal_conv': Case(
    _layer('CausalConv', filter_shape=(3, 3, 3, 6, 4)), (_VIDEO,)
  ),
  'causal_conv_strided': Case(
    _layer('CausalConv', filter_shape=(4, 4, 4, 6, 4), filter_stride=(2, 2, 2)),
    (_VIDEO,),
  ),
  'block': Case(lambda n: _block(n, input_dim=6, output_dim=4), (_VIDEO,)),
  'block_same': Case(lambda n: _block(n, input_dim=6, output_dim=6), (_VIDEO,)),
  'block_conv_shortcut': Case(
    lambda n: _block(n, input_dim=6, output_dim=4, use_conv_shortcut=True),
    (_VIDEO,),
  ),
  **{
    f'blur_pool_{size}': Case(_layer('BlurPool3D', filter_size=size), (_VIDEO,))
    for size in (2, 3, 4, 5, 6, 7)
  },
  'blur_pool_valid': Case(
    _layer('BlurPool3D', strides=(1, 2, 1), padding='VALID'), (_VIDEO,)
  ),
  'discriminator_block': Case(
    _layer('DiscriminatorResBlock', input_dim=6, output_dim=4), (_VIDEO,)
  ),
  'discriminator': Case(_discriminator(), (_RGB,)),
  'discriminator_without_blocks': Case(
    _discriminator(channel_multipliers=(), blur_filter_size=4), (_RGB,)
  ),
  'encoder': Case(_codec('Encoder'), (_RGB,)),
  'decoder': Case(_codec('Decoder'), (normal(1, 3, 2, 2, 3),)),
  'decoder_of_one_block': Case(
    _codec('Decoder', num_res_blocks=1, output_dim=2), (normal(1, 1, 2, 3, 3),)
  ),
  'model': Case(_model(entropy_temperature=0.5), (_RGB,)),
  'model_eval': Case(_model(), (_RGB,), train=False),
  'model_scalar': Case(
    _model('ScalarQuantizer', dim_widths=_WIDTHS), (_RGB,), method=_arrays
  ),
  'model_latents': Case(_model(), (_RGB,), method='encode_to_latents'),
  'model_indices': Case(_model(), (_RGB,), method='encode_to_indices'),
  'model_of_indices': Case(
    _model(),
    (np.int32([[[[3, 1], [0, 7]]] * 2]),),
    method='decode_from_indices',
  ),
  'model_of_latents': Case(
    _model(entropy_temperature=0.5),
    (normal(1, 2, 2, 2, 3),),
    method='decode_from_latents',
  ),
  'scalar': Case(
    _layer('ScalarQuantizer', dim_widths=_WIDTHS),
    (3 * normal(4, 5, 3),),
    method=_arrays,
  ),
  'scalar_tanh': Case(
    _layer('ScalarQuantizer', bound_method='tanh', eps=0.1),
    (_EMBEDDINGS,),
    method=_arrays,
  ),
  'scalar_eval': Case(
    _layer('ScalarQuantizer', dim_widths=_WIDTHS),
    (3 * normal(4, 5, 3),),
    method=_arrays,
    train=False,
  ),
  'scalar_ids': Case(
    _layer('ScalarQuantizer', dim_widths=_WIDTHS),
    (np.arange(60, dtype=np.int32).reshape(4, 15),),
    method='decode_ids',
  ),
  'lookup_free': Case(_lookup_free(), (_EMBEDDINGS,)),
  'lookup_free_cold': Case(_layer('LookupFreeQuantizer'), (_EMBEDDINGS,)),
  'lookup_free_eval': Case(_lookup_free(), (_EMBEDDINGS,), train=False),
  'lookup_free_argmax': Case(
    _lookup_free(entropy_loss_type='argmax', entropy_loss_balance=0.7),
    (_EMBEDDINGS,),
  ),
  'lookup_free_no_entropy': Case(
    _lookup_free(entropy_loss_ratio=0, commitment_cost=0.5), (_EMBEDDINGS,)
  ),
  'lookup_free_groups': Case(
    _lookup_free(num_token_groups=3, entropy_loss_groups=2), (_EMBEDDINGS,)
  ),
  'lookup_free_small_groups': Case(
    _lookup_free(entropy_loss_groups=8, entropy_loss_balance=0.7),
    (_EMBEDDINGS,),
  ),
  'lookup_free_ids': Case(
    _lookup_free(),
    (np.arange(0, 256, 5, dtype=np.int32).reshape(4, 13),),
    method='decode_ids',
  ),
  'lookup_free_ids_of_groups': Case(
    _lookup_free(num_token_groups=3),
    (np.arange(12, dtype=np.uint32).reshape(2, 2, 3) % 4,),
    method='decode_ids',
  ),
  'r1_gradient_penalty': FunctionCase(_penalty),
  'losses': Case(
    _layer('VQGANLoss', polyak_decay=0.9, lecam_weight=0.5),
    _OF_LOSSES,
    method=_losses,
  ),
  'losses_eval': Case(
    _layer('VQGANLoss'), _OF_LOSSES, method=_losses, train=False
  ),
}
