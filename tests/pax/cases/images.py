"""Cases of layers for images."""

import numpy as np

from tests.pax.layer_cases import Case, FunctionCase, normal, paddings

_IMAGES = normal(2, 9, 8, 3)
_SMALL = normal(2, 6, 5, 4)
_TIME = normal(2, 7, 3)
_PADDED = paddings(9, 9, 5)


def _conv(cls: str, **fields):
  sizes = dict(filter_shape=(3, 2, 3, 4), filter_stride=(2, 1))
  return lambda n: n.Config(getattr(n.layers, cls), **(sizes | fields))


def _depthwise(**fields):
  return lambda n: n.Config(
    n.layers.DepthwiseConv1D, filter_shape=(3, 3, 2), bias=True, **fields
  )


def _pooling(kind: str, padding: str):
  return lambda n: n.Config(
    n.layers.Pooling,
    window_shape=(3, 2),
    window_stride=(2, 1),
    pooling_type=kind,
    padding=padding,
  )


def _norm(**fields):
  return lambda n: n.Config(n.layers.BatchNorm, dim=3, **fields)


def _block(cls: str, **fields):
  sizes = dict(input_dim=4, output_dim=8, stride=2)
  return lambda n: n.Config(getattr(n.layers, cls), **(sizes | fields))


def _resnet(**fields):
  """Two stages, the second with a projection."""
  sizes = dict(strides=(1, 2), channels=(8, 16), blocks=(1, 2), kernels=(3, 3))
  return lambda n: n.Config(n.layers.ResNet, **(sizes | fields))


def _basic_resnet(n):
  block = n.Config(n.layers.ResNetBasicBlock)
  return _resnet(block_params=block, return_block_features=True)(n)


def _mobilenet(**fields):
  sizes = dict(expansions=(1, 2, 2), strides=(1, 2, 1), channels=(8, 16, 16))
  return lambda n: n.Config(
    n.layers.MobileNet, output_channels=16, **(sizes | fields)
  )


def _vanillanet(n):
  pooling = n.Config(n.layers.GlobalPooling, pooling_dims=(1, 2))
  return n.Config(
    n.layers.VanillaNet,
    output_spatial_pooling_params=pooling,
    strides=(1, 2),
    channels=(8, 16),
    blocks=(1, 2),
    kernels=(3, 3),
  )


def _bi_tempered(**fields):
  return lambda n: n.Config(n.layers.BiTemperedLoss, **fields)


def _vit(pooled: bool = True, **entry):
  def config(n):
    build = n.layers.build_vision_transformer_hparams_for_test
    vit = build((2, 3), 4, 3, 8, 16, 2, 2)
    vit.entry_layers_tpl.set(**entry)
    vit.exit_layers_tpl.set(pooled=pooled)
    vit.exit_layers_tpl.pooling_tpl.set(pooling_dims=(1,))
    return vit

  return config


_CLASSES = np.eye(4, dtype=np.float32)[[0, 3, 1]]
_LOSS = (2 * normal(3, 4), _CLASSES)


