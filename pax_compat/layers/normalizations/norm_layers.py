"""Normalisation layers.

Statistics are computed in float32, whatever the dtype of the inputs.

Shapes: B batch, T time, D features, the last dimension.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.layers.input_checks import check_last_dim
from pax_compat.layers.normalizations.moments import compute_moments
from pax_compat.layers.paddings import apply_paddings


class BaseNormalization(base_layer.BaseLayer):
  """Base class of the normalisations.

  Attributes:
    dim: D; set by the parent.
  """

  dim: int = REQUIRED

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> jax.Array:
    """Returns `inputs` [..., D] normalised.

    Args:
      inputs: [..., D].
      paddings: leading dimensions of `inputs`, 1 at padding; ignored by
        normalisations of each position by itself.
    """
    raise NotImplementedError(type(self).__name__)

  def _create_weight(
    self,
    name: str,
    init: float | WeightInit,
    *,
    shape: Sequence[int] | None = None,
    regularised: bool = True,
    trainable: bool = True,
  ):
    """Creates a weight, by default of shape [D], with the layer's sharding."""
    if not isinstance(init, WeightInit):
      init = WeightInit.Constant(init)
    skip_lp = (base_layer.SKIP_LP_REGULARIZATION,)
    # A moving average loses small steps in less than float32.
    at_least_single = jnp.promote_types(self.dtype, jnp.float32)
    weight = WeightHParams(
      [self.dim] if shape is None else shape,
      init,
      dtype=None if trainable else at_least_single,
      collections=() if regularised else skip_lp,
      tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
    )
    self.create_variable(name, weight, trainable)

  def _shard_output(self, outputs: jax.Array) -> jax.Array:
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class IdentityNorm(BaseNormalization):
  """No normalisation.

  Attributes:
    dim: ignored.
  """

  dim: int = 0

  def __call__(self, inputs, paddings=None):
    return self._shard_output(inputs)


class LayerNorm(BaseNormalization):
  """Layer normalisation, https://arxiv.org/abs/1607.06450.

  Attributes:
    epsilon: added to the variance.
    direct_scale: whether the weight itself is the scale, initialised to 1; else
      the scale is 1 + the weight, initialised to 0.
    use_scale: whether there is a scale.
    use_bias: whether there is a bias.
    reductions_in_fp32: whether mean and variance are computed in float32; else
      in the dtype of the inputs.
  """

  epsilon: float = 1e-6
  direct_scale: bool = False
  use_scale: bool = True
  use_bias: bool = True
  reductions_in_fp32: bool = True

  def setup(self):
    if self.use_scale:
      init = 1.0 if self.direct_scale else 0.0
      self._create_weight('scale', init, regularised=False)
    if self.use_bias:
      self._create_weight('bias', 0.0, regularised=False)

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    x = inputs.astype(jnp.float32) if self.reductions_in_fp32 else inputs
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    x = (x * jax.lax.rsqrt(variance + self.epsilon)).astype(inputs.dtype)
    if self.use_scale:
      x = x * (self.theta.scale + (0.0 if self.direct_scale else 1.0))
    if self.use_bias:
      x = x + self.theta.bias
    return self._shard_output(x)


def _over_root_mean_square(
  inputs: jax.Array, epsilon: float, dtype: Any
) -> jax.Array:
  """Returns `inputs` [..., D] over their root mean square."""
  x = inputs.astype(dtype)
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  return (x * jax.lax.rsqrt(mean_square + epsilon)).astype(inputs.dtype)


class RmsNorm(BaseNormalization):
  """Root mean square normalisation, https://arxiv.org/abs/1910.07467.

  Attributes:
    epsilon: added to the mean square.
    direct_scale: as in `LayerNorm`.
    intermediate_dtype: dtype of the mean square; None takes the dtype of the
      inputs.
  """

  epsilon: float = 1e-6
  direct_scale: bool = True
  intermediate_dtype: Any = jnp.float32

  def setup(self):
    self._create_weight('scale', 1.0 if self.direct_scale else 0.0)

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    dtype = self.intermediate_dtype or inputs.dtype
    x = _over_root_mean_square(inputs, self.epsilon, dtype)
    scale = self.theta.scale + (0.0 if self.direct_scale else 1.0)
    return self._shard_output(x * scale)


class RmsNormNoScale(BaseNormalization):
  """Root mean square normalisation without weights.

  Attributes:
    epsilon: added to the mean square.
  """

  epsilon: float = 1e-6

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    outputs = _over_root_mean_square(inputs, self.epsilon, jnp.float32)
    return self._shard_output(outputs)


