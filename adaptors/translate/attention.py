"""Translators of Lingvo's attention and of its Transformer layers.

Shapes: D model dims, N heads, H dims of a head.
"""

from adaptors.translate import registry
from adaptors.translate.layers import activation, base_fields, weight_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import (
  Chain,
  Reshape,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat.layers import attentions, transformers


@translates('lingvo.core.attention.DotProductAttention')
def inner_attention(view: ParamsView) -> dict:
  """`DotProductAttention`, the part of the heads: returns fields to set."""
  base_fields(view)
  view.get('params_init')
  for name in ('source_dim', 'query_dim', 'hidden_dim'):
    view.get(name)
  view.require('packed_input', False)
  view.require('atten_dropout_deterministic', False)
  cap = view.get('atten_logit_cap')
  return dict(
    internal_enable_per_dim_scale=view.get('use_dim_scale'),
    atten_dropout_prob=view.get('atten_dropout_prob'),
    atten_logit_cap=0.0 if cap is None else cap,
  )


@translates('lingvo.core.attention.MultiHeadedAttention')
def multi_headed_attention(view: ParamsView) -> Translated | None:
  """`MultiHeadedAttention` with all of its projections."""
  dims, hidden = view.get('source_dim'), view.get('hidden_dim')
  heads, use_bias = view.get('num_attention_heads'), view.get('use_bias')
  view.require('query_dim', dims)
  view.require('context_dim', dims)
  view.require('ctx_post_proj_dim', dims)
  view.require('use_source_vec_as_attention_value', False)
  for name in (
    'enable_source_proj',
    'enable_query_proj',
    'enable_ctx_pre_proj',
    'enable_ctx_post_proj',
  ):
    view.require(name, True)
  view.require('num_post_proj', 1)
  view.require('proj_init', 'default')
  view.require('packed_input', False)
  view.ignore('it only selects what is reported', 'attention_head_prob_index')
  if hidden % heads:
    view.issue(
      'num_attention_heads', f'{heads} does not divide hidden_dim, {hidden}'
    )
  per_head = hidden // heads
  inner = registry.translate(
    view.child(
      'inner_atten_params',
      source_dim=per_head,
      query_dim=per_head,
      hidden_dim=per_head,
      atten_dropout_prob=view.get('atten_dropout_prob'),
      atten_dropout_deterministic=view.get('atten_dropout_deterministic'),
      packed_input=view.get('packed_input'),
      use_dim_scale=view.get('enable_per_dim_scale'),
    )
  )
  inits = weight_init(view, (dims, hidden)), weight_init(view, (hidden, dims))
  fields = base_fields(view)
  if inner is None:
    return None
  config = attentions.DotProductAttention.config(
    input_dim=dims,
    hidden_dim=hidden,
    num_heads=heads,
    use_bias=use_bias,
    **inner,
    **fields,
  )
  config.proj_tpl.params_init, config.post_proj_tpl.params_init = inits
  return Translated(config, _attention_variables(dims, heads, per_head, config))


def _attention_variables(dims, heads, per_head, config) -> VariableMap:
  hidden = heads * per_head
  split = Reshape((dims, hidden), (dims, heads, per_head))
  merged = Chain(
    (Transpose((1, 0)), Reshape((dims, hidden), (dims, heads, per_head)))
  )
  variables = []
  for theta, jax in (
    ('source_proj', 'key'),
    ('query_proj', 'query'),
    ('ctx_proj', 'value'),
  ):
    variables.append(Variable((theta,), f'{jax}/w', split))
    if config.use_bias:
      shape = Reshape((hidden,), (heads, per_head))
      variables.append(Variable((f'{theta}_b',), f'{jax}/b', shape))
  variables.append(Variable(('ctx_post_proj',), 'post/w', merged))
  if config.use_bias:
    variables.append(Variable(('ctx_post_proj_b',), 'post/b'))
  if config.internal_enable_per_dim_scale:
    variables.append(
      Variable(('atten.per_dim_scale',), 'per_dim_scale/per_dim_scale')
    )
  return VariableMap(variables)


def _residual_keep_prob(view: ParamsView) -> float | None:
  """Returns with what probability an element of a sub-layer's output stays."""
  drop = view.get('residual_dropout_prob')
  return registry.translate(
    view.child('residual_dropout_tpl', keep_prob=1.0 - drop)
  )


@translates('lingvo.core.layers_with_attention.TransformerAttentionLayer')
def transformer_attention(view: ParamsView) -> Translated | None:
  """`TransformerAttentionLayer`: self-attention with its residual."""
  dims = view.get('source_dim')
  hidden = view.get('atten_hidden_dim') or dims
  view.require('context_dim', 0, dims)
  view.require('residual_function', None)
  view.require('memory_augmentation', False)
  view.require('packed_input', False)
  masked = view.get('is_masked')
  if masked:
    view.require('mask_type', 'future')
  view.ignore('mask_type is not "ngram"', 'mask_ngram_order')
  view.get('params_init')  # For children, which take it over.
  heads = view.get('num_attention_heads')
  atten = registry.translate(
    view.child(
      'atten_tpl',
      source_dim=dims,
      query_dim=dims,
      hidden_dim=hidden,
      context_dim=dims,
      ctx_post_proj_dim=dims,
      num_attention_heads=heads,
      atten_dropout_prob=view.get('atten_dropout_prob'),
      packed_input=view.get('packed_input'),
    )
  )
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  keep = _residual_keep_prob(view)
  fields = dict(
    use_pre_norm=view.get('pre_layer_norm'),
    residual_from_normalized=not view.get('add_unnormalized_input'),
    **base_fields(view),
  )
  if None in (atten, norm, keep):
    return None
  config = transformers.TransformerAttention.config(
    input_dims=dims,
    hidden_dims=hidden,
    num_heads=heads,
    causal=masked,
    residual_dropout_prob=view.get('residual_dropout_prob'),
    ln_tpl=norm.config,
    atten_tpl=atten.config,
    **fields,
  )
  return Translated(
    config,
    norm.variables.under('layer_norm', 'layer_norm')
    + atten.variables.under('atten', 'atten'),
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
  keep = _residual_keep_prob(view)
  fields = dict(
    use_pre_norm=view.get('pre_layer_norm'),
    activation_tpl=activation(view, 'activation', view.get('activation')),
    residual_weight=view.get('residual_weight'),
    **base_fields(view),
  )
  if layers is None or None in (norm, keep):
    return None
  (first, keep_hidden), (second, _) = layers
  config = transformers.TransformerFeedForward.config(
    input_dims=dims,
    hidden_dims=hidden,
    has_bias=first.config.has_bias,
    relu_dropout_prob=1.0 - keep_hidden,
    residual_dropout_prob=view.get('residual_dropout_prob'),
    ln_tpl=norm.config,
    fflayer1_tpl=first.config,
    fflayer2_tpl=second.config,
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
  masked = view.get('mask_self_atten')
  atten = registry.translate(
    view.child(
      'tr_atten_tpl',
      source_dim=dims,
      packed_input=view.get('packed_input'),
      is_masked=masked,
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
  config = transformers.Transformer.config(
    input_dims=dims,
    hidden_dims=feed_forward.config.hidden_dims,
    num_heads=atten.config.num_heads,
    atten_hidden_dims=atten.config.hidden_dims,
    causal=masked,
    tr_atten_tpl=atten.config,
    tr_fflayer_tpl=feed_forward.config,
    output_norm_tpl=norm and norm.config,
    **fields,
  )
  variables = atten.variables.under(
    'self_atten', 'self_attention'
  ) + feed_forward.variables.under('fflayer', 'ff_layer')
  if norm is not None:
    variables += norm.variables.under('layer_norm', 'output_norm')
  return Translated(config, variables)
