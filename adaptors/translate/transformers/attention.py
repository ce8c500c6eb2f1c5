"""Translators of Lingvo's time-major attention.

Lingvo's layers take the segment ids of packed examples; layers here take masks,
which the caller makes from segment ids.

Shapes: D model dims, N heads, H dims of a head.
"""

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import same_init, weight_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import (
  Chain,
  Reshape,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib
from pax_compat.config import Config
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers.attentions import additive_attention, dot_product
from pax_compat.layers.attentions.attention_projections import (
  AttentionProjection,
)
from pax_compat.layers.attentions.flexible_attention import FlexibleAttention

_DOT_PRODUCT = 'lingvo.core.attention.DotProductAttention'
_OWN_SEED = "random numbers come from the run's own seed"

# By the name of our projection: Lingvo's variable, and the field of its dims.
_PROJECTIONS = {
  'key': ('source_proj', 'source_dim'),
  'query': ('query_proj', 'query_dim'),
  'value': ('ctx_proj', 'context_dim'),
  'post': ('ctx_post_proj', 'ctx_post_proj_dim'),
}


@translates(_DOT_PRODUCT)
def dot_product_attention(view: ParamsView) -> Translated:
  """Returns an attention with one head and without projections."""
  view.get('params_init')  # The scale starts at 0.
  dims = view.get('hidden_dim')
  view.require('source_dim', dims)
  view.require('query_dim', dims)
  view.get('packed_input')  # The mask has the segments.
  view.ignore(_OWN_SEED, 'atten_dropout_deterministic')
  cap = view.get('atten_logit_cap')
  config = FlexibleAttention.config(
    input_dim=dims,
    hidden_dim=dims,
    num_heads=1,
    project_query=False,
    project_key=False,
    project_value=False,
    project_output=False,
    internal_enable_per_dim_scale=view.get('use_dim_scale'),
    atten_dropout_prob=view.get('atten_dropout_prob'),
    atten_logit_cap=0.0 if cap is None else cap,
  )
  variables = []
  if config.internal_enable_per_dim_scale:
    variables.append(
      Variable(('per_dim_scale',), 'per_dim_scale/per_dim_scale')
    )
  return Translated(config, VariableMap(variables))


@translates('lingvo.core.attention.MultiHeadedAttention')
def multi_headed_attention(view: ParamsView) -> Translated | None:
  """Returns a `FlexibleAttention` if the projections are unusual."""
  view.require('num_post_proj', 1)
  view.ignore('it only selects summaries', 'attention_head_prob_index')
  heads, hidden = view.get('num_attention_heads'), view.get('hidden_dim')
  if hidden % heads:
    view.issue(
      'num_attention_heads', f'{heads} does not divide hidden_dim, {hidden}'
    )
  inner = _inner(view, hidden // heads)
  projects = _projects(view)
  dims = _dims(view, projects, hidden)
  tpls = _projection_tpls(view, dims, hidden)
  flexible = _flexible_fields(view, projects, dims, tpls)
  use_bias = view.get('use_bias')
  if inner is None:
    return None
  inputs = {name: dims[name] for name in ('query', 'key', 'value')}
  config = dot_product.DotProductAttention.config(
    input_dim=inputs if len(set(inputs.values())) > 1 else dims['query'],
    hidden_dim=hidden,
    num_heads=heads,
    use_bias=use_bias,
    **{name: getattr(inner.config, name) for name in _OF_HEADS},
    proj_tpl=tpls['query'],
    post_proj_tpl=tpls['post'],
  )
  if flexible:
    config = as_flexible(config, **flexible)
  variables = inner.variables.under('atten', '')
  for name, projected in projects.items():
    if projected:
      variables += _projection_variables(name, dims[name], heads, config)
  return Translated(config, variables)


# Fields that Lingvo's `MultiHeadedAttention` has in `inner_atten_params`.
_OF_HEADS = (
  'internal_enable_per_dim_scale',
  'atten_dropout_prob',
  'atten_logit_cap',
)


def as_flexible(config: Config, **fields) -> Config:
  """Returns an attention's config as that of a `FlexibleAttention`.

  Args:
    config: of a `DotProductAttention` or a `FlexibleAttention`.
    **fields: to set.
  """
  return FlexibleAttention.config(**{**config_lib.set_fields(config), **fields})


def _inner(view: ParamsView, per_head: int) -> Translated | None:
  """Translates the attention of the heads."""
  template = view.get('inner_atten_params')
  own = dict(
    atten_dropout_prob=view.get('atten_dropout_prob'),
    atten_dropout_deterministic=view.get('atten_dropout_deterministic'),
    packed_input=view.get('packed_input'),
    use_dim_scale=view.get('enable_per_dim_scale'),
  )
  if class_path(template.cls) != _DOT_PRODUCT:
    view.issue(
      'inner_atten_params',
      f'{class_path(template.cls)} is not translated here, only {_DOT_PRODUCT}',
    )
    return None
  return registry.translate(
    view.child(
      'inner_atten_params',
      source_dim=per_head,
      query_dim=per_head,
      hidden_dim=per_head,
      **own,
    )
  )


def _projects(view: ParamsView) -> dict[str, bool]:
  """Returns for each projection whether it exists."""
  from_key = view.get('use_source_vec_as_attention_value')
  of_context = view.get('enable_ctx_pre_proj')
  return {
    'key': view.get('enable_source_proj'),
    'query': view.get('enable_query_proj'),
    'value': of_context and not from_key,
    'post': view.get('enable_ctx_post_proj'),
  }


def _dims(view: ParamsView, projects: dict, hidden: int) -> dict[str, int]:
  """Returns the input dims of each projection; of `post` the output dims."""
  dims = {name: view.get(field) for name, (_, field) in _PROJECTIONS.items()}
  if view.params.use_source_vec_as_attention_value:
    dims['value'] = dims['key']
  elif not projects['value']:
    dims['value'] = dims['value'] or hidden
  for name in ('query', 'key', 'value'):
    from_key = name == 'value' and view.params.use_source_vec_as_attention_value
    if not projects[name] and not from_key and dims[name] != hidden:
      view.issue(
        _PROJECTIONS[name][1],
        f'{dims[name]} is not hidden_dim, {hidden}, and nothing projects it',
      )
  if not projects['post']:
    dims['post'] = hidden
  return dims


def _projection_tpls(
  view: ParamsView, dims: dict, hidden: int
) -> dict[str, Config]:
  """Returns the template of each projection, with its initializer."""
  view.require('proj_init', 'default', 'uniform')
  uniform = view.params.proj_init == 'uniform'
  tpls = {}
  for name, size in dims.items():
    shape = (hidden, size) if name == 'post' else (size, hidden)
    init = weight_init(view, shape)
    tpls[name] = AttentionProjection.config(
      params_init=_uniform(shape[0]) if uniform else init
    )
    if uniform:
      tpls[name].bias_init = _uniform(shape[1])
  return tpls


def _uniform(dims: int) -> WeightInit:
  return WeightInit.Uniform(dims**-0.5)


def _flexible_fields(
  view: ParamsView, projects: dict, dims: dict, tpls: dict
) -> dict:
  """Returns the fields of a `FlexibleAttention`; empty if none is needed."""
  fields = {}
  for name, projected in projects.items():
    if not projected:
      fields['project_output' if name == 'post' else f'project_{name}'] = False
  if view.params.use_source_vec_as_attention_value:
    fields['value_from_key'] = True
    fields.pop('project_value')
  if projects['post'] and dims['post'] != dims['query']:
    fields['output_dim'] = dims['post']
  for name in ('key', 'value'):
    if projects[name] and tpls[name] != tpls['query']:
      fields[f'{name}_proj_tpl'] = tpls[name]
  return fields


def _projection_variables(
  name: str, dims: int, heads: int, config: Config
) -> VariableMap:
  """Returns the variables of one of the projections."""
  theta, hidden = _PROJECTIONS[name][0], config.hidden_dim
  split = Reshape((dims, hidden), (dims, heads, hidden // heads))
  is_output = name == 'post'
  weight = Chain((Transpose((1, 0)), split)) if is_output else split
  variables = [Variable((theta,), f'{name}/w', weight)]
  if config.use_bias:
    bias = Variable((f'{theta}_b',), f'{name}/b')
    if not is_output:
      shape = Reshape((hidden,), (heads, hidden // heads))
      bias = Variable(bias.theta, bias.jax, shape)
    variables.append(bias)
  return VariableMap(variables)


@translates('lingvo.core.attention.AdditiveAttention')
def additive(view: ParamsView) -> Translated:
  """Returns an attention over all targets at once; Lingvo's takes one."""
  same = ('source_dim', 'query_dim', 'hidden_dim', 'atten_dropout_prob')
  view.get('packed_input')  # The mask has the segments.
  view.ignore(_OWN_SEED, 'atten_dropout_deterministic')
  if view.get('same_batch_size') and view.params.atten_dropout_prob:
    view.issue('atten_dropout_prob', 'Lingvo refuses it with same_batch_size')
  config = additive_attention.AdditiveAttention.config(
    params_init=same_init(view, 'params_init'),
    **{name: view.get(name) for name in same},
  )
  names = ('source_var', 'query_var', 'hidden_var')
  return Translated(config, VariableMap(Variable((n,), n) for n in names))