class PrimerNorm(BaseNormalization):
  """Division by the standard deviation, https://arxiv.org/abs/2109.08668.

  Unlike layer normalisation it does not subtract the mean.

  Attributes:
    epsilon: added to the variance.
  """

  epsilon: float = 1e-6

  def setup(self):
    self._create_weight('scale', 1.0)
    self._create_weight('bias', 0.0)

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    x = inputs.astype(jnp.float32)
    variance = jnp.var(x, axis=-1, keepdims=True)
    x = (x * jax.lax.rsqrt(variance + self.epsilon)).astype(inputs.dtype)
    return self._shard_output(x * self.theta.scale + self.theta.bias)


class BatchNorm(BaseNormalization):
  """Batch normalisation, https://arxiv.org/abs/1502.03167.

  Training uses the mean and variance of the global batch, and updates moving
  averages of them for evaluation. The scale is 1 + `gamma`, so that weight
  decay draws it to 1.

  Attributes:
    decay: decay of the moving averages.
    epsilon: added to the variance.
    use_moving_avg_in_training: whether training normalises by the moving
      averages too, after their update and as constants for the gradient; then
      it has neither `beta` nor `gamma`.
    set_padded_output_to_zero: whether the output is 0 at padded positions.
    force_eval_mode: whether training normalises as at evaluation and does not
      update the moving averages, as in a pretrained component; `beta` and
      `gamma` are still trained.
    gamma_init: initializer of `gamma`.
  """

  decay: float = 0.999
  epsilon: float = 0.001
  use_moving_avg_in_training: bool = False
  set_padded_output_to_zero: bool = True
  force_eval_mode: bool = False
  gamma_init: WeightInit = WeightInit.Constant(0.0)

  def setup(self):
    if not self.use_moving_avg_in_training:
      self._create_weight('beta', 0.0)
      self._create_weight('gamma', self.gamma_init)
    self._create_weight('moving_mean', 0.0, trainable=False)
    self._create_weight('moving_variance', 1.0, trainable=False)

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    zeroes = self.set_padded_output_to_zero and paddings is not None
    if zeroes:  # before as well, so that infinite padding has no gradient
      inputs = apply_paddings(inputs, paddings)
    mean, variance = self.compute_and_update_moments(inputs, paddings)
    factor = jax.lax.rsqrt(variance + self.epsilon)
    if not self.use_moving_avg_in_training:
      factor = factor * (1.0 + self.get_var('gamma'))
    outputs = (inputs.astype(jnp.float32) - mean) * factor
    if not self.use_moving_avg_in_training:
      outputs = outputs + self.get_var('beta')
    outputs = outputs.astype(self.compute_dtype)
    if zeroes:
      outputs = apply_paddings(outputs, paddings)
    return self._shard_output(outputs)

  def compute_and_update_moments(
    self, inputs: jax.Array, paddings: jax.Array | None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns mean [D] and variance [D] to normalise by.

    Args:
      inputs: [..., D].
      paddings: leading dimensions of `inputs`, or None.
    """
    moving = self.get_var('moving_mean'), self.get_var('moving_variance')
    if self.do_eval or self.force_eval_mode:
      self._summarise('moving_', *moving)
      return moving
    axes = range(inputs.ndim - 1)
    moments = compute_moments(inputs, paddings, axes)
    moving = tuple(map(self._next_average, moving, moments))
    self.update_var('moving_mean', moving[0])
    self.update_var('moving_variance', moving[1])
    self._summarise('', *moments)
    self._summarise('moving_', *moving)
    return moving if self.use_moving_avg_in_training else moments

  def _next_average(self, average: jax.Array, value: jax.Array) -> jax.Array:
    change = (1.0 - self.decay) * (jax.lax.stop_gradient(value) - average)
    # One bad batch must not spoil every evaluation after it.
    change = jnp.where(jnp.all(jnp.isfinite(change)), change, 0.0)
    return (average + change).astype(average.dtype)

  def _summarise(self, prefix: str, mean: jax.Array, variance: jax.Array):
    kind = SummaryType.HISTOGRAM
    self.add_summary(f'{prefix}mean', mean, kind, verbosity=4)
    self.add_summary(f'{prefix}variance', variance, kind, verbosity=4)


class GroupNorm(BaseNormalization):
  """Group normalisation, https://arxiv.org/abs/1803.08494.

  The features are split into groups; each example's groups are normalised over
  all other dimensions. The scale is 1 + `gamma`.

  Attributes:
    num_groups: number of groups, if D is large enough for it.
    min_group_size: minimum number of features in a group.
    cumulative: whether a position is normalised by the statistics of itself and
      the positions before it in time, as a causal model needs.
    input_rank: rank of the inputs: 3 for [B, T, D], 4 for [B, T, H, D] and 5
      for [B, T, H, W, D], where H and W are height and width.
    epsilon: added to the variance.
    set_padded_output_to_zero: whether the output is 0 at padded positions.
    use_scale: whether there is a scale.
    use_bias: whether there is a bias, `beta`.
  """

  num_groups: int = 32
  min_group_size: int = 1
  cumulative: bool = False
  input_rank: int = REQUIRED
  epsilon: float = 0.001
  set_padded_output_to_zero: bool = True
  use_scale: bool = True
  use_bias: bool = True

  @property
  def group_size(self) -> int:
    """The number of features in a group."""
    return max(self.dim // self.num_groups, self.min_group_size)

  def setup(self):
    if self.input_rank not in (3, 4, 5):
      raise errors.wrong_field(self, 'input_rank', '3, 4 or 5')
    if self.num_groups < 1 or self.min_group_size < 1:
      raise errors.UserError(
        f'GroupNorm: num_groups is {self.num_groups} and min_group_size'
        f' {self.min_group_size}; expected at least 1'
      )
    uneven = self.dim >= self.num_groups and self.dim % self.num_groups
    if uneven or self.dim % self.group_size:
      raise errors.UserError(
        f'GroupNorm: cannot split {self.dim} features into {self.num_groups}'
        f' groups (or groups of {self.group_size}) of equal size'
      )
    shape = [1] * (self.input_rank - 1) + [self.dim]
    if self.use_bias:
      self._create_weight('beta', 0.0, shape=shape, regularised=False)
    if self.use_scale:
      self._create_weight('gamma', 0.0, shape=shape, regularised=False)

  def __call__(self, inputs, paddings=None):
    if inputs.ndim != self.input_rank:
      raise errors.UserError(
        f'GroupNorm: inputs of shape {list(inputs.shape)}, but input_rank is'
        f' {self.input_rank}'
      )
    check_last_dim(self, 'dim', inputs)
    zeroes = self.set_padded_output_to_zero and paddings is not None
    if zeroes:  # before as well, so that infinite padding has no gradient
      inputs = apply_paddings(inputs, paddings)
    grouped = [*inputs.shape[:-1], -1, self.group_size]
    x = jnp.reshape(inputs, grouped).astype(jnp.float32)
    mean, variance = compute_moments(
      x,
      paddings,
      [*range(2 if self.cumulative else 1, x.ndim - 2), x.ndim - 1],
      cumulative_axis=1 if self.cumulative else None,
      keepdims=True,
    )
    x = (x - mean) * jax.lax.rsqrt(variance + self.epsilon)
    outputs = jnp.reshape(x, inputs.shape).astype(self.compute_dtype)
    if self.use_scale:
      outputs = outputs * (1.0 + self.theta.gamma)
    if self.use_bias:
      outputs = outputs + self.theta.beta
    if zeroes:
      outputs = apply_paddings(outputs, paddings)
    return self._shard_output(outputs)


def _l2_normalised(x: jax.Array, axes=None) -> jax.Array:
  square = jnp.sum(jnp.square(x), axis=axes, keepdims=True)
  return x * jax.lax.rsqrt(square + 1e-12)


class WeightNormL2(BaseNormalization):
  """Normalisation of a weight, https://arxiv.org/abs/1602.07868.

  Each of the D slices of a weight gets the norm 1 + `g`; `g` is initially 0.
  """

  def setup(self):
    self._create_weight('g', 0.0)

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    axes = tuple(range(inputs.ndim - 1))
    unit = _l2_normalised(inputs.astype(jnp.float32), axes)
    outputs = unit * (1.0 + self.get_var('g'))
    return self._shard_output(outputs.astype(inputs.dtype))


class SpectralNorm(BaseNormalization):
  """Spectral normalisation of a weight, https://arxiv.org/abs/1802.05957.

  Divides a weight, as a matrix [-1, D], by its largest singular value, which is
  estimated by power iteration. Training continues from the estimate `u` of the
  singular vector of the step before.

  Attributes:
    n_power_iteration: power iterations per step.
  """

  n_power_iteration: int = 1

  def setup(self):
    errors.check_least(self, 1, 'n_power_iteration')
    self._create_weight('u', WeightInit.Gaussian(), trainable=False)

  def __call__(self, inputs, paddings=None):
    check_last_dim(self, 'dim', inputs)
    matrix = jnp.reshape(inputs.astype(jnp.float32), [-1, self.dim])
    u = self.get_var('u')
    for _ in range(self.n_power_iteration):
      v = _l2_normalised(matrix @ u)
      u = _l2_normalised(v @ matrix)
    u, v = jax.lax.stop_gradient((u, v))
    if not self.do_eval:
      self.update_var('u', u)
    outputs = inputs.astype(jnp.float32) / (v @ matrix @ u)
    return self._shard_output(outputs.astype(inputs.dtype))
