"""A stack of Transformer layers all of which reach its output.

Shapes: B batch, T time, D model dims, E layers and one more.
"""

import functools

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.template_fields import agreed, keep_prob
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)


class TransparentTransformer(StackedTransformer):
  """A stack whose output is a mix of its input and all layers' outputs.

  See https://arxiv.org/abs/1808.07561. The shares of the mix come from weights
  [E] that start at zero, which makes all of them alike.

  Attributes:
    mixing_dropout_prob: probability of dropping a weight, before shares are
      made of them.
    mixing_dropout_tpl: that dropout.
    mixing_softmax: whether the shares are a softmax; else they are the weights
      plus 1 / E.
    mixing_scale: factor of the weights.
    minimal_share: the least share of each, if they are a softmax.
  """

  mixing_dropout_prob: float = 0.0
  mixing_dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  mixing_softmax: bool = True
  mixing_scale: float = 1.0
  minimal_share: float = 0.0

  def setup(self):
    super().setup()
    count = self.num_layers + 1
    if not 0 <= self.minimal_share * count < 1:
      raise errors.UserError(
        f'TransparentTransformer.minimal_share is {self.minimal_share};'
        f' expected less than 1 / {count}, since {count} have it'
      )
    self.create_variable(
      'mixing', WeightHParams([count], WeightInit.Constant(0.0))
    )
    tpl = self.mixing_dropout_tpl
    self.create_child(
      'mixing_dropout',
      tpl,
      **agreed(
        'TransparentTransformer.mixing_dropout_tpl',
        tpl,
        keep_prob=keep_prob(self.mixing_dropout_prob),
      ),
    )

  def _shares(self) -> jax.Array:
    """Returns the share of each, [E]."""
    count = self.num_layers + 1
    shares = self.theta.mixing * self.mixing_scale + 1 / count
    shares = self.mixing_dropout(shares)
    if not self.mixing_softmax:
      return shares
    rest = 1.0 - self.minimal_share * count
    return jax.nn.softmax(shares) * rest + self.minimal_share

  def _combined(self, hidden: list[jax.Array]) -> jax.Array:
    shares = self._shares()
    parts = (share * x for share, x in zip(shares, hidden, strict=True))
    return functools.reduce(jnp.add, parts)