CASES = {
  'conv': Case(_conv('Conv2D', bias=True), (_IMAGES,)),
  'conv_tf': Case(_conv('Conv2D', tf_equivalent_padding=True), (_IMAGES,)),
  'conv_valid': Case(_conv('Conv2D', padding='VALID'), (_IMAGES,)),
  'conv_dilated': Case(
    _conv('Conv2D', filter_stride=(1, 1), dilations=(2, 3)), (_IMAGES,)
  ),
  'conv_causal': Case(
    _conv('Conv2D', tf_equivalent_padding=True, is_causal=True), (_IMAGES,)
  ),
  'conv_grouped': Case(
    lambda n: n.layers.Conv2D.HParamsDepthwise(
      kernel_shape=(3, 3),
      in_channels=3,
      channel_multipliers=2,
      filter_stride=(1, 1),
    ),
    (_IMAGES,),
  ),
  'conv_3d': Case(
    lambda n: n.Config(
      n.layers.Conv3D,
      filter_shape=(2, 3, 2, 3, 4),
      filter_stride=(1, 2, 1),
      bias=True,
    ),
    (normal(2, 3, 5, 4, 3),),
  ),
  'conv_bn_act': Case(_conv('ConvBNAct'), (_IMAGES,)),
  'conv_bn_act_eval': Case(_conv('ConvBNAct'), (_IMAGES,), train=False),
  'conv_bn_act_padded': Case(
    _conv('ConvBNActWithPadding', batch_norm_tpl=None),
    (_IMAGES,),
    dict(paddings=_PADDED),
  ),
  'depthwise': Case(_depthwise(), (_TIME,)),
  'depthwise_causal': Case(
    _depthwise(is_causal=True, rhs_dilation_rate=2),
    (_TIME,),
    dict(paddings=paddings(7, 7, 4)),
  ),
  **{
    f'pooling_{kind}_{padding}': Case(_pooling(kind, padding), (_IMAGES,))
    for kind in ('MAX', 'AVG')
    for padding in ('SAME', 'VALID')
  },
  'pooling_padded': Case(
    _pooling('AVG', 'SAME'), (_IMAGES,), dict(paddings=_PADDED)
  ),
  'global_pooling': Case(
    lambda n: n.Config(n.layers.GlobalPooling, pooling_dims=(1, 2)),
    (_IMAGES,),
  ),
  'pooling_1d': Case(
    lambda n: n.Config(n.layers.Pooling1D, stride=2, window=3),
    (_TIME,),
    dict(paddings=paddings(7, 7, 4)),
  ),
  'batch_norm': Case(_norm(), (_TIME,)),
  'batch_norm_padded': Case(
    _norm(decay=0.9), (_TIME,), dict(paddings=paddings(7, 7, 4))
  ),
  'batch_norm_eval': Case(_norm(), (_TIME,), train=False),
  'batch_norm_forced': Case(_norm(force_eval_mode=True), (_TIME,)),
  'block': Case(_block('ResNetBlock'), (_SMALL,)),
  'block_same': Case(
    _block('ResNetBlock', input_dim=4, output_dim=4, stride=1), (_SMALL,)
  ),
  'basic_block': Case(_block('ResNetBasicBlock'), (_SMALL,)),
  'resnet_5': Case(
    lambda n: n.layers.ResNet.HParamsResNet5(), (normal(2, 12, 12, 3),)
  ),
  'resnet': Case(_resnet(), (normal(3, 16, 16, 3),)),
  'resnet_eval': Case(_resnet(), (normal(3, 16, 16, 3),), train=False),
  'resnet_basic': Case(_basic_resnet, (normal(3, 16, 16, 3),)),
  'mnist': Case(
    lambda n: n.Config(n.layers.CNN, height=12, width=8),
    (normal(2, 12, 8, 1),),
  ),
  'inverted_block': Case(
    lambda n: n.Config(
      n.layers.InvertedResidualBlock, input_dim=4, output_dim=4
    ),
    (_SMALL,),
  ),
  'mobilenet': Case(_mobilenet(num_classes=5), (normal(3, 16, 16, 3),)),
  'mobilenet_wide': Case(
    _mobilenet(multiplier=1.3, output_spatial_pooling_params=None),
    (normal(3, 16, 16, 3),),
    train=False,
  ),
  'vanillanet': Case(_vanillanet, (normal(3, 16, 16, 3),)),
  'bi_tempered_one': Case(_bi_tempered(), _LOSS),
  'bi_tempered': Case(
    _bi_tempered(t1=0.7, t2=1.4, label_smoothing=0.1), _LOSS, train=False
  ),
  'bi_tempered_finite': Case(_bi_tempered(t1=0.9, t2=0.8), _LOSS),
  'bi_tempered_ramp': Case(
    _bi_tempered(t1=0.7, t2=1.4, start_step=1, end_step=4), _LOSS
  ),
  'vit': Case(_vit(), (normal(2, 8, 12, 3),)),
  'vit_interpolated': Case(
    _vit(prepend_cls_tokens=1, append_cls_tokens=2), (normal(2, 12, 8, 3),)
  ),
  'vit_of_patches': Case(
    _vit(pooled=False),
    (normal(2, 6, 48),),
    dict(paddings=paddings(6, 6, 4)),
  ),
  'vit_exit': Case(
    lambda n: n.Config(
      n.layers.VitExitLayers,
      hidden_dim=8,
      output_dim=6,
      output_fc_tanh=False,
      pooled=False,
    ),
    (normal(2, 5, 8),),
  ),
  'patches': FunctionCase(
    lambda n: n.layers.image_to_patch(normal(2, 4, 6, 3), 2)
  ),
  'image_of_patches': FunctionCase(
    lambda n: n.layers.patch_to_image(normal(2, 6, 12), (2, 4, 6, 3), 2)
  ),
}
