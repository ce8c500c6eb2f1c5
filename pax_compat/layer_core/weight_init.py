"""Weight initializers.

The methods and their formulas are those of Lingvo's `py_utils.WeightInit` and
of Pax's. Unless axes are given, `fan_in` and `fan_out` are the last two
dimensions, each times the product of the dimensions before them.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors


def fans(
  shape: Sequence[int],
  fan_in_axes: Sequence[int] | None = None,
  fan_out_axes: Sequence[int] | None = None,
) -> tuple[int, int]:
  """Returns (fan_in, fan_out) of a weight.

  Args:
    shape: shape of the weight.
    fan_in_axes: dimensions of the fan-in; None for the last but one and all
      before it.
    fan_out_axes: dimensions of the fan-out; None for all but the last but one.

  Raises:
    UserError: only one of the two is given.
  """
  if (fan_in_axes is None) != (fan_out_axes is None):
    raise errors.UserError(
      f'fan_in_axes are {fan_in_axes} and fan_out_axes {fan_out_axes}; expected'
      ' both or neither'
    )
  if fan_in_axes is not None and fan_out_axes is not None:
    return (
      math.prod(shape[i] for i in fan_in_axes),
      math.prod(shape[i] for i in fan_out_axes),
    )
  if not shape:
    return 1, 1
  if len(shape) == 1:
    return shape[0], shape[0]
  receptive_field = math.prod(shape[:-2])
  return shape[-2] * receptive_field, shape[-1] * receptive_field


@dataclasses.dataclass(frozen=True)
class WeightInit:
  """An initializer: a distribution over weights of any shape.

  Attributes:
    method: name of the distribution; see the constructors below.
    scale: factor on the method's own scale, unless its constructor documents
      another meaning.
  """

  method: str
  scale: float = 1.0

  def __deepcopy__(self, memo: dict) -> 'WeightInit':
    return self  # It is immutable, and every config has some.

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
  def Category(cls, scale: float = 2):
    """Uniform over the integers 0, 1, ..., scale - 1."""
    return cls('category', scale)

  @classmethod
  def Xavier(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(6 / (fan_in + fan_out)) * [-1, 1)."""
    return cls('xavier', scale)

  @classmethod
  def XavierWithFixupParams(
    cls,
    scale: float = 1.0,
    depth: float = 1.0,
    layers_per_residual_block: float = 1.0,
  ):
    """Xavier of scale * depth ** (-1 / (2 * layers_per_residual_block))."""
    return cls.Xavier(scale * depth ** (-0.5 / layers_per_residual_block))

  @classmethod
  def GeoMeanXavier(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(3 / sqrt(fan_in * fan_out)) * [-1, 1)."""
    return cls('geo_mean_xavier', scale)

  @classmethod
  def Constant(cls, scale: float = 1.0):
    """Every element is `scale`."""
    return cls('constant', scale)

  @classmethod
  def TruncatedGaussian(cls, scale: float = 1.0):
    """Normal of deviation `scale`, truncated at two deviations."""
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
  def UniformSqrtFanAvg(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(6 / (fan_in + fan_out)) * [-1, 1)."""
    return cls('uniform_sqrt_fanavg', scale)

  @classmethod
  def UniformUnitScaling(cls, scale: float = 1.0):
    """Uniform over scale * sqrt(3 / d) * [-1, 1), d = prod(shape[:-1])."""
    return cls('uniform_unit_scaling', scale)

  @classmethod
  def UniformUnitScalingFanAvg(cls, scale: float = 1.0):
    """Uniform over sqrt(6 * scale / (fan_in + fan_out)) * [-1, 1)."""
    return cls('uniform_unit_scaling_fan_avg', scale)

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

  @classmethod
  def TruncatedGaussianSqrtFanAvg(cls, scale: float = 1.0):
    """Truncated Gaussian of deviation scale * sqrt(2 / (fan_in + fan_out))."""
    return cls('truncated_gaussian_sqrt_fanavg', scale)

  @classmethod
  def KaimingUniformFanInRelu(cls):
    """Uniform over sqrt(6 / d) * [-1, 1), d = prod(shape[:-1])."""
    return cls('kaiming_uniform_fanin_relu')

  @classmethod
  def KaimingUniformFanInLeakyRelu(cls, scale: float = math.sqrt(5)):
    """Uniform over sqrt(6 / ((1 + scale ** 2) * d)) * [-1, 1).

    Args:
      scale: the slope of the leaky ReLU where it is negative. d is
        prod(shape[:-1]).
    """
    return cls('kaiming_uniform_fanin_leakyrelu', scale)

  @classmethod
  def ScaledDeltaOrthogonal(cls, scale: float = 1.0):
    """An orthogonal matrix in the middle of a kernel that is 0 elsewhere.

    The last two dimensions are the matrix, the ones before them the kernel's
    spatial dimensions; see https://arxiv.org/abs/1806.05393. It is multiplied
    by `scale` and by max(1, sqrt(shape[-2] / shape[-1])), so that outputs with
    fewer dimensions keep the norm of the inputs. Weights with fewer than two
    dimensions get a Gaussian of deviation `scale`.
    """
    return cls('delta_orthogonal', scale)

  def for_shape(
    self,
    shape: Sequence[int],
    fan_in_axes: Sequence[int] | None = None,
    fan_out_axes: Sequence[int] | None = None,
  ) -> 'WeightInit':
    """Returns the same distribution with the scale computed for `shape`.

    The result no longer depends on a shape, so it can initialise a weight that
    stores the same values in another layout.

    Args:
      shape: shape of the weight.
      fan_in_axes: see `fans`.
      fan_out_axes: see `fans`.

    Raises:
      UserError: the method is unknown, or its elements depend on each other.
    """
    if self.method == _DELTA_ORTHOGONAL:
      raise errors.UserError(
        f'{self.method!r} cannot initialise a weight in another layout: its'
        ' elements depend on each other'
      )
    if self.method not in _METHODS:
      raise errors.UserError(
        f'no weight initializer is called {self.method!r}'
        + errors.did_you_mean(self.method, [*_METHODS, _DELTA_ORTHOGONAL])
      )
    family, scale_of = _METHODS[self.method]
    shape = tuple(shape)
    of_fans = fans(shape, fan_in_axes, fan_out_axes)
    return WeightInit(family, scale_of(self.scale, shape, *of_fans))

  def __call__(self, key: jax.Array, shape: Sequence[int], dtype) -> jax.Array:
    """Returns an array of `shape` and `dtype`, drawn with `key`.

    Raises:
      UserError: see `for_shape`; or the dtype is an integer type and the method
        draws real numbers.
    """
    if self.method == _DELTA_ORTHOGONAL:
      return _delta_orthogonal(key, tuple(shape), dtype, self.scale)
    resolved = self.for_shape(shape)
    if jnp.issubdtype(dtype, jnp.integer):
      _check_integers(resolved, dtype)
    return _SAMPLERS[resolved.method](key, shape, dtype, resolved.scale)


def _given(scale, shape, fan_in, fan_out):
  return scale


def _sqrt_dim(scale, shape, fan_in, fan_out):
  return scale / math.sqrt(shape[0] if shape else 1)


def _sqrt_fan_in(scale, shape, fan_in, fan_out):
  return scale / math.sqrt(fan_in)


def _sqrt_fan_out(scale, shape, fan_in, fan_out):
  return scale / math.sqrt(fan_out)


def _sqrt_fan_avg(scale, shape, fan_in, fan_out):
  return scale * math.sqrt(2 / (fan_in + fan_out))


def _xavier(scale, shape, fan_in, fan_out):
  return scale * math.sqrt(6 / (fan_in + fan_out))


def _geo_mean_xavier(scale, shape, fan_in, fan_out):
  return scale * math.sqrt(3 / math.sqrt(fan_in * fan_out))


def _unit_scaling(scale, shape, fan_in, fan_out):
  return scale * math.sqrt(3 / max(1, math.prod(shape[:-1])))


def _unit_scaling_fan_avg(scale, shape, fan_in, fan_out):
  return math.sqrt(3 * scale / max(1, (fan_in + fan_out) / 2))


def _kaiming_relu(scale, shape, fan_in, fan_out):
  # As in Lingvo, the scale has no effect.
  return math.sqrt(6 / math.prod(shape[:-1]))


def _kaiming_leaky_relu(scale, shape, fan_in, fan_out):
  return math.sqrt(6 / ((1 + scale**2) * math.prod(shape[:-1])))


_DELTA_ORTHOGONAL = 'delta_orthogonal'

# The distribution and its scale, by method. The names are Lingvo's where it has
# the method.
_METHODS = {
  'gaussian': ('gaussian', _given),
  'gaussian_sqrt_dim': ('gaussian', _sqrt_dim),
  'gaussian_sqrt_fanin': ('gaussian', _sqrt_fan_in),
  'gaussian_sqrt_fanout': ('gaussian', _sqrt_fan_out),
  'gaussian_sqrt_fanavg': ('gaussian', _sqrt_fan_avg),
  'truncated_gaussian': ('truncated_gaussian', _given),
  'truncated_gaussian_sqrt_dim': ('truncated_gaussian', _sqrt_dim),
  'truncated_gaussian_sqrt_fanin': ('truncated_gaussian', _sqrt_fan_in),
  'truncated_gaussian_sqrt_fanout': ('truncated_gaussian', _sqrt_fan_out),
  'truncated_gaussian_sqrt_fanavg': ('truncated_gaussian', _sqrt_fan_avg),
  'uniform': ('uniform', _given),
  'uniform_sqrt_dim': ('uniform', _sqrt_dim),
  'uniform_sqrt_fanavg': ('uniform', _xavier),
  'uniform_unit_scaling': ('uniform', _unit_scaling),
  'uniform_unit_scaling_fan_avg': ('uniform', _unit_scaling_fan_avg),
  'xavier': ('uniform', _xavier),
  'geo_mean_xavier': ('uniform', _geo_mean_xavier),
  'kaiming_uniform_fanin_relu': ('uniform', _kaiming_relu),
  'kaiming_uniform_fanin_leakyrelu': ('uniform', _kaiming_leaky_relu),
  'uniform_positive': ('uniform_positive', _given),
  'category': ('category', _given),
  'constant': ('constant', _given),
}


def _uniform(key, shape, dtype, scale):
  return jax.random.uniform(key, shape, dtype, -scale, scale)


def _category(key, shape, dtype, scale):
  # Drawn as float32, which represents the integers of a large range exactly.
  drawn = jax.random.uniform(key, shape, jnp.float32, 0, scale)
  return jnp.floor(drawn).astype(dtype)


_SAMPLERS = {
  'gaussian': lambda key, shape, dtype, scale: (
    scale * jax.random.normal(key, shape, dtype)
  ),
  'uniform': _uniform,
  'uniform_positive': lambda key, shape, dtype, scale: jax.random.uniform(
    key, shape, dtype, 0, scale
  ),
  'truncated_gaussian': lambda key, shape, dtype, scale: (
    scale * jax.random.truncated_normal(key, -2, 2, shape, dtype)
  ),
  'category': _category,
  'constant': lambda key, shape, dtype, scale: jnp.full(shape, scale, dtype),
}


def _check_integers(init: WeightInit, dtype):
  """Raises an error unless `init` draws integers."""
  whole = init.method == 'constant' and init.scale == int(init.scale)
  if not whole and init.method != 'category':
    raise errors.UserError(
      f'a weight of dtype {jnp.dtype(dtype).name} has the initializer {init};'
      ' expected a category or an integer constant'
    )


def _delta_orthogonal(key, shape, dtype, scale):
  if len(shape) < 2:
    return scale * jax.random.normal(key, shape, dtype)
  scale = scale * max(1.0, math.sqrt(shape[-2] / shape[-1]))
  matrix = jax.nn.initializers.orthogonal(scale)(key, shape[-2:], dtype)
  middle = tuple((size - 1) // 2 for size in shape[:-2])
  return jnp.zeros(shape, dtype).at[middle].set(matrix)
