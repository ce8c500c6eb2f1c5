"""Options of text generation."""

import dataclasses
from typing import Any

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  SampleDecoderHParams,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingOptions:
  """How texts are continued; each option is None if it is not given.

  The options of sampling select it, and `beam_size` selects beam search;
  without any, the decoder of the model is used.

  Attributes:
    temperature: divides the logits; 0 takes the most likely token.
    top_k: samples from as many tokens; 0 from all, the default.
    top_p: samples from the most likely tokens of this total probability.
    num_samples: number of continuations of each text.
    beam_size: number of hypotheses of a beam search.
    seed: of the samples; that of the task's decoding if None.
    draft_steps: number of tokens that a draft model proposes in a step; None
      for 4.

  Raises:
    UserError: options of sampling and of beam search are given.
  """

  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None
  num_samples: int | None = None
  beam_size: int | None = None
  seed: int | None = None
  draft_steps: int | None = None

  def __post_init__(self):
    if self.beam_size is None:
      return
    names = {'k': 'top_k', 'p': 'top_p'}
    others = [names.get(name, name) for name in self.samples]
    others += ['seed'] * (self.seed is not None)
    if others:
      raise errors.UserError(
        f'beam_size and {others[0]} are given, but a beam search does not'
        ' sample; expected one of them'
      )

  @property
  def samples(self) -> dict[str, Any]:
    """The given options of sampling, as fields of `SampleDecoderHParams`."""
    given = {
      'temperature': self.temperature,
      'k': self.top_k,
      'p': self.top_p,
      'num_samples': self.num_samples,
    }
    return {name: value for name, value in given.items() if value is not None}

  def decoder(self, config: config_lib.Config) -> config_lib.Config:
    """Returns the config of the decoder.

    Args:
      config: that of the model; its fields are kept where the decoder has them.
    """
    if self.beam_size is not None:
      cls, fields = BeamSearchHParams, {'beam_size': self.beam_size}
    elif self.samples:
      cls, fields = SampleDecoderHParams, {'k': 0, **self.samples}
    else:
      return config
    if issubclass(config.cls, cls):
      return config.clone().set(**{**fields, **self.samples})
    known = config_lib.field_names(cls.config())
    kept = {
      name: value
      for name, value in config_lib.set_fields(config).items()
      if name in known
    }
    return cls.config(**{**kept, **fields})


def options(**fields: Any) -> DecodingOptions:
  """Returns options; a UserError names an option that does not exist."""
  names = [field.name for field in dataclasses.fields(DecodingOptions)]
  for name in fields:
    if name not in names:
      raise errors.UserError(
        f'generate() has no option {name!r}' + errors.did_you_mean(name, names)
      )
  return DecodingOptions(**fields)
