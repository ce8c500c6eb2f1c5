"""Translators of Lingvo's batch-major attention.

Shapes: D model dims, N heads, H dims of a head.
"""

from collections.abc import Mapping

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import same_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import (
  Chain,
  Reshape,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.layers.attentions import attention_projections, dot_product
from pax_compat.layers.attentions.flexible_attention import FlexibleAttention
from pax_compat.layers.embeddings.rotary_embedding import (
  RotaryPositionalEmbedding,
)


def on_one_device(view: ParamsView):
  """Reads the sharding fields; a device mesh is not translated."""
  view.require('device_mesh', None)
  view.ignore(
    'device_mesh is not set',
    'weight_split_dims_mapping',
    'activation_split_dims_mapping',
  )


@translates('lingvo.core.batch_major_attention.PerDimScaleLayer')
def per_dim_scale(view: ParamsView) -> Translated:
  view.get('params_init')  # The weight starts as a constant.
  return Translated(
    attention_projections.PerDimScale.config(dim=view.get('dim')),
    VariableMap([Variable(('per_dim_scale',), 'per_dim_scale')]),
  )


@translates('lingvo.core.batch_major_attention.MultiHeadedProjectionLayer')
def projection(view: ParamsView) -> Translated:
  view.require('make_output_proj_no_op', False)
  view.require('input_proj_bias_rank_3', False)
  view.get('enable_vn')  # `VariableNames.noisy` finds it out.
  on_one_device(view)
  config = attention_projections.AttentionProjection.config(
    input_dim=view.get('input_dim'),
    num_heads=view.get('num_heads'),
    dim_per_head=view.get('dim_per_head'),
    is_output_projection=view.get('is_output_projection'),
    use_bias=view.get('use_bias'),
    params_init=same_init(view, 'params_init'),
  )
  names = ['w', 'b'] if config.use_bias else ['w']
  return Translated(config, VariableMap(Variable((n,), n) for n in names))


@translates('lingvo.core.layers.RotaryPositionalEmbeddingLayer')
def rotary_embedding(view: ParamsView) -> Translated:
  view.require('trainable_scaling', False)
  view.ignore('trainable_scaling is off', 'trainable_scaling_init')
  view.require('frequency_scaling', False)
  return Translated(
    RotaryPositionalEmbedding.config(
      embedding_dims=view.get('embedding_dim'),
      min_timescale=view.get('min_timescale'),
      max_timescale=view.get('max_timescale'),
    )
  )


@translates('lingvo.core.batch_major_attention.MultiHeadedAttention')
def multi_headed_attention(view: ParamsView) -> Translated | None:
  """Returns an attention whose caller passes the mask, as in Lingvo."""
  view.get('packed_input')  # The mask has the segments.
  return dot_product_attention(view, dot_product.DotProductAttention)


def dot_product_attention(
  view: ParamsView, cls: type, **fields
) -> Translated | None:
  """Translates the fields that all attentions have.

  Args:
    view: of `MultiHeadedAttention` or of a class derived from it.
    cls: our class.
    **fields: its other fields.
  """
  dims = _input_dims(view)
  _refuse_variants(view)
  flexible = _left_out(view, dims)
  if flexible and cls is dot_product.DotProductAttention:
    cls = FlexibleAttention
    fields |= flexible
  elif flexible:
    for name in ('enable_value_proj', 'enable_ctx_post_proj'):
      view.require(name, True)
    view.require('output_dim', None, dims['query'])
  on_one_device(view)
  weights = _projections(view, dims)
  rotation = _rotation(view)
  keep = registry.translate(
    view.child('dropout_tpl', keep_prob=1.0 - view.get('atten_dropout_prob'))
  )
  if None in (weights, rotation, keep):
    return None
  hidden, heads = view.get('hidden_dim'), view.get('num_heads')
  per_head, cap = head_dims(view), view.get('atten_logit_cap')
  config = cls.config(
    input_dim=dims if len(set(dims.values())) > 1 else dims['query'],
    hidden_dim=hidden,
    num_heads=heads,
    dim_per_head=None if per_head * heads == hidden else per_head,
    use_bias=view.get('use_bias'),
    internal_enable_query_scale=view.get('enable_query_scale'),
    internal_enable_per_dim_scale=view.get('enable_per_dim_scale'),
    atten_dropout_prob=1.0 - keep,
    atten_logit_cap=max(cap or 0.0, 0.0),
    attention_extra_logit=_extra_logit(view),
    combine_qkv=_combines(view),
    **weights.config,
    **rotation,
    **fields,
  )
  variables = weights.variables
  if config.internal_enable_query_scale and (
    config.internal_enable_per_dim_scale
  ):
    name = 'per_dim_scale'
    variables += VariableMap([Variable((name,), name)]).under(name, name)
  return Translated(config, variables)


def _input_dims(view: ParamsView) -> dict[str, int]:
  """Returns D of queries, keys and values."""
  dims = view.get('input_dim')
  if not isinstance(dims, Mapping):
    dims = dict.fromkeys(('query', 'key', 'value'), dims)
  return dict(dims)


def _combines(view: ParamsView) -> bool:
  """Returns whether queries, keys and values share one projection."""
  combines = view.get('enable_qkv_proj_in_onestep')
  return combines and view.get('enable_value_proj')


def _left_out(view: ParamsView, dims: dict[str, int]) -> dict:
  """Returns the fields of an attention without some projections, or {}."""
  fields = {}
  if not view.get('enable_value_proj'):
    fields['project_value'] = False
    heads = view.get('num_heads') * head_dims(view)
    if dims['value'] != heads:
      view.issue(
        'enable_value_proj',
        f'without it values need {heads} dims, those of all heads; they have'
        f' {dims["value"]}',
      )
  output_dim = view.get('output_dim')
  if not view.get('enable_ctx_post_proj'):
    fields['project_output'] = False
  elif output_dim and output_dim != dims['query']:
    fields['output_dim'] = output_dim
  if fields and _combines(view):
    view.issue(
      'enable_qkv_proj_in_onestep', 'not translated with projections left out'
    )
  return fields


def head_dims(view: ParamsView) -> int:
  """Returns H, the dims of a head."""
  own = view.get('dim_per_head')
  return own or view.get('hidden_dim') // view.get('num_heads')


def _refuse_variants(view: ParamsView):
  """Reads the fields of variants that are not translated."""
  for name, only in (
    ('enable_qk_proj_in_onestep', False),
    ('use_mqa', False),
    ('enable_shaped_attention', False),
    ('query_stride', 1),
    ('query_first_n', None),
    ('use_scale_invariant_atten', False),
    ('attn_add_memory', False),
  ):
    view.require(name, only)
  view.ignore('use_mqa is off', 'num_kv_heads')
  view.ignore('attn_add_memory is off', 'memory_tpl')


def _extra_logit(view: ParamsView) -> float | None:
  """Returns the logit of an additional source.

  Lingvo ignores it with `enable_scaling_code_motion`.
  """
  if not view.get('enable_scaling_code_motion'):
    return view.get('atten_extra_logit')
  view.ignore(
    'Lingvo ignores it with enable_scaling_code_motion',
    'atten_extra_logit',
  )
  return None


def _projections(view: ParamsView, dims: dict[str, int]) -> Translated | None:
  """Translates the projections: fields of the attention, and variables."""
  heads, bias, per_head = (
    view.get('num_heads'),
    view.get('use_bias'),
    head_dims(view),
  )
  found = view.params.proj_tpl.dim_per_head
  if found not in (0, per_head):
    view.issue('proj_tpl.dim_per_head', f'{found} is not that of the attention')

  def translated(input_dim, of_each=1, **settings):
    return registry.translate(
      view.child(
        'proj_tpl',
        input_dim=input_dim,
        num_heads=heads,
        dim_per_head=per_head * of_each,
        use_bias=bias,
        device_mesh=view.get('device_mesh'),
        **settings,
      )
    )

  names = ['query', 'key', 'value']
  if not view.get('enable_value_proj'):
    names = ['query', 'key']
  if _combines(view):
    if len(set(dims.values())) > 1:
      view.issue(
        'enable_qkv_proj_in_onestep', f'queries, keys and values have {dims}'
      )
    names = ['qkv']
  inputs = [
    translated(dims[name]) if name in dims else translated(dims['key'], 3)
    for name in names
  ]
  post = translated(
    view.get('output_dim') or dims['query'], is_output_projection=True
  )
  if None in (*inputs, post):
    return None
  own = dict(post_proj_tpl=projection_template(post.config))
  variables = VariableMap()
  if view.get('enable_ctx_post_proj'):
    variables = post.variables.under('post', 'post')
  if names == ['qkv']:
    own['combined_qkv_proj_tpl'] = _combined(inputs[0].config, per_head)
    variables += _combined_variables(dims['key'], heads, per_head, bias)
  else:
    own['proj_tpl'] = projection_template(inputs[0].config)
    for name, one in zip(names, inputs, strict=True):
      variables += one.variables.under(name, name)
  return Translated(own, variables)


def projection_template(config: Config) -> Config:
  """Returns a projection's config without the fields the attention sets."""
  return attention_projections.AttentionProjection.config(
    params_init=config.params_init,
    dtype=config.dtype,
    fprop_dtype=config.fprop_dtype,
    skip_lp_regularization=config.skip_lp_regularization,
  )


def _combined(config: Config, per_head: int) -> Config:
  """Returns the combined projection, whose weight in Lingvo is [D, N, 3H]."""
  shape = (config.input_dim, config.num_heads, 3 * per_head)
  return attention_projections.CombinedQKVProjectionLayer.config(
    params_init=config.params_init.for_shape(shape),
    dtype=config.dtype,
    fprop_dtype=config.fprop_dtype,
    skip_lp_regularization=config.skip_lp_regularization,
  )


def _combined_variables(dims, heads, per_head, use_bias) -> VariableMap:
  """Returns the variables of the combined projection."""
  shape = (dims, heads, 3 * per_head), (dims, heads, 3, per_head)
  variables = [
    Variable(
      ('qkv.w',),
      'combined_qkv/w',
      Chain((Reshape(*shape), Transpose((2, 0, 1, 3)))),
    )
  ]
  if use_bias:
    shape = (heads, 3 * per_head), (heads, 3, per_head)
    step = Chain((Reshape(*shape), Transpose((1, 0, 2))))
    variables.append(Variable(('qkv.b',), 'combined_qkv/b', step))
  return VariableMap(variables)


def _rotation(view: ParamsView) -> dict | None:
  """Returns the fields of rotary positions; None after an issue."""
  template = view.get('rope_tpl')
  if not template:
    return {}
  per_head = head_dims(view)
  if template.embedding_dim not in (0, per_head):
    view.issue(
      'rope_tpl.embedding_dim',
      f'{template.embedding_dim} is not that of a head, {per_head}',
    )
  rotation = registry.translate(view.child('rope_tpl', embedding_dim=per_head))
  if rotation is None:
    return None
  return dict(
    use_rotary_position_emb=True, rotary_position_emb_tpl=rotation.config
  )
