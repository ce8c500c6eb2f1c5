"""Translators of Lingvo's relative and local attention.

Shapes: D model dims, N heads, H dims of a head, R dims of the positions'
embeddings.
"""

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers.batch_major_attention import (
  dot_product_attention,
  head_dims,
  projection_template,
)
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.attentions.local_attentions import (
  LocalSelfAttention,
  LocalSelfAttentionXL,
)
from pax_compat.layers.attentions.relative_attentions import (
  ClippedDistanceEmbedding,
  DotProductAttentionRPE,
  DotProductAttentionXL,
)


@translates('lingvo.core.attention_util.PositionalAttenLogits')
def positional_logits(view: ParamsView) -> bool:
  """Returns True: it only has functions, which our attentions contain."""
  view.get('params_init')
  return True


@translates('lingvo.core.batch_major_attention.MultiHeadedAttentionXL')
def attention_xl(view: ParamsView) -> Translated | None:
  """Returns an attention with Transformer-XL's relative positions."""
  logits = registry.translate(view.child('pos_atten_logits_tpl'))
  translated = _with_distances(view, DotProductAttentionXL)
  return translated if logits else None


@translates('lingvo.core.batch_major_attention.LocalSelfAttention')
def local_attention(view: ParamsView) -> Translated | None:
  """Returns an attention over a window around each position."""
  return _uncapped(view, LocalSelfAttention, **_window(view))


@translates('lingvo.core.batch_major_attention.LocalSelfAttentionXL')
def local_attention_xl(view: ParamsView) -> Translated | None:
  """Returns a local attention with Transformer-XL's relative positions."""
  return _with_distances(view, LocalSelfAttentionXL, **_window(view))


@translates('lingvo.core.layers.RelativePositionalEmbeddingLayer')
def distance_embedding(view: ParamsView) -> Translated:
  view.get('params_init')  # The weight starts as a constant.
  return Translated(
    ClippedDistanceEmbedding.config(
      radius=view.get('radius'),
      embedding_dims=view.get('dim'),
    ),
    VariableMap([Variable(('w',), 'w')]),
  )


@translates('lingvo.core.batch_major_attention.MultiHeadedAttentionRPE')
def attention_rpe(view: ParamsView) -> Translated | None:
  """Returns an attention with learned relative positions.

  When decoding, Lingvo adds to a value the embedding of the negated distance;
  here decoding adds the same embedding as training.
  """
  logits = registry.translate(view.child('pos_atten_logits_tpl'))
  view.ignore('Lingvo never shares the weights', 'use_global_emb')
  radius, skips = view.get('rel_pos_radius'), view.get('skip_value_emb')
  if not radius:
    view.issue('rel_pos_radius', 'expected 1 or more')
    return None
  hidden = view.get('hidden_dim')
  dims = view.get('rel_pos_emb_dim')
  dims = hidden if dims is None else dims
  projection = _position_projection(view, dims) if dims != hidden else None
  translated = _uncapped(
    view,
    DotProductAttentionRPE,
    rel_pos_radius=radius,
    rel_pos_emb_dim=None if dims == hidden else dims,
    skip_value_emb=skips,
  )
  if None in (logits, translated) or (dims != hidden and projection is None):
    return None
  variables = translated.variables
  for name in ['key'] if skips else ['key', 'value']:
    path = f'{name}_emb/w'
    variables += VariableMap([Variable((path.replace('/', '.'),), path)])
    if projection is not None:
      path = f'{name}_pos_proj'
      variables += projection.variables.under(path, path)
  if projection is not None:
    translated.config.proj_tpl = projection_template(projection.config)
  return Translated(translated.config, variables)


def _position_projection(view: ParamsView, dims: int) -> Translated | None:
  """Translates the projection of relative positions from R dims to heads."""
  return registry.translate(
    view.child(
      'proj_tpl',
      input_dim=dims,
      num_heads=view.get('num_heads'),
      dim_per_head=head_dims(view),
      use_bias=False,
    )
  )


def _window(view: ParamsView) -> dict:
  """Returns the fields of the window."""
  view.ignore(
    'it concerns step-by-step inference only',
    'inference_step_max_length',
    'use_3d_recurrent_state',
    'minimize_state_size',
  )
  view.ignore(
    'attention weights are not returned', 'force_consistent_probs_shape'
  )
  left, block = view.get('left_context'), view.get('block_size')
  if not left:
    view.issue('left_context', 'expected 1 or more')
    left = 1
  return dict(
    left_context=left,
    right_context=view.get('right_context') or 0,
    block_size=max(1, left - 1) if block is None else block,
  )


def _uncapped(view: ParamsView, cls: type, **fields) -> Translated | None:
  """Translates an attention whose class never caps logits."""
  view.require('packed_input', False)
  if issubclass(cls, DotProductAttentionXL | DotProductAttentionRPE):
    heads = view.get('num_heads')
    view.require('dim_per_head', None, view.get('hidden_dim') // heads)
  translated = dot_product_attention(view, cls, **fields)
  view.ignore('this class does not cap logits', 'atten_logit_cap')
  if translated is not None:
    translated.config.atten_logit_cap = 0.0
  return translated


def _with_distances(view: ParamsView, cls: type, **fields) -> Translated | None:
  """Translates an attention with sinusoidal relative positions."""
  dims = view.get('rel_pos_emb_dim')
  view.require('rope_tpl', None)
  if not dims or dims < 0 or dims % 2:
    view.issue('rel_pos_emb_dim', f'{dims!r} is not an even number of dims')
    return None
  projection = _position_projection(view, dims)
  translated = _uncapped(
    view,
    cls,
    rel_pos_emb_dim=dims,
    skip_term_b=view.get('skip_term_b'),
    use_relative_bias=True,
    **fields,
  )
  if None in (projection, translated):
    return None
  # With a combined projection of queries, keys and values, no other one uses
  # this template.
  translated.config.proj_tpl = projection_template(projection.config)
  variables = translated.variables
  variables += projection.variables.under('pos_proj', 'pos_proj')
  variables += VariableMap(Variable((name,), name) for name in ('u', 'v'))
  return Translated(translated.config, variables)
