"""Translators of Lingvo's time-major Transformer layers.

Lingvo's layers take segment ids where examples are packed. Layers here take
masks instead, which whoever calls them makes of segment ids.

Shapes: D model dims.
"""

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import activation, base_fields
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers.attention import as_flexible
from adaptors.translate.transformers.batch_major_transformer import (
  cross_variables,
)
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.layers.transformers import transformer_layers
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)


def _residual_fields(view: ParamsView, hybrid: bool = False) -> dict | None:
  """Returns how a sub-layer normalises and what its residual drops.

  Args:
    view: of the sub-layer.
    hybrid: whether what it computed is normalised, too.
  """
  drop = view.get('residual_dropout_prob')
  keep = registry.translate(
    view.child('residual_dropout_tpl', keep_prob=1.0 - drop)
  )
  if keep is None:
    return None
  before = view.get('pre_layer_norm')
  if hybrid and not before:
    view.issue('primer_hybrid_norm', 'it needs pre_layer_norm')
  policy = 'primer_hybrid' if hybrid else 'pre' if before else 'post_skip'
  return dict(norm_policy=policy, residual_dropout_prob=1.0 - keep)


@translates('lingvo.core.layers_with_attention.TransformerAttentionLayer')
def transformer_attention(view: ParamsView) -> Translated | None:
  """`TransformerAttentionLayer`: a `Transformer` without a feed-forward."""
  dims = view.get('source_dim')
  view.require('context_dim', 0, dims)
  view.require('residual_function', None)
  view.require('memory_augmentation', False)
  view.ignore('memory_augmentation is off', 'memory')
  view.get('params_init')  # For children, which take it over.
  hidden = view.get('atten_hidden_dim') or dims
  atten = registry.translate(
    view.child(
      'atten_tpl',
      source_dim=dims,
      query_dim=dims,
      hidden_dim=hidden,
      context_dim=dims,
      ctx_post_proj_dim=dims,
      num_attention_heads=view.get('num_attention_heads'),
      atten_dropout_prob=view.get('atten_dropout_prob'),
      packed_input=view.get('packed_input'),
    )
  )
  masked, limits = _sight(view)
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  residual = _residual_fields(view)
  fields = dict(
    mask_self_attention=masked,
    residual_from_normalized=not view.get('add_unnormalized_input'),
    **base_fields(view),
  )
  if None in (atten, norm, residual):
    return None
  if not getattr(atten.config, 'project_output', True) and hidden != dims:
    view.issue(
      'atten_tpl.enable_ctx_post_proj',
      f'without it what is added has {hidden} dims, the input {dims}',
    )
  config = transformer_layers.Transformer.config(
    input_dims=dims,
    ln_tpl=norm.config,
    tr_atten_tpl=(
      as_flexible(atten.config, **limits) if limits else atten.config
    ),
    tr_fflayer_tpl=None,
    **residual,
    **fields,
  )
  return Translated(
    config,
    norm.variables.under('layer_norm', 'layer_norm')
    + atten.variables.under('atten', 'self_attention'),
  )


def _sight(view: ParamsView) -> tuple[bool, dict]:
  """Returns whether attention is causal, and how else it is limited."""
  masked, kind = view.get('is_masked'), view.get('mask_type')
  order = view.get('mask_ngram_order')
  if not masked or kind == 'future':
    return masked, {}
  if kind == 'eye':
    return False, {'sees_itself': False}
  if kind == 'ngram' and order > 0:
    return True, {'left_context': order}
  view.issue(
    'mask_type',
    f"{kind!r} of mask_ngram_order {order} is not translated, only 'future',"
    " 'eye', and 'ngram' of an order of 1 or more",
  )
  return masked, {}


@translates('lingvo.core.layers_with_attention.TransformerFeedForwardLayer')
def transformer_feed_forward(view: ParamsView) -> Translated | None:
  """`TransformerFeedForwardLayer`: feed-forward with its residual."""
  dims, hidden = view.get('input_dim'), view.get('hidden_dim')
  output_dims = view.get('output_dim') or dims
  skips = view.get('add_skip_connection')
  _check_feed_forward(view, projects_residual=skips and output_dims != dims)
  relu_drop = view.get('relu_dropout_prob')
  dropout = view.params.fflayer_tpl.dropout.cls.Params
  layers = registry.translate(
    view.child(
      'fflayer_tpl',
      input_dim=dims,
      activation=[view.get('activation'), 'NONE'],
      hidden_layer_dims=[hidden, output_dims],
      dropout=[
        dropout().Set(keep_prob=1.0 - relu_drop),
        dropout().Set(keep_prob=1.0),
      ],
    )
  )
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  hybrid = view.get('primer_hybrid_norm')
  residual = _residual_fields(view, hybrid)
  droppath, weight = view.get('residual_droppath_prob'), 1.0
  if skips and not droppath:
    weight = view.get('residual_weight')
  else:
    why = 'it needs a residual that is never dropped as a whole'
    view.ignore(why, 'residual_weight')
  fields = dict(
    activation_tpl=activation(view, 'activation', view.get('activation')),
    residual_weight=weight,
    residual_droppath_prob=float(droppath),
    add_skip_connection=skips,
    **base_fields(view),
  )
  if None in (layers, norm, residual):
    return None
  (first, keep_inner), (second, _) = layers
  if output_dims != dims:
    del norm.config.dim  # The layer says it, of each norm.
  config = TransformerFeedForward.config(
    input_dims=dims,
    output_dims=0 if output_dims == dims else output_dims,
    hidden_dims=hidden,
    relu_dropout_prob=1.0 - keep_inner,
    ln_tpl=norm.config,
    fflayer_tpl=first.config,
    fflayer2_tpl=second.config,
    **residual,
    **fields,
  )
  variables = first.variables.under('fflayer.fc[0]', 'ffn_layer1')
  variables += second.variables.under('fflayer.fc[1]', 'ffn_layer2')
  names = ['pre_layer_norm', 'post_layer_norm'] if hybrid else ['layer_norm']
  for name in names:
    variables += norm.variables.under(name, name)
  return Translated(config, variables)


