"""Translators of Lingvo's batch-major Transformer layers.

Shapes: D model dims.
"""

import dataclasses

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import base_fields
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.attentions.local_attentions import LocalSelfAttention
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers import transformer_layers

# What both attentions of a `Transformer` have from the same field.
_SHARED = (
  'ln_tpl',
  'norm_policy',
  'residual_dropout_prob',
  'residual_droppath_prob',
  'residual_from_normalized',
)


@translates('lingvo.core.batch_major_attention.TransformerAttentionLayer')
def transformer_attention(view: ParamsView) -> Translated | None:
  """`TransformerAttentionLayer`: a `Transformer` without a feed-forward."""
  on_one_device(view)
  view.require('add_skip_connection', True)
  view.get('params_init')  # For children, which take it over.
  heads, template = view.get('num_heads'), view.get('atten_tpl')
  if isinstance(heads, list) or isinstance(template, list):
    view.issue('atten_tpl', 'several kinds of heads are not translated')
    return None
  atten = registry.translate(_attention_view(view))
  norms = _norms(view)
  keep = registry.translate(
    view.child('dropout_tpl', keep_prob=1.0 - view.get('residual_dropout_prob'))
  )
  fields = dict(
    mask_self_attention=_hides_future(view, atten),
    residual_droppath_prob=float(view.get('residual_droppath_prob')),
    residual_from_normalized=not view.get('add_unnormalized_input'),
    **base_fields(view),
  )
  if None in (atten, norms, keep):
    return None
  _check_output_dims(view, atten)
  config = transformer_layers.Transformer.config(
    input_dims=_query_dims(view),
    tr_atten_tpl=atten.config,
    tr_fflayer_tpl=None,
    residual_dropout_prob=1.0 - keep,
    **norms.config,
    **fields,
  )
  return Translated(
    config, norms.variables + atten.variables.under('atten', 'self_attention')
  )


def _hides_future(view: ParamsView, atten: Translated | None) -> bool:
  """Returns whether the attention hides what comes after the target."""
  local = atten is not None and issubclass(atten.config.cls, LocalSelfAttention)
  if local:
    view.ignore('its window says what is seen, in Lingvo too', 'is_masked')
  return view.get('is_masked') and not local


def _check_output_dims(view: ParamsView, atten: Translated):
  """Adds an issue where the residual cannot add what attention returns."""
  config, dims = atten.config, _query_dims(view)
  found = getattr(config, 'output_dim', None) or dims
  if not getattr(config, 'project_output', True):
    found = config.num_heads * (
      config.dim_per_head or config.hidden_dim // config.num_heads
    )
  if found != dims:
    view.issue('atten_tpl', f'it returns {found} dims, but gets {dims}')


def _query_dims(view: ParamsView) -> int:
  dims = view.get('input_dim')
  return dims['query'] if isinstance(dims, dict) else dims


def _attention_view(view: ParamsView) -> ParamsView:
  """Returns the view of the attention, as its parent sets it up."""
  return view.child(
    'atten_tpl',
    input_dim=view.get('input_dim'),
    hidden_dim=view.get('hidden_dim') or _query_dims(view),
    num_heads=view.get('num_heads'),
    atten_dropout_prob=view.get('atten_dropout_prob'),
  )


def _norms(view: ParamsView) -> Translated | None:
  """Translates the normalisations: the fields about them, and the variables."""
  hybrid = view.get('primer_hybrid_norm')
  policy = 'pre' if view.get('pre_layer_norm') else 'post_skip'
  names = ['layer_norm']
  if hybrid:
    policy, names = 'primer_hybrid', ['pre_layer_norm', 'post_layer_norm']
  if hybrid and not view.get('pre_layer_norm'):
    view.issue('primer_hybrid_norm', 'it needs pre_layer_norm')
  if not view.get('ln_tpl'):
    template = norm_layers.IdentityNorm.config()
    return Translated(dict(norm_policy=policy, ln_tpl=template))
  norm = registry.translate(view.child('ln_tpl', input_dim=_query_dims(view)))
  if norm is None:
    return None
  variables = VariableMap()
  for name in names:
    variables += norm.variables.under(name, name)
  return Translated(dict(norm_policy=policy, ln_tpl=norm.config), variables)


