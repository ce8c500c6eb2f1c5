"""Stochastic gradients: what `Learner.stochastic_gradient` can be."""

from pax_compat.learners.gradients.ghost_clipping import (
  GhostClippingDpSgdStochasticGradient,
)
from pax_compat.learners.gradients.private import (
  AugMulDpSgdStochasticGradient,
  DpSgdStochasticGradient,
  MicrobatchDpSgdStochasticGradient,
  PerLayerDpSgdStochasticGradient,
)
from pax_compat.learners.gradients.stochastic import (
  BaseStochasticGradient,
  DPGradAuxInfo,
  GradAuxInfo,
  StandardGradient,
)

__all__ = [
  'AugMulDpSgdStochasticGradient',
  'BaseStochasticGradient',
  'DPGradAuxInfo',
  'DpSgdStochasticGradient',
  'GhostClippingDpSgdStochasticGradient',
  'GradAuxInfo',
  'MicrobatchDpSgdStochasticGradient',
  'PerLayerDpSgdStochasticGradient',
  'StandardGradient',
]
