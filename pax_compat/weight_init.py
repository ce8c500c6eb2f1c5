"""How a weight gets its first value.

The methods and their formulas are those of Lingvo's `py_utils.WeightInit`,
which Pax kept. `fan_in` and `fan_out` are the last two dimensions, each times
the product of the dimensions before them.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors

# The scale of each `*_sqrt_*` method, by the dimension that it divides by.
_SCALE_BY = {
  'sqrt_dim': lambda shape: 1 / math.sqrt(shape[0] if shape else 1),
  'sqrt_fanin': lambda shape: 1 / math.sqrt(fans(shape)[0]),
  'sqrt_fanout': lambda shape: 1 / math.sqrt(fans(shape)[1]),
  'sqrt_fanavg': lambda shape: math.sqrt(2 / sum(fans(shape))),
}


def fans(shape: Sequence[int]) -> tuple[int, int]:
  """Returns (fan_in, fan_out) of a weight of that shape."""
  if not shape:
    return 1, 1
  if len(shape) == 1:
    return shape[0], shape[0]
  receptive_field = math.prod(shape[:-2])
  return shape[-2] * receptive_field, shape[-1] * receptive_field


@dataclasses.dataclass(frozen=True)
class WeightInit:
  """A distribution over weights of any shape.

  Attributes:
    method: the name of the distribution; see the constructors below.
    scale: multiplies the method's own scale.
  """

  method: str
  scale: float = 1.0

  @classmethod
  def Gaussian(cls, scale: float = 1.0):
    """Normal with mean 0 and standard deviation `scale`."""
    return cls('gaussian', scale)

  @classmethod
  def Uniform(cls, scale: float = 1.0):
    """Uniform over [-scale, scale)."""
    return cls('uniform', scale)

  @classmethod
  def UniformPositive(cls, scale: float = 1.0):
    """Uniform over [0, scale)."""
    return cls('uniform_positive', scale)

  @classmethod
  def Xavier(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(6 / (fan_in + fan_out)) * [-1, 1)."""
    return cls('xavier', scale)

  @classmethod
  def GeoMeanXavier(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(3 / sqrt(fan_in * fan_out)) * [-1, 1)."""
    return cls('geo_mean_xavier', scale)

  @classmethod
  def Constant(cls, scale: float = 0.0):
    """Every element is `scale`."""
    return cls('constant', scale)

  @classmethod
  def TruncatedGaussian(cls, scale: float = 1.0):
    """Normal of deviation `scale`, cut off at two deviations."""
    return cls('truncated_gaussian', scale)

  @classmethod
  def GaussianSqrtDim(cls, scale: float = 1.0):
    """Gaussian of deviation scale / sqrt(shape[0])."""
    return cls('gaussian_sqrt_dim', scale)

  @classmethod
  def GaussianSqrtFanIn(cls, scale: float = 1.0):
    """Gaussian of deviation scale / sqrt(fan_in)."""
    return cls('gaussian_sqrt_fanin', scale)

  @classmethod
  def GaussianSqrtFanOut(cls, scale: float = 1.0):
    """Gaussian of deviation scale / sqrt(fan_out)."""
    return cls('gaussian_sqrt_fanout', scale)

  @classmethod
  def GaussianSqrtFanAvg(cls, scale: float = 1.0):
    """Gaussian of deviation scale * sqrt(2 / (fan_in + fan_out))."""
    return cls('gaussian_sqrt_fanavg', scale)

  @classmethod
  def UniformSqrtDim(cls, scale: float = 1.0):
    """Uniform over scale / sqrt(shape[0]) * [-1, 1)."""
    return cls('uniform_sqrt_dim', scale)

  @classmethod
  def UniformUnitScaling(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(3 / d) * [-1, 1), d = prod(shape[:-1])."""
    return cls('uniform_unit_scaling', scale)

  @classmethod
  def TruncatedGaussianSqrtDim(cls, scale: float = 1.0):
    """Truncated Gaussian of deviation scale / sqrt(shape[0])."""
    return cls('truncated_gaussian_sqrt_dim', scale)

  @classmethod
  def TruncatedGaussianSqrtFanIn(cls, scale: float = 1.0):
    """Truncated Gaussian of deviation scale / sqrt(fan_in)."""
    return cls('truncated_gaussian_sqrt_fanin', scale)

  @classmethod
  def TruncatedGaussianSqrtFanOut(cls, scale: float = 1.0):
    """Truncated Gaussian of deviation scale / sqrt(fan_out)."""
    return cls('truncated_gaussian_sqrt_fanout', scale)

  def for_shape(self, shape: Sequence[int]) -> 'WeightInit':
    """Returns the same distribution over `shape`, with its scale worked out.

    The result no longer depends on a shape, so it can start a weight that
    holds the same values in another layout.

    Raises:
      UserError: the method is unknown.
    """
    family, _, by = self.method.partition('_sqrt_')
    if self.method not in _METHODS:
      raise errors.UserError(
        f'no weight initialisation is called {self.method!r}'
        + errors.did_you_mean(self.method, _METHODS)
      )
    scale = self.scale * (_SCALE_BY['sqrt_' + by](shape) if by else 1.0)
    if self.method == 'xavier':
      return WeightInit.Uniform(scale * math.sqrt(6 / sum(fans(shape))))
    if self.method == 'geo_mean_xavier':
      return WeightInit.Uniform(
        scale * math.sqrt(3 / math.sqrt(math.prod(fans(shape))))
      )
    if self.method == 'uniform_unit_scaling':
      return WeightInit.Uniform(
        scale * math.sqrt(3 / max(1, math.prod(shape[:-1])))
      )
    return WeightInit(family, scale)

  def __call__(self, key: jax.Array, shape: Sequence[int], dtype) -> jax.Array:
    """Returns an array of `shape` and `dtype`, drawn with `key`."""
    resolved = self.for_shape(shape)
    return _SAMPLERS[resolved.method](key, shape, dtype, resolved.scale)


_METHODS = {
  getattr(WeightInit, name)().method
  for name, member in vars(WeightInit).items()
  if isinstance(member, classmethod)
}

_SAMPLERS = {
  'gaussian': lambda key, shape, dtype, scale: (
    scale * jax.random.normal(key, shape, dtype)
  ),
  'uniform': lambda key, shape, dtype, scale: jax.random.uniform(
    key, shape, dtype, -scale, scale
  ),
  'uniform_positive': lambda key, shape, dtype, scale: jax.random.uniform(
    key, shape, dtype, 0, scale
  ),
  'truncated_gaussian': lambda key, shape, dtype, scale: (
    scale * jax.random.truncated_normal(key, -2, 2, shape, dtype)
  ),
  'constant': lambda key, shape, dtype, scale: jnp.full(shape, scale, dtype),
}
