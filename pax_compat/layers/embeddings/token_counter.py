"""Number of tokens that a model was trained on.

Shapes: B batch, T time.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.base_layer import WeightHParams, WeightInit

_MILLION = 1_000_000


class TokenCounter(base_layer.BaseLayer):
  """Counts the tokens of all training batches.

  The count is exact. It can exceed an int32 and the precision of a float32, so
  it is stored in two weights: `tokens_mm`, whole millions, and the remainder,
  `tokens_below_mm`. The summary `total_tokens_mm` is in millions.
  """

  def setup(self):
    for name in ('tokens_mm', 'tokens_below_mm'):
      weight = WeightHParams([], WeightInit.Constant(0), dtype=jnp.int32)
      self.create_variable(name, weight, trainable=False)

  def __call__(self, paddings: jax.Array):
    """Counts a training batch; does nothing at evaluation.

    Args:
      paddings: [B, T], 1 where a position is padding.
    """
    if self.do_eval:
      return
    below = self.get_var('tokens_below_mm') + jnp.sum(paddings == 0)
    whole = self.get_var('tokens_mm') + below // _MILLION
    below = below % _MILLION
    self.update_var('tokens_mm', whole)
    self.update_var('tokens_below_mm', below)
    self.add_summary('total_tokens_mm', whole + below / _MILLION)
