"""mt's XEnDec, as in `mt.xendec.wmt14_en_de`.

Its attention dropout uses unseeded random numbers, with a rate of 0.2 in the
stock experiment. Here the default is 0, so that two runs can be compared.
"""

import numpy as np

from adaptors import lingvo_runtime
from tests.adaptors.bridge.families import sentence_pairs

LEARNS_LIKE = 'mt_transformer'


def task_params(atten_drop: float = 0.0):
  """Returns Params of a small XEnDec, without dropout.

  Args:
    atten_drop: attention dropout rate; 0.2 in the stock experiment.
  """
  base_config = lingvo_runtime.module('lingvo.tasks.mt.base_config')
  model = lingvo_runtime.module('lingvo.tasks.mt.model')
  params = base_config.SetupXEnDecTransformerParams(
    model.TransformerXEnDecModel.Params(),
    name='mt_xendec',
    vocab_size=sentence_pairs.VOCAB_SIZE,
    model_dim=16,
    hidden_dim=32,
    num_heads=2,
    num_layers=1,
    learning_rate=1.0,
    warmup_steps=100,
    residual_dropout_prob=0.0,
  )
  return params.Set(use_prob_cl=True, atten_drop=atten_drop)


def batch(seed: int) -> dict[str, np.ndarray]:
  """Returns a batch by dotted name: pairs, other pairs to mix in, and masks."""
  pairs = sentence_pairs.batch(seed)
  others = sentence_pairs.batch(seed + 1000)
  rng = np.random.default_rng(seed)
  paddings = pairs['src.paddings']
  mask = (rng.random(paddings.shape) < 0.4) * (1 - paddings)
  return {
    **pairs,
    **{f'other_{name}': x for name, x in others.items()},
    'src.source_mask': mask.astype(np.float32),
  }
