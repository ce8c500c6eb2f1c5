"""A speech recognizer from Lingvo's first step to the hypotheses of a search.

As `asr.librispeech.Librispeech960Grapheme`, in small: it learns to write down a
few words of a letter; letters and spaces are tones of some frames.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from tests.adaptors import native_library
from tests.adaptors.bridge.families import asr_grapheme
from tests.adaptors.lingvo_checkpoint import continued

pytestmark = native_library.NEEDS_LINGVO

_STEPS, _SPOKEN, _FRAMES, _BINS = 10, 3, 8, 16
# Of the tokenizer of letters: a space, and the start and end of a sentence.
_SPACE, _SOS, _EOS = 3, 1, 2
_BEFORE_A = 4
_LETTERS = 3


def _params():
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  params = asr_grapheme.task_params()
  params.input.tokenizer = tokenizers.AsciiTokenizer.Params().Set(vocab_size=76)
  params.encoder.Set(num_lstm_layers=1, lstm_cell_size=16)
  params.decoder.Set(rnn_layers=1, rnn_cell_dim=32, source_dim=32)
  params.decoder.target_seq_len = _SPOKEN + 2
  params.decoder.beam_search.num_hyps_per_beam = 4
  params.train.Set(
    learning_rate=2e-2, lr_schedule=schedule.Constant.Params(), vn_std=0.0
  )
  return params


def _batch(seed, rows=16, *, ends=True):
  """Returns utterances of two words, and as many of one.

  Args:
    seed: of the words.
    rows: number of utterances.
    ends: whether targets have the end of a sentence, which Lingvo's metrics
      take for a part of the last word.
  """
  rng = np.random.default_rng(seed)
  symbols = rng.integers(1, 1 + _LETTERS, (rows, _SPOKEN), np.int32)
  symbols[:, 1] = 0  # A space.
  lengths = np.repeat([_SPOKEN, 1], rows // 2)[:, None]
  spoken = np.arange(_SPOKEN) < lengths
  tones = np.eye(_BINS, dtype=np.float32)[4 * symbols] * spoken[..., None]
  frames = np.repeat(3 * tones, _FRAMES, axis=1)
  frames += 0.1 * rng.normal(size=frames.shape).astype(np.float32)
  heard = np.repeat(spoken, _FRAMES, axis=1).astype(np.float32)
  ids = np.where(symbols > 0, symbols + _BEFORE_A, _SPACE)
  ids = np.where(spoken, ids, _EOS)
  end, start = (np.full((rows, 1), x, np.int32) for x in (_EOS, _SOS))
  paddings = (np.arange(_SPOKEN + 1) >= lengths + ends).astype(np.float32)
  return {
    'src.src_inputs': (frames * heard[..., None])[..., None],
    'src.paddings': 1 - heard,
    'tgt.ids': np.concatenate([start, ids], axis=1, dtype=np.int32),
    'tgt.labels': np.concatenate([ids, end], axis=1, dtype=np.int32),
    'tgt.paddings': paddings,
    'tgt.weights': 1 - paddings,
    'sample_ids': np.arange(rows, dtype=np.int32),
  }


@pytest.mark.slow
def test_lingvo_trains_then_we_do_and_both_hear_the_same_letters(tmp_path):
  data = [_batch(seed) for seed in range(2 * _STEPS)]
  trained = continued.Continued.run(_params(), data, tmp_path, _STEPS)
  assert trained.losses[-1] < 0.95 * trained.losses[0]
  held_out = [_batch(-seed % 2**31, rows=8, ends=False) for seed in (1, 2)]
  ours, theirs, metrics = trained.check_decoding(held_out)
  for found, wanted in zip(ours, theirs.outputs, strict=True):
    ids = wanted['topk_ids'].reshape(found['ids'].shape)
    np.testing.assert_array_equal(found['ids'], ids)
    lengths = wanted['topk_lens'].reshape(found['lengths'].shape)
    np.testing.assert_array_equal(found['lengths'], lengths)
    scores = wanted['topk_scores']
    np.testing.assert_allclose(found['scores'], scores, rtol=1e-5, atol=1e-5)
  assert 0.1 < metrics['wer'] < 0.9
