"""Translators of Lingvo's convolutions, poolings and batch norm of images."""

from adaptors import lingvo_runtime
from adaptors.translate import activations, registry
from adaptors.translate.layers.basic_layers import same_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers import poolings
from pax_compat.layers.convolutions import conv
from pax_compat.layers.normalizations import norm_layers

_STATISTICS = ('moving_mean', 'moving_variance')


@translates('lingvo.core.bn_layers.BatchNormLayer')
def batch_norm(view: ParamsView) -> Translated:
  view.get('params_init')  # All start as constants.
  view.ignore('statistics are those of the global batch', _ACROSS)
  view.ignore('the result is the same', 'use_fused_batch_norm_for_eval')
  view.require('gamma_zero_init', False)
  view.require('gamma_one_init', False)
  by_average = view.get('use_moving_avg_in_training')
  config = norm_layers.BatchNorm.config(
    dim=view.get('dim'),
    decay=view.get('decay'),
    use_moving_avg_in_training=by_average,
    set_padded_output_to_zero=view.get('set_padded_output_to_zero'),
    force_eval_mode=view.get('freeze_bn_stats'),
  )
  trained = () if by_average else ('beta', 'gamma')
  collections = ['moving_vars', 'BatchNormLayer_vars']
  if view.get('add_stats_to_moving_average_variables'):
    collections.append('moving_average_variables')
  variables = [Variable((name,), name) for name in trained]
  variables += [
    Variable((name,), name, is_trainable=False, collections=tuple(collections))
    for name in _STATISTICS
  ]
  return Translated(config, VariableMap(variables))


_ACROSS = 'enable_cross_replica_sum_on_tpu'


@translates('lingvo.core.layers.Conv2DLayer')
@translates('lingvo.core.layers.ConvNN2DLayer')
def conv_2d(view: ParamsView) -> Translated | None:
  """Returns a `ConvBNAct`: a convolution of images, without paddings."""
  view.require('conv_last', False)
  view.require('bn_fold_weights', None, False)
  view.ignore('quantization is off', 'disable_activation_quantization')
  if class_name(view) == 'ConvNN2DLayer':
    view.require('causal_convolution', False)
  fields = dict(
    filter_shape=tuple(view.get('filter_shape')),
    filter_stride=tuple(view.get('filter_stride')),
    dilations=tuple(view.get('dilation_rate')),
    is_causal=view.get('causal_convolution'),
    bias=view.get('bias'),
    kernel_init=same_init(view, 'params_init'),
    tf_equivalent_padding=True,
    activation_tpl=activations.layer(view, 'activation'),
    batch_norm_tpl=None,
  )
  variables = VariableMap([Variable(('w',), 'w')])
  if fields['bias']:
    variables += VariableMap([Variable(('b',), 'b')])
  if view.get('weight_norm'):
    fields['weight_norm_tpl'] = norm_layers.WeightNormL2.config()
    variables += VariableMap([Variable(('g',), 'weight_norm/g')])
  decay = view.get('bn_decay')
  if view.get('batch_norm'):
    norm = registry.translate(
      view.adopt(
        _batch_norm_params(),
        'bn',
        dim=fields['filter_shape'][-1],
        decay=decay,
        params_init=view.params.params_init,
      )
    )
    if norm is None:
      return None
    fields['batch_norm_tpl'] = norm.config
    variables += norm.variables.under('bn', 'bn')
  return Translated(conv.ConvBNAct.config(**fields), variables)


def class_name(view: ParamsView) -> str:
  return view.params.cls.__name__


def _batch_norm_params():
  """Returns Params of a batch norm with Lingvo's defaults."""
  layers = lingvo_runtime.module('lingvo.core.bn_layers')
  return layers.BatchNormLayer.Params()


@translates('lingvo.core.layers.PoolingLayer')
def pooling(view: ParamsView) -> Translated:
  return Translated(
    poolings.Pooling.config(
      window_shape=tuple(view.get('window_shape')),
      window_stride=tuple(view.get('window_stride')),
      pooling_type=view.get('pooling_type'),
      padding=view.get('padding_algorithm'),
    )
  )
