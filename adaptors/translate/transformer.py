"""Translators of Lingvo's Transformer layers.

Shapes: D model dims.
"""

from adaptors.translate import registry
from adaptors.translate.layers import activation, base_fields
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView
from pax_compat.layers import transformers
from pax_compat.layers.transformer_feed_forward import TransformerFeedForward


def _residual_fields(view: ParamsView) -> dict | None:
  """Returns how a sub-layer normalises and what its residual drops."""
  drop = view.get('residual_dropout_prob')
  keep = registry.translate(
    view.child('residual_dropout_tpl', keep_prob=1.0 - drop)
  )
  if keep is None:
    return None
  return dict(
    norm_policy='pre' if view.get('pre_layer_norm') else 'post_skip',
    residual_dropout_prob=1.0 - keep,
  )


@translates('lingvo.core.layers_with_attention.TransformerAttentionLayer')
def transformer_attention(view: ParamsView) -> Translated | None:
  """`TransformerAttentionLayer`: a `Transformer` without a feed-forward."""
  dims = view.get('source_dim')
  view.require('context_dim', 0, dims)
  view.require('residual_function', None)
  view.require('memory_augmentation', False)
  view.require('packed_input', False)
  masked = view.get('is_masked')
  if masked:
    view.require('mask_type', 'future')
  view.ignore('mask_type is not "ngram"', 'mask_ngram_order')
  view.get('params_init')  # For children, which take it over.
  atten = registry.translate(
    view.child(
      'atten_tpl',
      source_dim=dims,
      query_dim=dims,
      hidden_dim=view.get('atten_hidden_dim') or dims,
      context_dim=dims,
      ctx_post_proj_dim=dims,
      num_attention_heads=view.get('num_attention_heads'),
      atten_dropout_prob=view.get('atten_dropout_prob'),
      packed_input=view.get('packed_input'),
    )
  )
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  residual = _residual_fields(view)
  fields = dict(
    mask_self_attention=masked,
    residual_from_normalized=not view.get('add_unnormalized_input'),
    **base_fields(view),
  )
  if None in (atten, norm, residual):
    return None
  config = transformers.Transformer.config(
    input_dims=dims,
    ln_tpl=norm.config,
    tr_atten_tpl=atten.config,
    tr_fflayer_tpl=None,
    **residual,
    **fields,
  )
  return Translated(
    config,
    norm.variables.under('layer_norm', 'layer_norm')
    + atten.variables.under('atten', 'self_attention'),
  )


@translates('lingvo.core.layers_with_attention.TransformerFeedForwardLayer')
def transformer_feed_forward(view: ParamsView) -> Translated | None:
  """`TransformerFeedForwardLayer`: feed-forward with its residual."""
  dims, hidden = view.get('input_dim'), view.get('hidden_dim')
  view.require('output_dim', 0, dims)
  view.require('num_tasks', 0)
  view.require('add_skip_connection', True)
  view.require('primer_hybrid_norm', False)
  view.require('residual_droppath_prob', 0.0)
  view.require('memory_augmentation', False)
  view.require('use_block_diagonal_matmul_pl', [])
  view.ignore('no block-diagonal products', 'num_blocks_pl')
  view.ignore('input and output dims are the same', 'res_proj_tpl')
  view.get('params_init')  # For children, which take it over.
  relu_drop = view.get('relu_dropout_prob')
  dropout = view.params.fflayer_tpl.dropout.cls.Params
  layers = registry.translate(
    view.child(
      'fflayer_tpl',
      input_dim=dims,
      activation=[view.get('activation'), 'NONE'],
      hidden_layer_dims=[hidden, dims],
      dropout=[
        dropout().Set(keep_prob=1.0 - relu_drop),
        dropout().Set(keep_prob=1.0),
      ],
    )
  )
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  residual = _residual_fields(view)
  fields = dict(
    activation_tpl=activation(view, 'activation', view.get('activation')),
    residual_weight=view.get('residual_weight'),
    **base_fields(view),
  )
  if None in (layers, norm, residual):
    return None
  (first, keep_inner), (second, _) = layers
  config = TransformerFeedForward.config(
    input_dims=dims,
    hidden_dims=hidden,
    relu_dropout_prob=1.0 - keep_inner,
    ln_tpl=norm.config,
    fflayer_tpl=first.config,
    fflayer2_tpl=second.config,
    **residual,
    **fields,
  )
  return Translated(
    config,
    norm.variables.under('layer_norm', 'layer_norm')
    + first.variables.under('fflayer.fc[0]', 'ffn_layer1')
    + second.variables.under('fflayer.fc[1]', 'ffn_layer2'),
  )


@translates('lingvo.core.layers_with_attention.TransformerLayer')
def transformer_layer(view: ParamsView) -> Translated | None:
  """`TransformerLayer`: self-attention, then feed-forward."""
  dims = view.get('source_dim')
  view.require('output_dim', 0, dims)
  view.require('has_aux_atten', False)
  view.require('is_decoder', False)
  view.require('packed_input', False)
  view.ignore(
    'has_aux_atten is off', 'tr_aux_atten_tpl', 'num_aux_atten_post_proj'
  )
  view.get('params_init')  # For children, which take it over.
  atten = registry.translate(
    view.child(
      'tr_atten_tpl',
      source_dim=dims,
      packed_input=view.get('packed_input'),
      is_masked=view.get('mask_self_atten'),
    )
  )
  feed_forward = registry.translate(
    view.child('tr_fflayer_tpl', input_dim=dims, output_dim=0)
  )
  norm_tpl = view.get('tr_post_ln_tpl')
  norm = None
  if norm_tpl is not None:
    norm = registry.translate(view.child('tr_post_ln_tpl', input_dim=dims))
  fields = base_fields(view)
  if None in (atten, feed_forward) or (norm_tpl and norm is None):
    return None
  # The halves' own parts have their base fields from their own Params.
  config = atten.config.set(
    tr_fflayer_tpl=feed_forward.config,
    output_norm_tpl=norm and norm.config,
    **fields,
  )
  variables = atten.variables.under('self_atten', '')
  variables += feed_forward.variables.under('fflayer', 'ff_layer')
  if norm is not None:
    variables += norm.variables.under('layer_norm', 'output_norm')
  return Translated(config, variables)
