"""mt's Transformer, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from pax_compat import errors
from tests.adaptors.bridge.families import mt_transformer, sentence_pairs
from tests.adaptors.translate import task_parity, tiny_task
from tests.adaptors.translate.mt import sequences


def _params(**changes):
  return mt_transformer.task_params(num_layers=2, **changes)


@pytest.mark.exhaustive
def test_twenty_steps():
  """Of the stock base model's learner: Adam with its schedule."""
  batches = [mt_transformer.batch(seed) for seed in range(20)]
  theirs = task_parity.check(
    _params(warmup_steps=10), batches, without_gradient='source_proj_b'
  )
  assert theirs.losses[-1] < theirs.losses[0]
  moved = [np.any(theirs.first[k] != v) for k, v in theirs.last.items()]
  assert all(moved)


@pytest.mark.slow
def test_packed_examples():
  params = mt_transformer.task_params()
  for part in (params.encoder, params.decoder):
    part.packed_input = True
  params.encoder.transformer_stack.ln_output = True
  params.decoder.ln_output = True
  params.decoder.per_word_avg_loss = False
  batch = sequences.packed_batch(1)
  theirs, _ = task_parity.check_evaluation(params, batch)
  assert theirs.metrics['loss'][1] == sentence_pairs.ROWS
  assert theirs.metrics['loss'][0] > theirs.metrics['log_pplx'][0]


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('encoder.shared_emb', 1),
    ('encoder.apply_source_mask', True),
    ('encoder.token_emb.embedding_dim', 8),
    ('encoder.transformer_stack.is_transparent', True),
    ('encoder.packed_input', True),
    ('decoder.source_dim', 8),
    ('decoder.zero_token_embs_first_time_step', True),
    ('decoder.token_emb.vocab_size', 8),
    ('decoder.label_smoothing.token_id_uncertainty_larger', [1]),
  ],
)
def test_what_is_refused(field, value):
  params = _params()
  params.Set(**{field: value})
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  last = 'packed_input' if 'packed' in field else field
  assert last in str(error.value)
