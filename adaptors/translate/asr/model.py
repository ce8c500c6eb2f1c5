"""Translator of Lingvo's speech-recognition model."""

from adaptors.translate import registry
from adaptors.translate.mt.parts import search_settings
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView, class_path
from pax_compat.config import Config
from pax_compat.layers.models.speech_model import SpeechModel

_METRICS = 'lingvo.tasks.asr.decoder_metrics.DecoderMetrics'


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
    search_tpl=_search(view),
  )
  variables = encoder.variables.under('encoder', 'encoder')
  return Translated(
    config, variables + decoder.variables.under('decoder', 'decoder')
  )


def _search(view: ParamsView) -> Config | None:
  """Returns the settings of the beam search; see `search_settings`."""
  if class_path(view.params.decoder_metrics.cls) != _METRICS:
    return None  # Other metrics may read more of Lingvo's hypotheses.
  return search_settings(view.child('decoder'), has_coverage=True)
