"""Settings of decoders."""

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.configs import config_text
from pax_compat.decoder_hparams import DecoderHParams, GreedyDecoderHParams
from pax_compat.layers import models


def test_the_ids_that_end_a_sequence():
  assert DecoderHParams().eos_ids == (2,)
  assert DecoderHParams(eos_id=5).eos_ids == (5,)
  assert DecoderHParams(eos_id=[5, 7]).eos_ids == (5, 7)
  assert DecoderHParams(eos_id=np.int32(5)).eos_ids == (5,)


def test_a_models_decoder_is_set_as_any_field():
  config = models.LanguageModel.config()
  config.decoder_tpl.seqlen = 32
  config.lm_tpl.set(vocab_size=4, model_dims=4)
  config.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, hidden_dims=4, num_heads=2
  )
  assert 'decoder_tpl.seqlen = 32' in config_text.to_text(config)
  assert config.Instantiate().decoder_tpl.seqlen == 32
  with pytest.raises(errors.UserError, match='did you mean: .*seqlen'):
    config.decoder_tpl.seqlne = 32
  # The other spelling.
  config.decoder_tpl = GreedyDecoderHParams(seqlen=16)
  assert config.Instantiate().decoder_tpl.seqlen == 16


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'max_decode_steps': [4, 0]}, r'is \[4, 0\]; expected an integer'),
    ({'max_decode_steps': []}, r'is \[\]; expected an integer'),
    ({'max_decode_steps': 0}, 'of at least 1'),
    ({'min_decode_steps': -1}, 'of at least 0'),
    ({'min_decode_steps': 1.5}, 'expected an integer'),
    ({'min_decode_steps': None}, 'expected an integer'),
    ({'seqlen': '8'}, "seqlen is '8'; expected an integer"),
    ({'eos_id': None}, 'eos_id is None; expected a token'),
    ({'eos_id': '2'}, "eos_id is '2'; expected a token"),
    ({'eos_id': [2, 'x']}, 'eos_id is .*; expected a token'),
    ({'eos_id': []}, r'eos_id is \[\]; expected a token'),
  ],
)
def test_what_is_refused(fields, message):
  with pytest.raises(errors.UserError, match=message):
    GreedyDecoderHParams(**fields)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({}, 'GreedyDecoderHParams: seqlen is 0'),
    ({'seqlen': 4, 'fprop_for_prefix': True}, 'max_decode_steps is None'),
  ],
)
def test_what_is_too_little_to_decode_with(fields, message):
  with pytest.raises(errors.UserError, match=message):
    GreedyDecoderHParams(**fields).check_complete()
  GreedyDecoderHParams(
    seqlen=4, max_decode_steps=2, fprop_for_prefix=True
  ).check_complete()
