"""Translator of Lingvo's speech-recognition model."""

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView
from pax_compat.layers.models.speech_model import SpeechModel


@translates('lingvo.tasks.asr.model.AsrModel')
def asr_model(view: ParamsView) -> Translated | None:
  """Returns a `SpeechModel`.

  Lingvo's metrics also have names like `loss/logits`; those are the same here
  as without `/logits`, since there is one kind of logits.
  """
  view.require('frontend', None)
  for name in ('decoder_metrics', 'include_auxiliary_metrics'):
    view.get(name)  # Only Lingvo's search reads them.
  encoder, decoder = (
    registry.translate(view.child(name)) for name in ('encoder', 'decoder')
  )
  if encoder is None or decoder is None:
    return None
  per_token = view.params.decoder.per_token_avg_loss
  config = SpeechModel.config(
    encoder_tpl=encoder.config,
    decoder_tpl=decoder.config,
    loss_per_sequence=not per_token,
  )
  variables = encoder.variables.under('encoder', 'encoder')
  return Translated(
    config, variables + decoder.variables.under('decoder', 'decoder')
  )
