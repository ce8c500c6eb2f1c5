"""Translators of Lingvo's batch-major Transformer layers."""

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import sublayers
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.view import ParamsView
from pax_compat.layers.attentions.local_attentions import LocalSelfAttention
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers import transformer_layers


@translates('lingvo.core.batch_major_attention.TransformerAttentionLayer')
def transformer_attention(view: ParamsView) -> Translated | None:
  """Returns a `Transformer` without a feed-forward layer."""
  on_one_device(view)
  view.require('add_skip_connection', True)
  heads, template = view.get('num_heads'), view.get('atten_tpl')
  if isinstance(heads, list) or isinstance(template, list):
    view.issue('atten_tpl', 'several kinds of heads are not translated')
    return None
  atten = registry.translate(_attention_view(view))
  norms = _norms(view)
  keep = sublayers.keep_prob(view, 'dropout_tpl')
  fields = dict(
    mask_self_attention=_is_causal(view, atten),
    residual_droppath_prob=float(view.get('residual_droppath_prob')),
    residual_from_normalized=not view.get('add_unnormalized_input'),
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


def _is_causal(view: ParamsView, atten: Translated | None) -> bool:
  """Returns whether the attention needs a causal mask."""
  local = atten is not None and issubclass(atten.config.cls, LocalSelfAttention)
  if local:
    view.ignore('in Lingvo too the window is the mask', 'is_masked')
  return view.get('is_masked') and not local


def _check_output_dims(view: ParamsView, atten: Translated):
  """Adds an issue if the attention's output does not fit the residual."""
  config, dims = atten.config, _query_dims(view)
  found = getattr(config, 'output_dim', None) or dims
  if not getattr(config, 'project_output', True):
    found = config.num_heads * (
      config.dim_per_head or config.hidden_dim // config.num_heads
    )
  if found != dims:
    view.issue('atten_tpl', f'it returns {found} dims, and gets {dims}')


def _query_dims(view: ParamsView) -> int:
  dims = view.get('input_dim')
  return dims['query'] if isinstance(dims, dict) else dims


def _attention_view(view: ParamsView) -> ParamsView:
  """Returns the view of the attention, with the fields its parent sets."""
  return view.child(
    'atten_tpl',
    input_dim=view.get('input_dim'),
    hidden_dim=view.get('hidden_dim') or _query_dims(view),
    num_heads=view.get('num_heads'),
    atten_dropout_prob=view.get('atten_dropout_prob'),
  )


def _norms(view: ParamsView) -> Translated | None:
  """Translates the norms: fields of the `Transformer`, and variables."""
  hybrid = view.get('primer_hybrid_norm')
  policy = sublayers.norm_policy(view, hybrid)
  if not view.get('ln_tpl'):
    template = norm_layers.IdentityNorm.config()
    return Translated(dict(norm_policy=policy, ln_tpl=template))
  norm = registry.translate(view.child('ln_tpl', input_dim=_query_dims(view)))
  if norm is None:
    return None
  return Translated(
    dict(norm_policy=policy, ln_tpl=norm.config),
    sublayers.norm_variables(norm, hybrid),
  )


@translates('lingvo.core.batch_major_attention.TransformerLayer')
def transformer_layer(view: ParamsView) -> Translated | None:
  """Returns a `Transformer`, perhaps with cross-attention."""
  dims = view.get('input_dim')
  view.require('output_dim', 0, dims)
  view.ignore('it only counts operations', 'compute_flops')
  on_one_device(view)
  own = 'tr_self_atten_tpl' if view.get('tr_self_atten_tpl') else 'tr_atten_tpl'
  crosses = view.get('has_aux_atten')
  atten = registry.translate(
    _atten_view(
      view, own, input_dim=dims, is_masked=view.get('mask_self_atten')
    )
  )
  cross = None
  if crosses:
    if view.params.tr_atten_tpl.is_masked:
      view.issue(
        'tr_atten_tpl.is_masked',
        'a causal mask of cross-attention is not translated',
      )
    cross_dims = view.get('aux_atten_input_dim') or dims
    if isinstance(cross_dims, dict) and cross_dims['query'] != dims:
      view.issue('aux_atten_input_dim', f'queries have {dims} dims')
    cross = registry.translate(
      _atten_view(view, 'tr_atten_tpl', input_dim=cross_dims)
    )
  else:
    view.ignore('has_aux_atten is off', 'aux_atten_input_dim', 'tr_atten_tpl')
  feed_forward = registry.translate(
    view.child(
      'tr_fflayer_tpl', input_dim=dims, output_dim=view.get('output_dim')
    )
  )
  if None in (atten, feed_forward) or (crosses and cross is None):
    return None
  translated = sublayers.transformer(
    view,
    atten,
    cross,
    feed_forward,
    cross_name='cross_atten',
    own_template='tr_self_atten_tpl',
  )
  if crosses:
    translated.config.allow_skip_cross_attention = True
  return translated


def _atten_view(view: ParamsView, name: str, **settings) -> ParamsView:
  """Returns the view of an attention, with the fields its parent sets."""
  template = view.get(name).Copy()
  heads = view.get('num_heads')
  if heads and not isinstance(template.num_heads, list):
    template.num_heads = heads
  if not isinstance(template.atten_tpl, list):
    template.atten_tpl.packed_input = view.get('packed_input')
  return view.adopt(template, name, **settings)
