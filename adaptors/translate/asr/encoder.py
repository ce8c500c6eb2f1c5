"""Translator of Lingvo's speech encoder: convolutions and recurrent layers."""

import math

from adaptors import lingvo_runtime
from adaptors.translate import activations, registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat import config as config_lib
from pax_compat.layers.convolutions.conv import ConvBNActWithPadding
from pax_compat.layers.speech.projections import PaddedProjection
from pax_compat.layers.speech.recurrent_encoder import RecurrentSpeechEncoder

# Lingvo adds zeros to the first recurrent layer's input, up to a multiple.
_MULTIPLE = 16


@translates('lingvo.tasks.asr.encoder.AsrEncoder')
def encoder(view: ParamsView) -> Translated | None:
  """Returns a `RecurrentSpeechEncoder`."""
  _check(view)
  convs, input_dims = _convolutions(view)
  size, count = view.get('lstm_cell_size'), view.get('num_lstm_layers')
  rnns = [
    registry.translate(_bidirectional(view, i, 2 * size if i else input_dims))
    for i in range(count)
  ]
  projects, after_last = (
    view.get('project_lstm_output'),
    view.get('project_after_last_lstm'),
  )
  projs = []
  if projects:
    number = count if after_last else count - 1
    projs = [_projection(view, 2 * size) for _ in range(number)]
  if not projs:
    view.ignore('there are no projections', 'proj_tpl')
  start, stride = view.get('residual_start'), view.get('residual_stride')
  if None in (*convs, *rnns, *projs):
    return None
  config = RecurrentSpeechEncoder.config(
    pad_steps=view.get('pad_steps'),
    conv_tpls=[one.config for one in convs],
    rnn_input_dims=input_dims,
    rnn_tpls=[one.config for one in rnns],
    residual_start=start,
    residual_stride=stride,
    proj_tpls=[one.config for one in projs],
  )
  variables = VariableMap()
  for kind, layers in (('conv', convs), ('rnn', rnns), ('proj', projs)):
    for i, one in enumerate(layers):
      variables += one.variables.under(f'{kind}[{i}]', f'{kind}_{i}')
  return Translated(config, variables)


def _check(view: ParamsView):
  """Adds issues with fields that are not translated."""
  view.require('use_specaugment', False)
  view.ignore('use_specaugment is off', 'specaugment_network')
  view.require('highway_skip', False)
  view.ignore('highway_skip is off', 'highway_skip_tpl')
  view.require('num_conv_lstm_layers', 0)
  view.ignore(
    'the encoder lacks these layers', 'conv_lstm_tpl', 'after_conv_lstm_cnn_tpl'
  )
  view.require('bidi_rnn_type', 'func')
  view.require('extra_per_layer_outputs', False)
  view.require('layer_index_before_stacking', -1)
  view.ignore('the layer is left out', 'stacking_layer_tpl')
  view.require('final_proj', None)


def _convolutions(
  view: ParamsView,
) -> tuple[list[Translated | None], int]:
  """Returns the convolutions, and the dims of the first recurrent layer."""
  shapes, strides = (
    view.get('conv_filter_shapes'),
    view.get('conv_filter_strides'),
  )
  view.require('num_cnn_layers', len(shapes))
  *_, bins, channels = view.get('input_shape')
  convs = []
  for i, (shape, stride) in enumerate(zip(shapes, strides, strict=True)):
    own = view.adopt(
      view.get('cnn_tpl'),
      f'cnn_tpl[{i}]',
      filter_shape=shape,
      filter_stride=stride,
    )
    own.require('dilation_rate', (1, 1), [1, 1])
    conv = registry.translate(own)
    if conv is not None:
      config = ConvBNActWithPadding.config(
        **config_lib.set_fields(conv.config), compat_with_lingvo=True
      )
      conv = Translated(config, conv.variables)
    convs.append(conv)
    bins, channels = math.ceil(bins / stride[1]), shape[-1]
  return convs, math.ceil(bins * channels / _MULTIPLE) * _MULTIPLE


def _bidirectional(view: ParamsView, i: int, inputs: int) -> ParamsView:
  """Returns the view of a recurrent layer."""
  module = lingvo_runtime.module('lingvo.core.rnn_layers')
  cell = view.get('lstm_tpl').Copy()
  cell.Set(num_input_nodes=inputs, num_output_nodes=view.params.lstm_cell_size)
  return view.adopt(
    module.BidirectionalFRNN.Params(),
    f'rnn[{i}]',
    fwd=cell.Copy().Set(name=f'fwd_rnn_L{i}'),
    bak=cell.Copy().Set(name=f'bak_rnn_L{i}'),
  )


def _projection(view: ParamsView, dims: int) -> Translated | None:
  """Returns the projection after a recurrent layer."""
  own = view.child('proj_tpl', input_dim=dims, output_dim=dims)
  activation = activations.layer(own, 'activation')
  own.require('bn_fold_weights', None, False)
  normalizes, norm = own.get('batch_norm'), None
  if normalizes:
    norm = registry.translate(own.child('bn_params', dim=dims))
  # All other fields are those of a projection alone.
  linear = registry.translate(
    view.child(
      'proj_tpl',
      input_dim=dims,
      output_dim=dims,
      batch_norm=False,
      bn_params=own.defaults().bn_params,
      bn_fold_weights=None,
      activation='NONE',
    )
  )
  if linear is None or (normalizes and norm is None):
    return None
  config = PaddedProjection.config(
    input_dims=dims,
    output_dims=dims,
    projection_tpl=linear.config,
    batch_norm_tpl=None if norm is None else norm.config,
    activation_tpl=activation,
  )
  variables = linear.variables.under('', 'projection')
  if norm is not None:
    variables += norm.variables.under('bn', 'bn')
  return Translated(config, variables)
