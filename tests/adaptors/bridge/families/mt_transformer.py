"""mt's Transformer, as in `mt.wmt14_en_de.WmtEnDeTransformerBase`."""

from adaptors import lingvo_runtime
from tests.adaptors.bridge.families import sentence_pairs

batch = sentence_pairs.batch

_SHARDS = 4


def task_params(**changes):
  """Returns Params of a small Transformer, without dropout.

  Args:
    **changes: of the arguments of `SetupTransformerParams`.
  """
  base_config = lingvo_runtime.module('lingvo.tasks.mt.base_config')
  model = lingvo_runtime.module('lingvo.tasks.mt.model')
  sizes = dict(
    vocab_size=sentence_pairs.VOCAB_SIZE,
    model_dim=16,
    hidden_dim=32,
    num_heads=2,
    num_layers=1,
  )
  training = dict(learning_rate=1.0, warmup_steps=100)
  params = base_config.SetupTransformerParams(
    model.TransformerModel.Params(),
    name='mt_transformer',
    residual_dropout_prob=0.0,
    **{**sizes, **training, **changes},
  )
  # 16 in the stock experiment.
  for table in (params.encoder.token_emb, params.decoder.token_emb):
    table.max_num_shards = _SHARDS
  params.decoder.softmax.num_shards = _SHARDS
  return params
