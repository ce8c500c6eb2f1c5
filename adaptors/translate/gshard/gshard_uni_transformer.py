"""Translator of GShard's language model, `UniTransformer`."""

from adaptors.translate.gshard import gshard_builder, gshard_mesh
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView
from pax_compat.layers.models.packed_language_model import PackedLanguageModel

_WITHOUT_EFFECT = {
  "each example's outputs are its labels and score": ('debug',),
  "summaries are the trainer's": ('enable_tpu_summary',),
  'decoding by beam search is not translated': (
    'decoder_beam_size',
    'decoder_bos_id',
    'decoder_eos_id',
    'decoder_max_steps',
    'use_log_softmax_normalization',
  ),
  'without parallel_ffn it does nothing': (
    'hidden_dim_reshape_segments',
    'use_per_layer_vars_for_recurrent',
  ),
}


@translates('lingvo.core.gshard_builder.UniTransformer')
def uni_transformer(view: ParamsView) -> Translated | None:
  """Returns the model; the task translator adds the training."""
  view.get('params_init')  # Each weight has its own initializer.
  for name in ('parallel_ffn', 'multi_dconv_head_att', 'is_quantize'):
    view.require(name, False)
  for name in ('has_embedding_layer', 'has_final_layer'):
    view.require(name, True)
  view.require('conv_kernel_size', None)
  view.require('start_layer_id', 0)
  for why, names in _WITHOUT_EFFECT.items():
    view.ignore(why, *names)
  builder = gshard_builder.read(view)
  kind = _kind(view)
  if builder is None:
    return None
  lm = gshard_builder.network(view, builder, kind)
  if lm is None:
    return None
  config = PackedLanguageModel.config(
    lm_tpl=lm.config, **gshard_mesh.model_fields(builder)
  )
  return Translated(config, lm.variables.under('', 'lm'))


def _kind(view: ParamsView) -> gshard_builder.Kind:
  """Returns the fields that `BertTransformer` does not have."""
  cap = view.get('softmax_logit_cap')
  sub_layers = view.get('sub_layer_types')
  sinusoid = view.get('sinusoid_positional_embedding')
  if sinusoid:
    view.require('positional_embedding', True)
  return gshard_builder.Kind(
    side='dec',
    attention='dec_self_attention',
    gated_activation=_gated_activation(view),
    norm_type=view.get('norm_type'),
    norm_policy=view.get('norm_policy'),
    sub_layer_types=tuple(sub_layers) if sub_layers else None,
    sinusoid=sinusoid,
    max_timescale=view.get('pos_emb_max_timescale'),
    softmax_bias=view.get('softmax_bias'),
    softmax_logit_cap=max(cap or 0.0, 0.0),
    scale_outputs=view.get('scale_decoder_outputs'),
    over_all_positions=view.get('use_tgt_labels_size_as_loss_denominator'),
  )


def _gated_activation(view: ParamsView) -> str | None:
  """Returns the activation of gated feed-forwards; None if they are not."""
  own, gelu = view.get('gated_ffn_activation'), view.get('gated_gelu')
  if own == 'silu':
    return own
  if gelu and not callable(own):
    return 'gelu'
  view.require('gated_ffn_activation', None, '', 'gelu', 'silu')
  return own or None
