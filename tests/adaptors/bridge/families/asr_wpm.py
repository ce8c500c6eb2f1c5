"""Speech recognition by word pieces, as Librispeech's stock experiment, small.

As by letters, but with fewer layers, and more tokens with sharded embeddings.
"""

from tests.adaptors.bridge.families import asr_grapheme

LEARNS_LIKE = 'asr_grapheme'

_VOCAB = 128


def task_params():
  """Returns Params of the task."""
  p = asr_grapheme.task_params(_VOCAB)
  p.encoder.num_lstm_layers = 1
  p.decoder.rnn_layers = 1
  p.decoder.target_seq_len = 140
  p.decoder.emb.max_num_shards = 8
  return p


def batch(seed):
  """Returns eight random utterances."""
  return asr_grapheme.batch(seed, _VOCAB)
