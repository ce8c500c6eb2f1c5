"""Sinusoidal position embeddings with learned scales.

Shapes: B batch, T time, D embedding dims.
"""

import jax

from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.layers.embeddings.positional_embeddings import (
  PositionalEmbedding,
)


class ScaledPositionalEmbedding(PositionalEmbedding):
  """A `PositionalEmbedding` with learned factors.

  Weights, initialised to 0: `scale` [1], added to `scaling_init`; `freq_scale`
  [1], added to 1.

  Attributes:
    trainable_scaling: whether the vectors are multiplied by a learned factor.
    scaling_init: initial value of that factor.
    frequency_scaling: whether all frequencies are multiplied by a learned
      factor.
  """

  trainable_scaling: bool = True
  scaling_init: float = 1.0
  frequency_scaling: bool = False

  def setup(self):
    for name, wanted in (
      ('scale', self.trainable_scaling),
      ('freq_scale', self.frequency_scaling),
    ):
      if wanted:
        self.create_variable(
          name, WeightHParams([1], init=WeightInit.Constant(0.0))
        )

  def _signal(self, angles: jax.Array) -> jax.Array:
    if self.frequency_scaling:
      angles = angles * (1.0 + self.theta.freq_scale)
    signal = super()._signal(angles)
    if self.trainable_scaling:
      signal = signal * (self.scaling_init + self.theta.scale)
    return signal
