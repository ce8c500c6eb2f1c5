"""Translators of Lingvo's image classifiers."""

import math

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.convolutions.conv_classifier import ConvPoolNetwork
from pax_compat.layers.models.classification_model import ClassificationModel
from pax_compat.layers.stochastics import Dropout


@translates('lingvo.tasks.image.classifier.ModelV1')
def model_v1(view: ParamsView) -> Translated | None:
  """Returns a `ClassificationModel` of convolutions and poolings.

  At evaluation Lingvo weighs the means of batches by their size, which counts
  images of weight 0; here they have the sum of the weights.
  """
  view.ignore('it only selects summaries', 'add_image_summary')
  shape = getattr(view.get('input'), 'data_shape', None)
  if shape is None:
    view.issue('input', 'it has no data_shape, the shape of images')
    return None
  layers = _layers(view)
  drop = view.get('dropout_prob')
  softmax = registry.translate(view.child('softmax'))
  if layers is None or softmax is None:
    return None
  convs, pools = layers
  fc = registry.translate(
    view.child(
      'fc_tpl',
      input_dim=_flat_size(shape, convs, pools),
      output_dim=softmax.config.input_dims,
    )
  )
  if fc is None:
    return None
  network = ConvPoolNetwork.config(
    image_shape=tuple(shape),
    conv_tpls=[c.config for c in convs],
    pool_tpls=[p.config for p in pools],
    dropout_tpl=Dropout.config(keep_prob=1.0 - drop),
    fc_tpl=fc.config,
  )
  variables = VariableMap()
  for i, one in enumerate(convs):
    variables += one.variables.under(f'conv[{i}]', f'network/conv_{i}')
  variables += fc.variables.under('fc', 'network/fc')
  variables += softmax.variables.under('softmax', 'softmax')
  config = ClassificationModel.config(
    network_tpl=network,
    softmax_tpl=softmax.config,
    input_field='data',
    label_field='label',
  )
  return Translated(config, variables)


def _layers(
  view: ParamsView,
) -> tuple[list[Translated], list[Translated]] | None:
  """Returns the convolutions and poolings."""
  module = lingvo_runtime.module('lingvo.core.layers')
  kernels, windows = view.get('filter_shapes'), view.get('window_shapes')
  if len(kernels) != len(windows):
    view.issue(
      'window_shapes',
      f'{len(windows)} of them for {len(kernels)} filter_shapes',
    )
    return None
  normalizes = view.get('batch_norm')
  convs, pools = [], []
  for i, (kernel, window) in enumerate(zip(kernels, windows, strict=True)):
    conv = module.ConvLayer.Params().Set(
      filter_shape=kernel, filter_stride=(1, 1), batch_norm=normalizes
    )
    pool = module.PoolingLayer.Params().Set(
      window_shape=window, window_stride=window
    )
    convs.append(registry.translate(view.adopt(conv, f'conv[{i}]')))
    pools.append(registry.translate(view.adopt(pool, f'pool[{i}]')))
  return None if None in convs + pools else (convs, pools)


def _flat_size(shape, convs, pools) -> int:
  """Returns the number of values of an image after the last pooling."""
  height, width, channels = shape
  for conv, pool in zip(convs, pools, strict=True):
    window = pool.config.window_stride
    height, width = math.ceil(height / window[0]), math.ceil(width / window[1])
    channels = conv.config.filter_shape[-1]
  return height * width * channels
