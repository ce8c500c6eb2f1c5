"""Translator of Lingvo's speech decoder: recurrent layers with attention."""

import dataclasses

from adaptors.translate import registry
from adaptors.translate.mt.parts import read_search, smoothing
from adaptors.translate.mt.source_attention import source_attention
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat.layers.rnn.attention_decoder import RnnAttentionDecoder
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
from pax_compat.layers.rnn.recurrent import LstmFrnn
from pax_compat.layers.stochastics import Dropout

_ASR = 'lingvo.tasks.asr'
# By field: the class that adds nothing.
_NOTHING = {
  'fusion': f'{_ASR}.fusion.NullFusion',
  'fusion.lm': 'lingvo.tasks.lm.layers.NullLm',
  'contextualizer': f'{_ASR}.contextualizer_base.NullContextualizer',
}


@translates(f'{_ASR}.decoder.AsrDecoder')
def decoder(view: ParamsView) -> Translated | None:
  """Returns a `RnnAttentionDecoder`."""
  _check(view)
  dims = view.get('emb_dim')
  tokens = _embedding(view, dims)
  prob, drop = smoothing(view), view.get('dropout_prob')
  context = view.get('atten_context_dim') or view.get('source_dim')
  cells = _cells(view, dims, context)
  outputs = cells[-1].params.num_output_nodes
  attention = source_attention(_attention(view, cells[0]))
  layers = [registry.translate(cell) for cell in cells]
  uses_context = view.get('softmax_uses_attention')
  softmax = registry.translate(
    view.child(
      'softmax',
      dtype=view.params.dtype,
      input_dim=outputs + context * uses_context,
    )
  )
  view.get('per_token_avg_loss')  # `asr_model` reads it.
  if None in (tokens, prob, attention, softmax, *layers):
    return None
  if attention.context_dim != context:
    view.issue(
      'atten_context_dim',
      f'the contexts have {attention.context_dim} dims; expected {context}',
    )
  first, *others = layers
  # Lingvo counts from 1; 0 stands for no residuals.
  start = view.params.residual_start
  config = RnnAttentionDecoder.config(
    decoder_embedding_tpl=tokens.config,
    attention_rnn_tpl=LstmFrnnWithAttention.config(
      cell_tpl=first.config, attention_tpl=attention.translated.config
    ),
    decoder_rnn_tpls=[
      LstmFrnn.config(cell_tpl=layer.config) for layer in others
    ],
    decoder_residual_start=start - 1 if start > 0 else len(layers),
    decoder_dropout_tpl=Dropout.config(keep_prob=1.0 - drop),
    softmax_tpl=softmax.config.set(label_smoothing_prob=prob),
    context_to_softmax=uses_context,
  )
  variables = tokens.variables.under('emb', 'decoder_embedding')
  variables += first.variables.under('rnn_cell[0]', 'attention_rnn/cell')
  variables += attention.translated.variables.under(
    'atten', 'attention_rnn/attention'
  )
  for i, layer in enumerate(others):
    variables += layer.variables.under(
      f'rnn_cell[{i + 1}]', f'decoder_rnn_{i}/cell'
    )
  return Translated(
    config, variables + softmax.variables.under('softmax', 'softmax')
  )


def _embedding(view: ParamsView, dims: int) -> Translated | None:
  """Returns the embedding, whose gradient is dense in a functional loop.

  Lingvo passes all weights to that loop, and the loop returns gradients of all.
  """
  tokens = registry.translate(
    view.child('emb', dtype=view.params.dtype, embedding_dim=dims)
  )
  if tokens is None or view.get('use_while_loop_based_unrolling'):
    return tokens
  dense = VariableMap(
    dataclasses.replace(v, is_sparse=False) for v in tokens.variables
  )
  return Translated(tokens.config.set(sparse_gradients=False), dense)


def _check(view: ParamsView):
  """Adds issues with fields that are not translated."""
  read_search(view)
  view.ignore(
    'without a fused language model a search gets log-probabilities anyway',
    'use_unnormalized_logits_as_log_probs',
  )
  view.require('packed_input', False)
  view.require('teacher_forcing', True)
  view.require('min_ground_truth_prob', 1.0)
  view.ignore(
    'scheduled sampling is off', 'min_prob_step', 'prob_decay_start_step'
  )
  view.require('logit_types', {'logits': 1.0})
  view.require('token_normalized_per_seq_loss', False)
  view.require('focal_loss_alpha', None)
  view.require('focal_loss_gamma', None, 0.0)
  view.require('adapter_task_id_field', None)
  view.ignore('adapter_task_id_field is not set', 'adapter_layer_tpl')
  view.require('confidence', None)
  view.ignore('confidence is not computed', 'lm_for_confidence')
  view.ignore('the result is the same', 'parallel_iterations')
  view.ignore('it only selects summaries', 'attention_plot_font_properties')
  p = view.params
  if p.use_while_loop_based_unrolling and not p.softmax_uses_attention:
    view.issue(
      'softmax_uses_attention',
      'in Lingvo it needs use_while_loop_based_unrolling to be False',
    )
  for name, nothing in _NOTHING.items():
    view.get(name.partition('.')[0])
    found = class_path(p.Get(name).cls)
    if found != nothing:
      view.issue(name, f'{found} is not translated, only {nothing}')
      break  # Another fusion may have no `lm`.
  if p.emb.vocab_size != p.softmax.num_classes:
    view.issue('emb.vocab_size', f'expected {p.softmax.num_classes}')


def _cells(view: ParamsView, dims: int, context: int) -> list[ParamsView]:
  """Returns the views of the cells.

  Args:
    view: of the decoder.
    dims: of embedded tokens.
    context: dims of a context, which each cell gets beside its other input.
  """
  given, count = view.get('rnn_cell_tpl'), view.get('rnn_layers')
  nodes, hidden = view.get('rnn_cell_dim'), view.get('rnn_cell_hidden_dim')
  view.get('residual_start')
  if not isinstance(given, list | tuple):
    given = [given] * count
  views = []
  for i, template in enumerate(given[:count]):
    # Lingvo gives it two inputs, which are one here.
    fields = dict(inputs_arity=1, num_input_nodes=dims + context)
    if nodes > 0:
      fields['num_output_nodes'] = nodes
    if hidden > 0:
      fields['num_hidden_nodes'] = hidden
    path = f'rnn_cell_tpl[{i}]'
    own = view.adopt(template, path, dtype=view.params.dtype, **fields)
    views.append(own)
    dims = own.params.num_output_nodes
  if len(views) != count or not views:
    view.issue(
      'rnn_cell_tpl', f'{len(given)} templates for rnn_layers, {count}'
    )
  return views


def _attention(view: ParamsView, first: ParamsView) -> ParamsView:
  """Returns the view of the attention.

  Args:
    view: of the decoder.
    first: of the cell whose outputs are the queries.
  """
  given = view.params.attention
  return view.child(
    'attention',
    dtype=view.params.dtype,
    source_dim=given.source_dim or view.params.source_dim,
    query_dim=given.query_dim or first.params.num_output_nodes,
  )
