"""A translation model from Lingvo's first step to the hypotheses of a search.

As `mt.wmt14_en_de.WmtEnDeTransformerSmall`, in small: it learns to spell words
backwards, from letters to letters.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from tests.adaptors import native_library
from tests.adaptors.bridge.families import mt_transformer
from tests.adaptors.lingvo_checkpoint import continued

pytestmark = native_library.NEEDS_LINGVO

_STEPS, _LENGTH = 40, 4
# Of the tokenizer of letters: `a` and the start and end of a sentence.
_FIRST, _SOS, _EOS = 5, 1, 2


def _params():
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  inputs = lingvo_runtime.module('lingvo.tasks.mt.input_generator')
  params = mt_transformer.task_params(
    vocab_size=76, model_dim=32, hidden_dim=64, warmup_steps=50
  )
  tokenizer = tokenizers.AsciiTokenizer.Params().Set(vocab_size=76)
  params.input = inputs.NmtInput.Params().Set(tokenizer=tokenizer)
  params.decoder.beam_search.num_hyps_per_beam = 4
  params.decoder.target_seq_len = _LENGTH + 2
  return params


def _batch(seed, rows=32):
  """Returns words of a few letters, and the same ones backwards."""
  rng = np.random.default_rng(seed)
  words = rng.integers(_FIRST, _FIRST + 6, (rows, _LENGTH), np.int32)
  end, start = (np.full((rows, 1), x, np.int32) for x in (_EOS, _SOS))
  labels = np.concatenate([words[:, ::-1], end], axis=1)
  paddings = np.zeros(labels.shape, np.float32)
  return {
    'src.ids': np.concatenate([words, end], axis=1),
    'src.paddings': paddings,
    'tgt.ids': np.concatenate([start, labels[:, :-1]], axis=1),
    'tgt.labels': labels,
    'tgt.paddings': paddings,
    'tgt.weights': 1 - paddings,
  }


@pytest.mark.slow
def test_lingvo_trains_then_we_do_and_both_find_the_same_words(tmp_path):
  data = [_batch(seed) for seed in range(2 * _STEPS)]
  trained = continued.Continued.run(_params(), data, tmp_path, _STEPS)
  assert trained.losses[-1] < 0.95 * trained.losses[0]
  held_out = [_batch(-seed % 2**31, rows=8) for seed in (1, 2)]
  _, theirs, metrics = trained.check_decoding(held_out)
  assert metrics.keys() == theirs.metrics.keys()
  assert metrics['corpus_bleu'] > 0.1
