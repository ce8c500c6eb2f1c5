"""Translators of RNMT+: bidirectional LSTMs, and a decoder with attention."""

import math

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.mt.model import translation_model
from adaptors.translate.mt.parts import (
  Part,
  model_fields,
  search_settings,
  smoothing,
)
from adaptors.translate.mt.source_attention import source_attention
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView, class_path
from pax_compat.config import Config
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
from pax_compat.layers.rnn.rnn_encoder_decoder import RnnEncoderDecoder
from pax_compat.layers.stochastics import Dropout

_ATTENTION_RNN = 'lingvo.core.rnn_layers.FRNNWithAttention'


@translates('lingvo.tasks.mt.model.RNMTModel')
def rnmt_model(view: ParamsView) -> Translated | None:
  return translation_model(view)


@translates('lingvo.tasks.punctuator.model.RNMTModel')
def punctuator_model(view: ParamsView) -> Translated | None:
  """Returns the same; it adds only the graph of an inference."""
  return translation_model(view)


@translates('lingvo.tasks.mt.encoder.MTEncoderBiRNN')
def encoder(view: ParamsView) -> Part | None:
  view.require('shared_emb', None)
  view.require('cc_schedule', None)
  view.require('is_transparent', False)
  view.ignore('is_transparent is off', 'transparent_merger_tpl')
  view.require('bidi_rnn_type', 'func')
  packed, size = view.get('packed_input'), view.get('lstm_cell_size')
  tokens = registry.translate(view.child('emb'))
  layers = []
  for i in range(view.get('num_lstm_layers')):
    inputs = 2 * size if i else view.params.emb.embedding_dim
    layers.append(registry.translate(_bidirectional(view, i, inputs)))
  projection, out_dim = None, view.get('encoder_out_dim')
  projects = out_dim != 2 * size
  if projects:
    projection = registry.translate(
      view.child(
        'proj_tpl',
        batch_norm=False,
        has_bias=True,
        activation='NONE',
        input_dim=2 * size,
        output_dim=out_dim,
      )
    )
  else:
    view.ignore('encoder_out_dim is that of the layers', 'proj_tpl')
  start, drop = view.get('residual_start'), view.get('dropout_prob')
  view.base_fields()
  if None in (tokens, *layers) or (projects and projection is None):
    return None
  variables = tokens.variables.under('emb', 'encoder_embedding')
  for i, layer in enumerate(layers):
    variables += layer.variables.under(f'rnn[{i}]', f'encoder_rnn_{i}')
  fields = dict(
    encoder_embedding_tpl=tokens.config,
    encoder_rnn_tpls=[layer.config for layer in layers],
    encoder_residual_start=start,
    encoder_dropout_tpl=Dropout.config(keep_prob=1.0 - drop),
  )
  if projection is not None:
    fields['encoder_proj_tpl'] = projection.config
    variables += projection.variables.under('final_proj', 'encoder_proj')
  return Part(RnnEncoderDecoder, fields, dict(packed_input=packed), variables)


def _bidirectional(view: ParamsView, i: int, inputs: int) -> ParamsView:
  """Returns the view of an encoder's layer."""
  module = lingvo_runtime.module('lingvo.core.rnn_layers')
  cell = view.get('lstm_tpl').Copy()
  cell.Set(
    num_input_nodes=inputs,
    num_output_nodes=view.params.lstm_cell_size,
    reset_cell_state=view.params.packed_input,
  )
  return view.adopt(
    module.BidirectionalFRNN.Params(),
    f'rnn[{i}]',
    packed_input=view.params.packed_input,
    fwd=cell.Copy().Set(name=f'L{i}_rnn_fwd'),
    bak=cell.Copy().Set(name=f'L{i}_rnn_bak'),
  )


