"""Translators of Lingvo's time-major Transformer layers.

Lingvo's layers take the segment ids of packed examples; layers here take masks,
which the caller makes from segment ids.
"""

from adaptors.translate import activations, registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import sublayers
from adaptors.translate.transformers.attention import as_flexible
from adaptors.translate.view import ParamsView
from pax_compat.layers.transformers import transformer_layers
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)


@translates('lingvo.core.layers_with_attention.TransformerAttentionLayer')
def transformer_attention(view: ParamsView) -> Translated | None:
  """Returns a `Transformer` without a feed-forward layer."""
  dims = view.get('source_dim')
  view.require('context_dim', 0, dims)
  view.require('residual_function', None)
  view.require('memory_augmentation', False)
  view.ignore('memory_augmentation is off', 'memory')
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
  masked, limits = _mask(view)
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  keep = sublayers.keep_prob(view, 'residual_dropout_tpl')
  fields = dict(
    norm_policy=sublayers.norm_policy(view),
    mask_self_attention=masked,
    residual_from_normalized=not view.get('add_unnormalized_input'),
  )
  if None in (atten, norm, keep):
    return None
  if not getattr(atten.config, 'project_output', True) and hidden != dims:
    view.issue(
      'atten_tpl.enable_ctx_post_proj',
      f'without it the attention returns {hidden} dims, and gets {dims}',
    )
  config = transformer_layers.Transformer.config(
    input_dims=dims,
    ln_tpl=norm.config,
    tr_atten_tpl=(
      as_flexible(atten.config, **limits) if limits else atten.config
    ),
    tr_fflayer_tpl=None,
    residual_dropout_prob=1.0 - keep,
    **fields,
  )
  return Translated(
    config,
    sublayers.norm_variables(norm)
    + atten.variables.under('atten', 'self_attention'),
  )


def _mask(view: ParamsView) -> tuple[bool, dict]:
  """Returns whether attention is causal, and fields of other limits."""
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
  """Returns a feed-forward layer with its norm and residual."""
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
  keep = sublayers.keep_prob(view, 'residual_dropout_tpl')
  droppath, weight = view.get('residual_droppath_prob'), 1.0
  if skips and not droppath:
    weight = view.get('residual_weight')
  else:
    why = 'it needs a residual without residual_droppath_prob'
    view.ignore(why, 'residual_weight')
  fields = dict(
    norm_policy=sublayers.norm_policy(view, hybrid),
    activation_tpl=activations.layer(view, 'activation'),
    residual_weight=weight,
    residual_droppath_prob=float(droppath),
    add_skip_connection=skips,
  )
  if None in (layers, norm, keep):
    return None
  (first, keep_inner), (second, _) = layers
  if output_dims != dims:
    del norm.config.dim  # The layer sets it on each norm.
  config = TransformerFeedForward.config(
    input_dims=dims,
    output_dims=0 if output_dims == dims else output_dims,
    hidden_dims=hidden,
    relu_dropout_prob=1.0 - keep_inner,
    ln_tpl=norm.config,
    fflayer_tpl=first.config,
    fflayer2_tpl=second.config,
    residual_dropout_prob=1.0 - keep,
    **fields,
  )
  variables = first.variables.under('fflayer.fc[0]', 'ffn_layer1')
  variables += second.variables.under('fflayer.fc[1]', 'ffn_layer2')
  return Translated(config, variables + sublayers.norm_variables(norm, hybrid))


def _check_feed_forward(view: ParamsView, projects_residual: bool):
  """Adds issues with fields of a feed-forward that are not translated."""
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


@translates('lingvo.core.layers_with_attention.TransformerLayer')
def transformer_layer(view: ParamsView) -> Translated | None:
  """Returns a `Transformer`, whose `cross_inputs` are the other sequence."""
  dims = view.get('source_dim')
  view.require('output_dim', 0, dims)
  decodes = view.get('is_decoder')
  crosses = view.get('has_aux_atten') or decodes
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
  if (
    None in (atten, feed_forward)
    or (crosses and cross is None)
    or (view.params.tr_post_ln_tpl and norm is None)
  ):
    return None
  if getattr(feed_forward.config, 'residual_droppath_prob', 0.0):
    view.issue(
      'tr_fflayer_tpl.residual_droppath_prob',
      'in a time-major layer Lingvo drops the residual at a position for the'
      ' whole batch, which is not translated',
    )
  translated = sublayers.transformer(
    view,
    atten,
    cross,
    feed_forward,
    cross_name='atten',
    own_template='tr_aux_atten_tpl',
  )
  if norm is None:
    return translated
  return Translated(
    translated.config.set(output_norm_tpl=norm.config),
    translated.variables + norm.variables.under('layer_norm', 'output_norm'),
  )


def _cross_attention(view: ParamsView, dims: int) -> Translated | None:
  """Translates the cross-attention."""
  view.require('num_aux_atten_post_proj', 1)
  own = view.get('tr_aux_atten_tpl') is not None
  name = 'tr_aux_atten_tpl' if own else 'tr_atten_tpl'
  template = view.params.Get(name)
  if 'is_masked' in template and template.is_masked:
    view.issue(
      f'{name}.is_masked',
      'a causal mask of cross-attention is not translated',
    )
  return registry.translate(
    view.child(name, source_dim=dims, packed_input=view.get('packed_input'))
  )