@translates('lingvo.core.batch_major_attention.TransformerLayer')
def transformer_layer(view: ParamsView) -> Translated | None:
  """`TransformerLayer`: attention to itself, to another one, feed-forward."""
  dims = view.get('input_dim')
  view.require('output_dim', 0, dims)
  view.ignore('it only counts operations', 'compute_flops')
  on_one_device(view)
  view.get('params_init')  # For children, which take it over.
  own = 'tr_self_atten_tpl' if view.get('tr_self_atten_tpl') else 'tr_atten_tpl'
  crosses = view.get('has_aux_atten')
  atten = registry.translate(
    _half(view, own, input_dim=dims, is_masked=view.get('mask_self_atten'))
  )
  cross = None
  if crosses:
    if view.params.tr_atten_tpl.is_masked:
      view.issue('tr_atten_tpl.is_masked', 'another sequence is not hidden')
    cross_dims = view.get('aux_atten_input_dim') or dims
    if isinstance(cross_dims, dict) and cross_dims['query'] != dims:
      view.issue('aux_atten_input_dim', f'queries have {dims} dims')
    cross = registry.translate(
      _half(view, 'tr_atten_tpl', input_dim=cross_dims)
    )
  else:
    view.ignore('has_aux_atten is off', 'aux_atten_input_dim', 'tr_atten_tpl')
  feed_forward = registry.translate(
    view.child(
      'tr_fflayer_tpl', input_dim=dims, output_dim=view.get('output_dim')
    )
  )
  fields = base_fields(view)
  if None in (atten, feed_forward) or (crosses and cross is None):
    return None
  # The halves' own parts have their base fields from their own Params.
  config = atten.config.set(tr_fflayer_tpl=feed_forward.config, **fields)
  variables = atten.variables.under('self_atten', '')
  if crosses:
    _check_shared(view, atten, cross)
    config.set(
      use_cross_attention=True,
      allow_skip_cross_attention=True,
      cross_atten_tpl=cross.config.tr_atten_tpl,
    )
    variables += cross_variables(cross.variables).under('cross_atten', '')
  return Translated(
    config, variables + feed_forward.variables.under('fflayer', 'ff_layer')
  )


def _half(view: ParamsView, name: str, **settings) -> ParamsView:
  """Returns the view of an attention, as its parent sets it up."""
  template = view.get(name).Copy()
  heads = view.get('num_heads')
  if heads and not isinstance(template.num_heads, list):
    template.num_heads = heads
  if not isinstance(template.atten_tpl, list):
    template.atten_tpl.packed_input = view.get('packed_input')
  return view.adopt(template, name, **settings)


def _check_shared(view: ParamsView, atten: Translated, cross: Translated):
  """Adds an issue where the two attentions differ in what they share here."""
  for name in _SHARED:
    one, other = getattr(atten.config, name), getattr(cross.config, name)
    if one != other:
      view.issue(
        'tr_self_atten_tpl',
        f'it differs from tr_atten_tpl in what is {name} here, {one!r} and'
        f' {other!r}, which is not translated',
      )


def cross_variables(variables: VariableMap) -> VariableMap:
  """Returns an attention's variables as those of one to another sequence."""
  return VariableMap(
    dataclasses.replace(v, jax=_cross_path(v.jax)) for v in variables
  )


def _cross_path(path: str) -> str:
  part, rest = path.split('/', 1)
  for name, renamed in (
    ('self_attention', 'cross_attention'),
    ('layer_norm', 'cross_layer_norm'),
  ):
    part = part.replace(name, renamed)
  return f'{part}/{rest}'
