"""A network whose logits depend on the last token only."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.base_layer import DECODE_CACHE, RANDOM, BaseLayer
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap


class Table(BaseLayer):
  """Returns rows of a table; its state must follow the rows that are decoded.

  Attributes:
    table: [V, V], the logits after each token.
    vocab_size: V.
  """

  table: Any = None
  vocab_size: int = 0

  def init_states(self, batch_size, length):
    self.update_decode_state('tokens', jnp.zeros([batch_size, length], int))

  def extend_step(self, ids, *, time_step, **positions):
    del positions
    tokens = jax.lax.dynamic_update_slice_in_dim(
      self.get_decode_state('tokens'), ids, time_step, axis=1
    )
    self.update_decode_state('tokens', tokens)
    # Through the state, so that a row of another one has other logits.
    read = jax.lax.dynamic_slice_in_dim(tokens, time_step, ids.shape[1], axis=1)
    return NestedMap(logits=jnp.asarray(self.table)[read])


def decode(table, settings, batch, seed=0):
  """Returns what a `LanguageModel` of the table decodes, as NumPy arrays."""
  model = models.LanguageModel.config(
    lm_tpl=Table.config(table=np.asarray(table), vocab_size=len(table)),
    decoder_tpl=settings,
  ).Instantiate()

  def run(batch):
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        {},
        NestedMap(batch),
        method=model.decode,
        mutable=[DECODE_CACHE],
        rngs={RANDOM: jax.random.key(seed)},
      )
    return out

  return jax.tree.map(np.asarray, jax.jit(run)(dict(batch)))
