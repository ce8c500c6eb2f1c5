"""The captions' Transformer, as `mt.wmtm16_en_de` has it for Cloud TPUs.

It is mt's Transformer with unsharded embeddings.
"""

from tests.adaptors.bridge.families import mt_transformer

LEARNS_LIKE = 'mt_transformer'

batch = mt_transformer.batch


def task_params():
  """Returns Params of a small Transformer, without dropout."""
  params = mt_transformer.task_params(
    num_heads=4, learning_rate=2.0, warmup_steps=50
  )
  params.name = 'wmtm16'
  params.encoder.token_emb.max_num_shards = 1
  params.decoder.token_emb.max_num_shards = 1
  return params
