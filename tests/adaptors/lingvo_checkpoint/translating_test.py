"""A translation model from Lingvo's first step to the hypotheses of a search.

As `mt.wmt14_en_de.WmtEnDeTransformerSmall`, in small: it learns to spell words
backwards, from letters to letters.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.checkpoints import exporting, files, importing, task_metadata
from adaptors.lingvo_parity.batches import nested
from pax_compat.metrics import clu_metrics
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.bridge import decoded
from tests.adaptors.bridge.families import mt_transformer
from tests.adaptors.lingvo_checkpoint import lingvo_runs

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
  params = _params()
  data = [_batch(seed) for seed in range(2 * _STEPS)]
  lingvo_runs.train(params, data[:_STEPS], tmp_path, every=_STEPS)
  translated = bridge_task.translate(params, 'mt', 'native')
  made = program.create(
    translated.config.Instantiate(),
    partitioning.create_mesh(None, None),
    nested(data[0]),
  )
  metadata = task_metadata.of(params, translated)
  saved = files.TensorflowCheckpoint(tmp_path / f'ckpt-{_STEPS:08d}')
  state = importing.read_state(saved, metadata, made, nested(data[0]))
  losses = []
  for batch in data[_STEPS:]:
    state, outputs = made.train_step(state, nested(batch))
    losses.append(float(outputs['loss']))
  assert losses[-1] < 0.95 * losses[0]

  exported = exporting.write(state, metadata, tmp_path / 'exported')
  found = files.TensorflowCheckpoint(exported)
  theta = {path: found.read(name) for path, name in metadata.names.items()}
  held_out = [_batch(-seed % 2**31, rows=8) for seed in (1, 2)]
  _, wanted, metrics = decoded.in_lingvo(params, held_out, theta=theta)
  model, merged = translated.config.model.Instantiate(), None
  for batch, pairs in zip(held_out, wanted, strict=True):
    _, own, clu = decoded.by_model(model, dict(state.mdl_vars), nested(batch))
    decoded.check_same(own, pairs)
    merged = clu_metrics.merge(merged, clu)
  assert decoded.values(merged) == pytest.approx(metrics)
  assert metrics['corpus_bleu'] > 0.1
