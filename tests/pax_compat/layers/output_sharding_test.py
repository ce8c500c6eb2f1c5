"""How what layers compute is split over a mesh.

Shapes: B batch, T time, H height, W width, D features.
"""

import jax
import jax.numpy as jnp
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.layers import video

B, T, D = 2, 4, 8
SEQUENCE = jnp.ones([B, T, D])
IMAGE = jnp.ones([B, T, T, D])
VIDEO = jnp.ones([B, T, T, T, D])


def _mesh():
  return jax.make_mesh(
    (1,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )


_FRAMES = video.GroupNormSpatial.config(dim=D, num_groups=2)
_RESNET = layers.ResNet.HParamsResNet5().set(
  entryflow_conv_kernel=(1, 1, D), output_spatial_pooling_params=None
)


@pytest.mark.parametrize(
  ('config', 'inputs'),
  [
    (layers.ReLU.config(), [SEQUENCE]),
    (layers.Bias.config(dims=D), [SEQUENCE]),
    (layers.StackingOverTime.config(stride=1), [SEQUENCE]),
    (layers.Dropout.config(keep_prob=0.5), [SEQUENCE]),
    (layers.StochasticResidual.config(), [SEQUENCE, SEQUENCE]),
    (layers.IdentityNorm.config(), [SEQUENCE]),
    (layers.LayerNorm.config(dim=D), [SEQUENCE]),
    (layers.RmsNorm.config(dim=D), [SEQUENCE]),
    (layers.RmsNormNoScale.config(dim=D), [SEQUENCE]),
    (layers.BatchNorm.config(dim=D), [SEQUENCE]),
    (layers.GroupNorm.config(dim=D, num_groups=2, input_rank=3), [SEQUENCE]),
    (layers.WeightNormL2.config(dim=D), [SEQUENCE]),
    (layers.SpectralNorm.config(dim=D), [SEQUENCE]),
    (layers.Conv1D.config(filter_shape=(1, D, D)), [SEQUENCE]),
    (layers.Conv2D.config(filter_shape=(1, 1, D, D)), [IMAGE]),
    (layers.ConvBNAct.config(filter_shape=(1, 1, D, D)), [IMAGE]),
    (layers.DepthwiseConv1D.config(filter_shape=(1, D, 1)), [SEQUENCE]),
    (layers.CausalDepthwiseConv1D.config(hidden_dims=D), [SEQUENCE]),
    (
      layers.Pooling.config(window_shape=(1, 1), window_stride=(1, 1)),
      [IMAGE],
    ),
    (
      layers.LightConv1D.config(input_dims=D, kernel_size=2),
      [SEQUENCE, jnp.zeros([B, T])],
    ),
    (layers.Pooling1D.config(window=2), [SEQUENCE]),
    (layers.ResNetBlock.config(input_dim=D, output_dim=D), [IMAGE]),
    (_RESNET, [IMAGE]),
    (layers.InvertedResidualBlock.config(input_dim=D, output_dim=D), [IMAGE]),
    (layers.VanillaBlock.config(input_dim=D, output_dim=D), [IMAGE]),
    (layers.SpectrumAugmenter.config(), [SEQUENCE, jnp.zeros([B, T])]),
    (layers.GlobalPooling.config(pooling_dims=[]), [SEQUENCE]),
    (_FRAMES.clone(), [VIDEO]),
    (
      video.CondNormLayer.config(group_norm_tpl=_FRAMES, dim=D, emb_dim=D),
      [VIDEO, VIDEO],
    ),
    (video.LookupFreeQuantizer.config(), [VIDEO]),
    (video.ScalarQuantizer.config(), [VIDEO]),
    (video.CausalConv.config(filter_shape=(1, 1, 1, D, D)), [VIDEO]),
    (
      video.ResBlock.config(norm_layer_tpl=_FRAMES, input_dim=D, output_dim=D),
      [VIDEO],
    ),
    (video.BlurPool3D.config(), [VIDEO]),
    (video.DiscriminatorResBlock.config(input_dim=D, output_dim=D), [VIDEO]),
    (
      video.Encoder.config(
        input_dim=D, filters=32, num_res_blocks=1, channel_multipliers=[1]
      ),
      [VIDEO],
    ),
  ],
  ids=lambda value: getattr(getattr(value, 'cls', None), '__name__', None),
)
def test_the_mapping_of_the_output_is_never_ignored(config, inputs):
  split = [None] * (inputs[0].ndim - 1) + ['nowhere']
  mapping = config.cls.ActivationSharding.config(out=split)
  layer = config.set(activation_split_dims_mapping=mapping).Instantiate()
  rngs = {
    base_layer.PARAMS: jax.random.key(0),
    base_layer.RANDOM: jax.random.key(1),
  }
  layer.init(rngs, *inputs)  # without a mesh, mappings have no meaning
  with jax.set_mesh(_mesh()):
    with pytest.raises(
      errors.UserError, match="'nowhere', which is not an axis of the mesh"
    ):
      layer.init(rngs, *inputs)


_EMBEDDING = layers.Embedding.config(num_classes=9, input_dims=D)
_TRAINABLE = layers.TrainablePositionalEmbedding.config(
  embedding_dims=D, max_seq_length=T
)


@pytest.mark.parametrize(
  ('config', 'argument', 'name'),
  [
    (_EMBEDDING, jnp.ones([B, T], int), 'out'),
    (_EMBEDDING, jnp.ones([B, T], int), 'emb_out_split_dims_mapping'),
    (_TRAINABLE, T, 'out'),
    (_TRAINABLE, T, 'emb_out_split_dims_mapping'),
    (layers.PositionalEmbedding.config(embedding_dims=D), T, 'out'),
    (layers.PositionalEmbedding2D.config(embedding_dims=D, h=2, w=2), T, 'out'),
  ],
  ids=lambda value: getattr(getattr(value, 'cls', None), '__name__', None),
)
def test_the_mapping_of_vectors_is_never_ignored(config, argument, name):
  mapping = config.cls.ActivationSharding.config(
    **{name: [None, None, 'nowhere']}
  )
  layer = config.clone().set(activation_split_dims_mapping=mapping)
  with jax.set_mesh(_mesh()):
    with pytest.raises(
      errors.UserError, match="'nowhere', which is not an axis of the mesh"
    ):
      layer.Instantiate().init(jax.random.key(0), argument)
