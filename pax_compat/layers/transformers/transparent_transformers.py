"""A stack of Transformer layers with a weighted sum of all their outputs.

Shapes: B batch, T time, D model dims, E number of layers + 1.
"""

import functools

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.template_fields import create_agreed, keep_prob
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)


class TransparentTransformer(StackedTransformer):
  """A stack whose output is a weighted sum of its input and layer outputs.

  See https://arxiv.org/abs/1808.07561. The coefficients are computed from
  weights [E] that are initially zero, for a uniform mean.

  Attributes:
    mixing_dropout_prob: dropout probability of the weights.
    mixing_dropout_tpl: that dropout.
    mixing_softmax: whether the coefficients are a softmax of the weights; else
      they are the weights plus 1 / E.
    mixing_scale: factor of the weights.
    minimal_share: minimum of each coefficient, with a softmax.
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
        f' expected less than 1 / {count}, the number of coefficients'
      )
    self.create_variable(
      'mixing', WeightHParams([count], WeightInit.Constant(0.0))
    )
    drop = keep_prob(self.mixing_dropout_prob)
    create_agreed(self, 'mixing_dropout', 'mixing_dropout_tpl', keep_prob=drop)

  def _coefficients(self) -> jax.Array:
    """Returns the coefficients of the sum, [E]."""
    count = self.num_layers + 1
    weights = self.theta.mixing * self.mixing_scale + 1 / count
    weights = self.mixing_dropout(weights)
    if not self.mixing_softmax:
      return weights
    rest = 1.0 - self.minimal_share * count
    return jax.nn.softmax(weights) * rest + self.minimal_share

  def _combined(self, hidden: list[jax.Array]) -> jax.Array:
    pairs = zip(self._coefficients(), hidden, strict=True)
    return functools.reduce(jnp.add, (c * x for c, x in pairs))