@translates('lingvo.tasks.mt.decoder.MTDecoderV1')
def decoder(view: ParamsView) -> Part | None:
  packed = view.get('packed_input')
  search = _check_decoder(view)
  dims = view.get('rnn_cell_dim')
  attention = source_attention(_attention_view(view, dims))
  tokens = registry.translate(view.child('emb'))
  prob, drop = smoothing(view), view.get('dropout_prob')
  context = None if attention is None else attention.context_dim
  first = _cell(view, 'atten_rnn_cell_tpl', dims, context, first=True)
  layers = [
    registry.translate(_layer(view, i, dims, context))
    for i in range(1, view.get('rnn_layers'))
  ]
  if not layers:
    view.ignore('there is one layer', 'rnn_cell_tpl')
  feeds = view.get('feed_attention_context_vec_to_softmax')
  softmax = registry.translate(
    view.child('softmax', input_dim=dims + (context or 0) * feeds)
  )
  zero, start = view.get('use_zero_atten_state'), view.get('residual_start')
  view.base_fields()
  of_model = model_fields(view, search)
  if None in (attention, tokens, prob, first, softmax, *layers):
    return None
  fields = dict(
    decoder_embedding_tpl=tokens.config,
    attention_rnn_tpl=LstmFrnnWithAttention.config(
      cell_tpl=first.config,
      attention_tpl=attention.translated.config,
      zero_context=zero,
    ),
    decoder_rnn_tpls=[layer.config for layer in layers],
    decoder_residual_start=start,
    decoder_dropout_tpl=Dropout.config(keep_prob=1.0 - drop),
    softmax_tpl=softmax.config.set(label_smoothing_prob=prob),
    context_to_softmax=feeds,
  )
  variables = tokens.variables.under('emb', 'decoder_embedding')
  variables += first.variables.under(
    'frnn_with_atten.cell', 'attention_rnn/cell'
  )
  variables += attention.translated.variables.under(
    'frnn_with_atten.atten', 'attention_rnn/attention'
  )
  for i, layer in enumerate(layers):
    variables += layer.variables.under(f'frnn[{i}]', f'decoder_rnn_{i}')
  variables += softmax.variables.under('softmax', 'softmax')
  return Part(
    RnnEncoderDecoder,
    fields,
    dict(packed_input=packed),
    variables,
    of_model,
  )


def _check_decoder(view: ParamsView) -> Config | None:
  """Adds issues with fields of a decoder that are not translated.

  Returns:
    The settings of the beam search; see `search_settings`.
  """
  search = search_settings(view, has_coverage=True)
  for name in (
    'force_alignment',
    'sentence_boundary_token_id',
    'single_token_fast_decode',
    'use_sigmoid_activation',
  ):
    # Only Lingvo's own search has them.
    if view.get(name) and name != 'sentence_boundary_token_id':
      search = None
  view.require('cc_schedule', None)
  view.require('emb_projection_tpl', None)
  view.require('use_prev_atten_ctx', False)
  view.require('zero_token_embs_first_time_step', False)
  view.require('unidi_rnn_type', 'func')
  if class_path(view.get('atten_rnn_cls')) != _ATTENTION_RNN:
    view.issue('atten_rnn_cls', f'expected {_ATTENTION_RNN}')
  p = view.params
  if class_path(p.softmax.cls) == 'lingvo.core.layers.SharedSoftmaxLayer':
    view.issue('softmax', 'an embedding that the softmax shares')
  if p.emb.vocab_size != p.softmax.num_classes:
    view.issue('emb.vocab_size', f'expected {p.softmax.num_classes}')
  if p.packed_input and not p.use_zero_atten_state:
    view.issue('packed_input', 'in Lingvo it needs use_zero_atten_state')
  return search


def _attention_view(view: ParamsView, dims: int) -> ParamsView:
  """Returns the view of the attention, as the decoder fills it."""
  source = view.get('source_dim')
  template = view.get('attention').Copy()
  if template.params_init is None:
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    template.params_init = py_utils.WeightInit.Gaussian(
      1 / math.sqrt(source + dims)
    )
  return view.adopt(
    template,
    'attention',
    dtype=view.params.dtype,
    source_dim=source,
    query_dim=dims,
    packed_input=view.params.packed_input,
    atten_dropout_deterministic=True,
  )


def _cell(
  view: ParamsView, field: str, dims: int, context: int | None, *, first: bool
) -> Translated | None:
  """Translates the cell of the first layer, which gets embedded tokens."""
  inputs = view.params.emb.embedding_dim if first else dims
  return registry.translate(
    view.child(
      field,
      dtype=view.params.dtype,
      num_input_nodes=inputs + (context or 0),
      num_output_nodes=dims,
      reset_cell_state=view.params.packed_input,
    )
  )


def _layer(
  view: ParamsView, i: int, dims: int, context: int | None
) -> ParamsView:
  """Returns the view of a further layer."""
  module = lingvo_runtime.module('lingvo.core.rnn_layers')
  cell = view.get('rnn_cell_tpl').Copy()
  cell.Set(
    name=f'rnn{i}',
    dtype=view.params.dtype,
    num_input_nodes=dims + (context or 0),
    num_output_nodes=dims,
    reset_cell_state=view.params.packed_input,
  )
  return view.adopt(
    module.FRNN.Params(),
    f'frnn[{i - 1}]',
    cell=cell,
    packed_input=view.params.packed_input,
  )
