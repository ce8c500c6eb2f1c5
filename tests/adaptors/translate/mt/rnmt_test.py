"""RNMT+ and the punctuator, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.bridge.families import mt_rnmt, punctuator, sentence_pairs
from tests.adaptors.translate import task_parity, tiny_task
from tests.adaptors.translate.mt import sequences


@pytest.mark.exhaustive
@pytest.mark.parametrize('family', [mt_rnmt, punctuator])
def test_twenty_steps(family):
  """Of the stock learner: Adam with regularization and a ramp of the rate."""
  params = family.task_params()
  params.train.lr_schedule.warmup = 10
  batches = [family.batch(seed) for seed in range(20)]
  theirs = task_parity.check(params, batches)
  for path, value in theirs.last.items():
    if not path.startswith('learners['):
      assert np.any(theirs.first[path] != value), path


def _packed():
  params = mt_rnmt.task_params(encoder_layers=3)
  params.encoder.Set(packed_input=True, encoder_out_dim=8)
  params.decoder.Set(packed_input=True, use_zero_atten_state=True)
  params.decoder.attention.Set(
    enable_ctx_pre_proj=True,
    use_source_vec_as_attention_value=False,
    enable_ctx_post_proj=True,
    ctx_post_proj_dim=6,
  )
  params.decoder.per_word_avg_loss = True
  return params


def _one_head():
  attention = lingvo_runtime.module('lingvo.core.attention')
  params = mt_rnmt.task_params(decoder_layers=1)
  params.encoder.Set(encoder_out_dim=16, num_lstm_layers=1)
  params.decoder.Set(
    source_dim=16,
    attention=attention.AdditiveAttention.Params().Set(hidden_dim=5),
    feed_attention_context_vec_to_softmax=False,
    label_smoothing=None,
  )
  return params


@pytest.mark.slow
@pytest.mark.parametrize(
  ('make', 'batch'),
  [(_packed, sequences.packed_batch), (_one_head, sentence_pairs.batch)],
)
def test_other_settings(make, batch):
  task_parity.check_evaluation(make(), batch(1))


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('encoder.is_transparent', True),
    ('encoder.bidi_rnn_type', 'sru'),
    ('encoder.shared_emb', 1),
    ('encoder.packed_input', True),
    ('decoder.use_prev_atten_ctx', True),
    ('decoder.packed_input', True),
    ('decoder.attention.proj_init', 'uniform'),
    ('decoder.zero_token_embs_first_time_step', True),
    ('decoder.emb.vocab_size', 5),
  ],
)
def test_what_is_refused(field, value):
  params = mt_rnmt.task_params()
  params.Set(**{field: value})
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  assert field.split('.')[-1] in str(error.value)
