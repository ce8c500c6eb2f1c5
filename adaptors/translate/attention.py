"""Translators of Lingvo's attention.

Shapes: D model dims, N heads, H dims of a head.
"""

from adaptors.translate import registry
from adaptors.translate.layers import base_fields, weight_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import (
  Chain,
  Reshape,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat.layers import attentions


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
  config.post_proj_tpl = config.proj_tpl.clone()
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