def _check_feed_forward(view: ParamsView, projects_residual: bool):
  """Adds issues where a feed-forward has what is not translated."""
  if projects_residual:
    view.issue(
      'output_dim',
      f'{view.params.output_dim} is not input_dim, {view.params.input_dim}; a'
      ' projection of the residual is not translated',
    )
  view.require('num_tasks', 0)
  view.require('memory_augmentation', False)
  view.ignore('memory_augmentation is off', 'memory')
  view.require('use_block_diagonal_matmul_pl', [])
  view.ignore('no block-diagonal products', 'num_blocks_pl')
  view.ignore('nothing projects the residual', 'res_proj_tpl')
  view.get('params_init')  # For children, which take it over.


@translates('lingvo.core.layers_with_attention.TransformerLayer')
def transformer_layer(view: ParamsView) -> Translated | None:
  """`TransformerLayer`: attention to itself, perhaps another one, feed-forward.

  The other sequence is given as `cross_inputs`.
  """
  dims = view.get('source_dim')
  view.require('output_dim', 0, dims)
  decodes = view.get('is_decoder')
  crosses = view.get('has_aux_atten') or decodes
  view.get('params_init')  # For children, which take it over.
  atten = registry.translate(
    view.child(
      'tr_atten_tpl',
      source_dim=dims,
      packed_input=view.get('packed_input'),
      is_masked=view.get('mask_self_atten') or decodes,
    )
  )
  cross = _cross_attention(view, dims) if crosses else None
  if not crosses:
    why = 'has_aux_atten is off'
    view.ignore(why, 'tr_aux_atten_tpl', 'num_aux_atten_post_proj')
  feed_forward = registry.translate(
    view.child('tr_fflayer_tpl', input_dim=dims, output_dim=0)
  )
  norm = None
  if view.get('tr_post_ln_tpl'):
    norm = registry.translate(view.child('tr_post_ln_tpl', input_dim=dims))
  fields = base_fields(view)
  if (
    None in (atten, feed_forward)
    or (crosses and cross is None)
    or (view.params.tr_post_ln_tpl and norm is None)
  ):
    return None
  if getattr(feed_forward.config, 'residual_droppath_prob', 0.0):
    view.issue(
      'tr_fflayer_tpl.residual_droppath_prob',
      'in Lingvo it drops what is added at a position, for all of the batch,'
      ' where time comes first; that is not translated',
    )
  # The halves' own parts have their base fields from their own Params.
  config = atten.config.set(
    tr_fflayer_tpl=feed_forward.config,
    output_norm_tpl=norm and norm.config,
    **fields,
  )
  variables = atten.variables.under('self_atten', '')
  if cross is not None:
    _check_shared(view, config, cross.config)
    config.set(
      use_cross_attention=True, cross_atten_tpl=cross.config.tr_atten_tpl
    )
    variables += cross_variables(cross.variables).under('atten', '')
  variables += feed_forward.variables.under('fflayer', 'ff_layer')
  if norm is not None:
    variables += norm.variables.under('layer_norm', 'output_norm')
  return Translated(config, variables)


# What both attentions of a `Transformer` have from the same field.
_SHARED = (
  'ln_tpl',
  'norm_policy',
  'residual_dropout_prob',
  'residual_from_normalized',
)


def _cross_attention(view: ParamsView, dims: int) -> Translated | None:
  """Translates the attention to another sequence."""
  view.require('num_aux_atten_post_proj', 1)
  own = view.get('tr_aux_atten_tpl') is not None
  name = 'tr_aux_atten_tpl' if own else 'tr_atten_tpl'
  template = view.params.Get(name)
  if 'is_masked' in template and template.is_masked:
    view.issue(
      f'{name}.is_masked',
      'of attention to another sequence, no mask by order is translated',
    )
  return registry.translate(
    view.child(name, source_dim=dims, packed_input=view.get('packed_input'))
  )


def _check_shared(view: ParamsView, config: Config, cross: Config):
  """Adds an issue where the two attentions differ in what they share here."""
  for name in _SHARED:
    one, other = getattr(config, name), getattr(cross, name)
    if one != other:
      view.issue(
        'tr_aux_atten_tpl',
        f'it differs from tr_atten_tpl in what is {name} here, {other!r} and'
        f' {one!r}, which is not translated',
      )
