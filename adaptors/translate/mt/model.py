"""Translators of Lingvo's translation models: an encoder and a decoder.

An encoder and its decoder are one network here. The translator of each returns
fields of that network, and its variables:

    @translates('lingvo.tasks.mt.encoder.TransformerEncoder')
    def encoder(view) -> Part
"""

from adaptors.translate import registry
from adaptors.translate.mt.parts import Part
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView, class_path
from pax_compat.layers.models.sequence_model import SequenceModel

_MODEL = 'lingvo.tasks.mt.model'


@translates(f'{_MODEL}.TransformerModel')
def transformer_model(view: ParamsView) -> Translated | None:
  return translation_model(view)


@translates('lingvo.tasks.mt.model.MTBaseModel')
def base_model(view: ParamsView) -> Translated | None:
  return translation_model(view)


def translation_model(
  view: ParamsView, model: type = SequenceModel, **fields
) -> Translated | None:
  """Returns a model of the network that both parts belong to.

  Args:
    view: of the model.
    model: its class, a `SequenceModel`.
    **fields: further fields of it.
  """
  encoder, decoder = (
    registry.translate(view.child(name)) for name in ('encoder', 'decoder')
  )
  if not isinstance(encoder, Part) or not isinstance(decoder, Part):
    return None
  if encoder.network is not decoder.network:
    names = (class_path(view.params.Get(n).cls) for n in ('encoder', 'decoder'))
    view.issue('decoder', f'{" and ".join(names)} are not translated together')
    return None
  for name in encoder.both.keys() | decoder.both.keys():
    values = encoder.both.get(name), decoder.both.get(name)
    if values[0] != values[1]:
      view.issue(
        'decoder',
        f'its {name} is {values[1]!r}, and that of the encoder {values[0]!r};'
        ' expected the same',
      )
  network = encoder.network.config(
    **encoder.both, **encoder.fields, **decoder.fields
  )
  config = model.config(model_tpl=network, **decoder.model_fields, **fields)
  variables = encoder.variables.under('enc', 'model')
  return Translated(config, variables + decoder.variables.under('dec', 'model'))
