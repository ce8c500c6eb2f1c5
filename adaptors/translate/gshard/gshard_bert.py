"""Translators of GShard's masked language model, `BertTransformer`."""

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.gshard import gshard_builder, gshard_mesh
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView, short
from pax_compat.layers.models.gshard_bert_model import GShardBertModel
from pax_compat.layers.models.masked_lm import MaskedLmDataAugmenter


@translates('lingvo.core.layers.MaskedLmDataAugmenter')
def masked_lm(view: ParamsView) -> Translated:
  """Returns an augmenter whose probabilities are the same at all steps."""
  view.require('mlm_duration', 0)
  view.ignore('mlm_duration is 0', 'min_replace_prob_ratio')
  same = (
    'vocab_size',
    'mask_prob',
    'random_prob',
    'same_prob',
    'mask_token_id',
    'random_avoid_ids',
  )
  config = MaskedLmDataAugmenter.config(
    **{name: view.get(name) for name in same}
  )
  return Translated(config)


@translates('lingvo.core.gshard_builder.BertTransformer')
def bert(view: ParamsView) -> Translated | None:
  """Returns the model; the task translator adds the training."""
  view.get('params_init')  # Each weight has its own initializer.
  augmenter = _augmenter(view)
  relative = not view.get('positional_embedding')
  kind = gshard_builder.Kind(
    side='enc',
    # Lingvo's name of this encoder's attention.
    attention='dec_self_attention' if relative else 'self_attention',
    gated_activation=_gated_activation(view),
  )
  builder = gshard_builder.read(view)
  if builder is None:
    return None
  network = gshard_builder.network(view, builder, kind)
  mesh = gshard_mesh.model_fields(builder)
  if None in (network, augmenter):
    return None
  config = GShardBertModel.config(
    lm_tpl=network.config,
    mlm_augmenter_tpl=augmenter.config,
    mask_token_id=None,
    **mesh,
  )
  return Translated(config, network.variables.under('', 'lm'))


def _augmenter(view: ParamsView) -> Translated | None:
  """Returns the augmenter, which masks tokens of batches without masks."""
  if not view.get('mlm_loss_weight') > 0:
    view.issue(
      'mlm_loss_weight',
      f'{view.params.mlm_loss_weight} is not translated, only numbers above 0:'
      ' otherwise no token is masked, and the loss is NaN',
    )
  view.ignore('any number above 0 is the same in Lingvo', 'mlm_loss_weight')
  # The task overrides these fields of the augmenter.
  return registry.translate(
    view.child(
      'masked_lm',
      vocab_size=view.get('vocab_size'),
      mask_token_id=view.get('mask_token_id'),
    )
  )


def _gated_activation(view: ParamsView) -> str | None:
  """Returns the activation of gated feed-forwards; None if they are not."""
  found = view.get('gated_ffn_activation')
  if not found:
    return None
  if found in ('silu', 'gelu'):
    return found
  nn = lingvo_runtime.module('lingvo.compat').nn
  if found in (nn.silu, nn.swish):
    return 'silu'
  view.issue(
    'gated_ffn_activation',
    f"{short(found)} is not translated, only 'silu', 'gelu', tf.nn.silu and"
    ' None',
  )
  return None
