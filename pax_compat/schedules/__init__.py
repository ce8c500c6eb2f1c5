"""Learning-rate schedules: the factor of the learning rate at each step."""

from pax_compat.schedules.base import BaseSchedule
from pax_compat.schedules.curves import (
  Constant,
  ContinuousSchedule,
  Cosine,
  DelayedCosine,
  Exponential,
  Linear,
  Polynomial,
  SqrtDecay,
  Transformer,
)
from pax_compat.schedules.evaluated import EvaluatedSchedule
from pax_compat.schedules.piecewise import (
  CycleSchedule,
  PiecewiseConstant,
  PiecewiseSchedule,
)
from pax_compat.schedules.ramps import (
  LinearRampupCosineDecay,
  LinearRampupExponentialDecay,
  LinearRampupPiecewiseConstant,
  LinearRampupPolynomialDecay,
  LinearRampupSqrtDecay,
)

__all__ = [
  'BaseSchedule',
  'Constant',
  'ContinuousSchedule',
  'Cosine',
  'CycleSchedule',
  'DelayedCosine',
  'EvaluatedSchedule',
  'Exponential',
  'Linear',
  'LinearRampupCosineDecay',
  'LinearRampupExponentialDecay',
  'LinearRampupPiecewiseConstant',
  'LinearRampupPolynomialDecay',
  'LinearRampupSqrtDecay',
  'PiecewiseConstant',
  'PiecewiseSchedule',
  'Polynomial',
  'SqrtDecay',
  'Transformer',
]
