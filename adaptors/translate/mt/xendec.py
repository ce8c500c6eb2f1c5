"""Translators of XEnDec: a Transformer that learns from mixed sentences."""

import dataclasses

from adaptors.translate.mt import transformer
from adaptors.translate.mt.model import translation_model
from adaptors.translate.mt.parts import Part
from adaptors.translate.registry import Translated, translates
from adaptors.translate.training import learners
from adaptors.translate.view import ParamsView
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.models.crossover_model import CrossoverModel
from pax_compat.layers.transformer_models.crossover_encoder_decoder import (
  CrossoverEncoderDecoder,
)

# By Lingvo's field: ours.
_WEIGHTS = {
  'loss_clean_weight': 'clean_weight',
  'loss_mono_weight': 'other_weight',
  'loss_mix_weight': 'mix_weight',
}


@translates('lingvo.tasks.mt.model.TransformerXEnDecModel')
def xendec_model(view: ParamsView) -> Translated | None:
  """Returns a `CrossoverModel`."""
  view.ignore('Lingvo does not read it', 'use_prob_drop')
  fields = {ours: float(view.get(name)) for name, ours in _WEIGHTS.items()}
  for name, ours in _WEIGHTS.items():
    if fields[ours] <= 0:
      view.issue(
        name, f'{fields[ours]} is not translated, only what is above 0'
      )
  if max(learners.all_micro_batches(view.params.train)) > 1:
    # Annealing reads Lingvo's global step, which then counts more than batches.
    view.issue('train', 'accumulated gradients are not translated for XEnDec')
  return translation_model(
    view,
    CrossoverModel,
    anneals_labels=view.get('use_prob_cl'),
    atten_drop_prob=float(view.get('atten_drop')),
    **fields,
  )


@translates('lingvo.tasks.mt.encoder.TransformerXEncoder')
def encoder(view: ParamsView) -> Part | None:
  view.require('packed_input', False)
  part = transformer.encoder(view)
  return part and dataclasses.replace(part, network=CrossoverEncoderDecoder)


@translates('lingvo.tasks.mt.decoder.TransformerXDecoder')
def decoder(view: ParamsView) -> Part | None:
  view.require('packed_input', False)
  view.require('use_normalized_atten', False)
  anneals = view.get('use_atten_cl')
  if view.params.label_smoothing is None:
    view.issue('label_smoothing', 'in Lingvo XEnDec needs it')
  part = transformer.decoder(view)
  if part is None:
    return None
  if 'decoder_embedding_tpl' not in part.fields:
    view.issue('softmax', 'in Lingvo it cannot be the embedding of XEnDec')
  stack = part.fields['decoder_stacked_transformer_tpl']
  for layer in stack.transformer_layer_params_tpl:
    attention = layer.cross_atten_tpl
    if not issubclass(attention.cls, DotProductAttention):
      view.issue('trans_tpl', f'{attention.cls.__name__} has no weights here')
      return None
    attention.return_atten_probs = True
  return dataclasses.replace(
    part,
    network=CrossoverEncoderDecoder,
    model_fields={**part.model_fields, 'anneals_attention': anneals},
  )
