"""Parts of networks that several base classes share."""

import math

from pax_compat import layers
from pax_compat.base_layer import WeightInit
from pax_compat.config import Config


def set_vocabulary(
  lm: Config,
  *,
  model_dims: int,
  vocab_size: int,
  soft_cap_logits: float | None = 0.0,
  separate_embedding: bool = False,
):
  """Sets the embedding and the softmax of a network.

  Args:
    lm: config of a `TransformerLm`.
    model_dims: dims of the layers' inputs and outputs.
    vocab_size: number of tokens.
    soft_cap_logits: cap of the logits; 0 or None for no cap.
    separate_embedding: whether embedding and softmax have separate weights.
  """
  lm.set(model_dims=model_dims, vocab_size=vocab_size)
  if separate_embedding:
    lm.separate_embedding_tpl = layers.Embedding.config(scale_sqrt_depth=True)
    lm.softmax_tpl = layers.FullSoftmax.config()
  else:
    lm.softmax_tpl.scale_sqrt_depth = True
  lm.softmax_tpl.set(
    params_init=WeightInit.Gaussian(1.0 / math.sqrt(model_dims)),
    soft_cap_logits=soft_cap_logits,
  )


def repeated(
  stack: Config,
  times: int,
  checkpoint_policy: str = layers.AutodiffCheckpointType.SAVE_NOTHING,
) -> Config:
  """Returns a stack of one layer, compiled once and repeated.

  Args:
    stack: config of a `StackedTransformer`; it is changed.
    times: number of repeats.
    checkpoint_policy: what a layer saves for the backward pass.
  """
  return layers.StackedTransformerRepeated.config(
    block=stack.set(num_layers=1),
    x_times=times,
    checkpoint_policy=checkpoint_policy,
  )
