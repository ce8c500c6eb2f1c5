"""Translates the attention of GShard's builders.

Shapes: D model dims, N heads, H dims of a head.
"""

from typing import Any

from adaptors.translate.gshard import gshard_mesh
from adaptors.translate.registry import Translated
from adaptors.translate.variables import (
  Identity,
  Reshape,
  Variable,
  VariableMap,
)
from pax_compat.config import Config
from pax_compat.layers.attentions.attention_projections import (
  AttentionProjection,
)
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.attentions.relative_bias import RelativeBias


def attention(builder: Any, *, relative: bool, bidirectional: bool):
  """Returns the attention with its projections.

  Args:
    builder: a `gshard_builder.Builder`.
    relative: whether it has a relative bias.
    bidirectional: whether the bias distinguishes later from earlier tokens.

  Returns:
    A `Translated`. Queries have either learned scales or none; the initial
    values of their weights include the usual scale.
  """
  one_head = builder.attention_num_memory_heads == 1
  cls = MultiQueryDotProductAttention if one_head else DotProductAttention
  cap = 0.0 if one_head else float(builder.atten_logit_cap or 0.0)
  scale = builder.softplus_scale_q
  config = cls.config(
    hidden_dim=builder.attention_num_heads * builder.attention_key_value_dim,
    num_heads=builder.attention_num_heads,
    dim_per_head=builder.attention_key_value_dim,
    use_bias=False,
    internal_enable_query_scale=scale,
    internal_enable_per_dim_scale=scale,
    internal_gshard_gaussian_init=True,
    output_proj_use_nhd_shape=True,
    atten_dropout_prob=builder.attention_dropout_prob,
    atten_logit_cap=max(cap, 0.0),
    cap_before_bias=cap > 0 and relative,
    attention_extra_logit=builder.attention_extra_logit,
    proj_tpl=AttentionProjection.config(
      attention_combine_dims=builder.attention_combine_dims
    ),
  )
  if relative:
    config.relative_bias_tpl = _relative_bias(builder, bidirectional)
  _split(builder, config, one_head)
  return Translated(config, _variables(builder, one_head, relative))


def _relative_bias(builder: Any, bidirectional: bool) -> Config:
  builder.view.require('relative_attention_type', 'bias', 'bias_shared')
  return RelativeBias.config(
    use_length_as_position=(
      builder.relative_attention_use_universal_1d_position
    ),
    relative_attention_num_buckets=builder.relative_attention_num_buckets,
    relative_attention_max_distance=builder.relative_attention_max_distance,
    bidirectional=bidirectional,
  )


def _split(builder: Any, config: Config, one_head: bool):
  """Sets the sharding."""
  weights = config.weight_split_dims_mapping
  weights.proj = gshard_mesh.split(builder, 'mhd_w_split', 3)
  if one_head and weights.proj is not None:
    dims, heads, per_head = weights.proj
    # This weight has one dimension instead of heads and dims of a head.
    together = builder.attention_combine_dims and heads
    weights.proj_headless = [dims, per_head or together or None]
  config.activation_split_dims_mapping.set(
    blnh=gshard_mesh.split(builder, 'qkv_split', 4),
    bld=gshard_mesh.split(builder, 'blm_split', 3),
  )


def _variables(builder: Any, one_head: bool, relative: bool) -> VariableMap:
  variables = [
    Variable(('w.wq',), 'query/w'),
    Variable(('w.wo',), 'post/w'),
  ]
  shape = Identity()
  if one_head and not builder.attention_combine_dims:
    dims, per_head = builder.model_dim, builder.attention_key_value_dim
    shape = Reshape((dims, 1, per_head), (dims, per_head))
  variables += [
    Variable((f'w.w{theta}',), f'{jax}/w', shape)
    for theta, jax in (('k', 'key'), ('v', 'value'))
  ]
  if builder.softplus_scale_q:
    theta = 'attention.per_dim_scale.per_dim_scale'
    variables.append(Variable((theta,), 'per_dim_scale/per_dim_scale'))
  if relative and builder.relative_attention_type == 'bias':
    variables.append(Variable(('wrb.wrb',), 'relative_bias/wrb'))
  return VariableMap(variables)
