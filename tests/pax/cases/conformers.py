"""Cases of Conformers and their attention."""

from tests.pax.layer_cases import Case, normal, paddings


def _attention(**fields):
  def config(n):
    given = {k: v for k, v in fields.items() if k not in _WINDOW}
    window = {k: v for k, v in fields.items() if k in _WINDOW}
    kind = given.pop('kind', 'DotProductAttentionWithContext')
    attention = n.Config(getattr(n.layers, kind), **window)
    attention.set(input_dim=8, hidden_dim=8, num_heads=2)
    if kind.endswith('XL'):
      attention.rel_pos_emb_dim = 8
    norm = n.Config(n.layers.LayerNorm, dim=8)
    return n.Config(
      n.layers.SelfAttentionWithNormAndResidual,
      self_atten_tpl=attention,
      norm_tpl=norm,
      **given,
    )

  return config


def _conformer(**fields):
  sizes = dict(input_dims=8, model_dims=8, kernel_size=3, atten_num_heads=2)
  return lambda n: n.Config(n.layers.Conformer, **(sizes | fields))


_WINDOW = ('left_context', 'right_context')
_TOKENS = (normal(2, 7, 8),)
_PADDED = dict(paddings=paddings(7, 7, 5))
_NO_PADDING = dict(paddings=paddings(7, 7, 7))


CASES = {
  'attention': Case(_attention(), _TOKENS, _PADDED),
  'attention_window': Case(
    _attention(left_context=3, right_context=1), _TOKENS, _PADDED
  ),
  'attention_left': Case(_attention(left_context=2), _TOKENS, _PADDED),
  'attention_xl': Case(
    _attention(kind='DotProductAttentionWithContextXL', right_context=2),
    _TOKENS,
    _PADDED,
  ),
  'attention_post_skip': Case(
    _attention(pre_layer_norm=False), _TOKENS, _PADDED
  ),
  'attention_primer': Case(
    _attention(
      pre_layer_norm=None,
      norm_policy='primer_hybrid',
      residual_weight=0.5,
      input_weight=2.0,
    ),
    _TOKENS,
    _PADDED,
  ),
  'conformer': Case(_conformer(), _TOKENS, _NO_PADDING),
  'conformer_padded': Case(_conformer(), _TOKENS, _PADDED, train=False),
  'conformer_conv_first': Case(
    _conformer(layer_order='conv_before_mhsa', fflayer_weight_sharing=True),
    _TOKENS,
    _NO_PADDING,
  ),
  'conformer_conv': Case(
    _conformer(layer_order='conv', fflayer_end_tpl=None, final_ln_tpl=None),
    _TOKENS,
    _NO_PADDING,
  ),
  'conformer_projecting': Case(
    lambda n: _conformer(
      input_dims=6,
      fflayer_start_tpl=n.Config(
        n.layers.TransformerFeedForward, add_skip_connection=False
      ),
    )(n),
    (normal(2, 7, 6),),
    _NO_PADDING,
  ),
}
