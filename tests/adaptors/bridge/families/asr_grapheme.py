"""Speech recognition by letters, as Librispeech's stock experiment, in small.

Convolutions and bidirectional LSTMs with batch norm, and an attention decoder.
As in the stock experiment the encoder adds `pad_steps` to the frames, which is
not supported when Lingvo builds for a TPU.
"""

import numpy as np

from adaptors import lingvo_runtime

_VOCAB = 76
_BINS = 16


def task_params(vocab=_VOCAB):
  """Returns Params of the task; `vocab` is the number of its tokens."""
  model = lingvo_runtime.module('lingvo.tasks.asr.model')
  inputs = lingvo_runtime.module('lingvo.tasks.asr.input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  p = model.AsrModel.Params().Set(name='librispeech')
  p.vn.global_vn = True
  p.input = inputs.AsrInput.Params()
  p.encoder.Set(
    input_shape=[None, None, _BINS, 1],
    conv_filter_shapes=[(3, 3, 1, 4), (3, 3, 4, 4)],
    lstm_cell_size=8,
    num_conv_lstm_layers=0,
    num_lstm_layers=2,
  )
  # With the stock experiment's initial weights, a hundredth of these, gradients
  # of the attention would be rounding errors only.
  p.encoder.cnn_tpl.params_init = py_utils.WeightInit.Gaussian(0.3)
  for recurrent in p.encoder.lstm_tpl, p.decoder.rnn_cell_tpl:
    recurrent.params_init = py_utils.WeightInit.Uniform(0.8)
  p.decoder.Set(
    target_seq_len=620,
    emb_dim=_VOCAB,
    rnn_cell_dim=8,
    source_dim=16,
    rnn_layers=2,
    use_while_loop_based_unrolling=False,
  )
  p.decoder.attention.hidden_dim = 8
  p.decoder.emb.vocab_size = vocab
  p.decoder.softmax.num_classes = vocab
  p.train.learning_rate = 2.5e-4
  p.train.lr_schedule = schedule.ContinuousSchedule.Params().Set(
    start_step=50_000
  )
  return p


def batch(seed, vocab=_VOCAB):
  """Returns eight utterances of at most 12 frames and 6 tokens, random."""
  rng = np.random.default_rng(seed)
  frames = _paddings(rng, 8, 12)
  paddings = _paddings(rng, 8, 6)
  tokens = rng.integers(4, vocab, (8, 7), np.int32)
  return {
    'src.src_inputs': rng.normal(size=(8, 12, _BINS, 1)).astype(np.float32)
    * (1 - frames[..., None, None]),
    'src.paddings': frames,
    'tgt.ids': tokens[:, :-1],
    'tgt.labels': tokens[:, 1:],
    'tgt.paddings': paddings,
    'tgt.weights': 1 - paddings,
  }


def _paddings(rng, rows, length):
  """Returns paddings of rows whose lengths are random, at least half."""
  lengths = rng.integers(length // 2, length + 1, (rows, 1))
  return (np.arange(length) >= lengths).astype(np.float32)
