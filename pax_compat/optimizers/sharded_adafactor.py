"""Adafactor, https://arxiv.org/abs/1804.04235, in Lingvo's sharded form."""

import dataclasses
import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors
from pax_compat.config import Config
from pax_compat.optimizers import momentum_storage
from pax_compat.optimizers.base import (
  BaseOptimizer,
  counted,
  infinite_as_nan,
  without_dim,
)

_MOMENTUM_DTYPES = ('int8', 'int16', 'bfloat16', 'float32')


class AdafactorState(NamedTuple):
  """State of `ShardedAdafactor`.

  The trees are like that of the weights. A leaf that a weight does not need is
  zero [1]. `vr`, `vc` and `m_scale` lack a dimension of the weight.

  Attributes:
    count: number of steps [].
    m: momentum.
    m_scale: the width of a bucket of a quantized momentum; lacks dimension 0.
    vr: factored second moment, without the weight's row dimension.
    vc: factored second moment, without the weight's column dimension.
    v: second moment that is not factored.
  """

  count: Any
  m: Any
  m_scale: Any
  vr: Any
  vc: Any
  v: Any


class ShardedAdafactor(BaseOptimizer):
  """Adafactor in Lingvo's sharded form, XLAShardingAdafactor, with Pax's names.

  A step is lr(t) * scale * x, with x = g / sqrt(second moment), scaled down to
  `clip_threshold`. The second moment is the product of the means over rows and
  over columns, divided by the mean of the former over its last dimension.
  Momentum accumulates these steps, learning rate included.

  Lingvo's defaults are `sort_factored_second_moment_dims=True`,
  `multiply_by_parameter_scale=True`, `clip_threshold=None`,
  `decay_method='adam'`, `decay_adam=0.999`, `quantized_dtype='float32'`.

  Attributes:
    weight_decay: times the learning rate times a weight, subtracted from it. A
      dict maps regular expressions to decays: the last expression counts that
      matches the start of the weight's path ('lm/softmax/w', or, as in Pax,
      'params/lm/softmax/w').
    layerwise_adaptation: whether the step of a weight is scaled by the ratio of
      the weight's root mean square to that of the step before the learning
      rate, as in LAMB.
    exclude_from_layerwise_adaptation: regular expressions of weights without
      it, matched as in `weight_decay`.
    decay_method: decay of the second moment: 'adam' is `decay_adam` with Adam's
      bias correction, 'pow' is 1 - (t + 1 - decay_offset)^-decay_pow. It must
      be set.
    decay_adam: positive for 'adam'.
    decay_pow: positive for 'pow'.
    decay_offset: Lingvo's `decay_exponent_offset`, for 'pow'.
    beta1: decay of the momentum; 0 for none.
    clip_threshold: the root mean square that x has at most; None for no limit.
    factored: whether second moments are factored, of weights of rank 2 and up.
    epsilon1_grad_sq_reg: added to squared gradients.
    quantized_dtype: dtype of the momentum: 'float32', 'bfloat16', 'int8',
      'int16'. Integers are bucket numbers; see `momentum_storage.quantize`.
    respect_skip_lp_regularization: not supported; `decoupled_weight_decay`
      respects it.
    per_var_learning_summary: not supported.
    sort_factored_second_moment_dims: whether rows and columns are the largest
      and second largest dimension, if both are at least
      `min_dim_size_to_factor`, as in Lingvo; otherwise they are the last and
      the last but one, of any size.
    min_dim_size_to_factor: see `sort_factored_second_moment_dims`.
    multiply_by_parameter_scale: whether `scale` is the root mean square of the
      weight, or `epsilon2_param_scale_reg` where that is smaller; else it is 1.
    epsilon2_param_scale_reg: see `multiply_by_parameter_scale`.
    maybe_inf_to_nan: whether infinities become NaN.
    name: not supported; a prefix of names of per-variable summaries.

  Raises:
    UserError: `decay_method` is not set, a value is not among those named, or a
      field has no effect with the value of another one.
  """

  weight_decay: float | dict[str, float] | None = None
  layerwise_adaptation: bool = False
  exclude_from_layerwise_adaptation: Sequence[str] | None = None
  decay_method: str = ''
  decay_adam: float = 0.0
  decay_pow: float = 0.0
  decay_offset: int = 0
  beta1: float = 0.0
  clip_threshold: float | None = 1.0
  factored: bool = True
  epsilon1_grad_sq_reg: float = 1e-30
  quantized_dtype: str = 'int8'
  respect_skip_lp_regularization: bool = False
  per_var_learning_summary: bool = False
  sort_factored_second_moment_dims: bool = False
  min_dim_size_to_factor: int = 128
  multiply_by_parameter_scale: bool = False
  epsilon2_param_scale_reg: float = 1e-3
  maybe_inf_to_nan: bool = True
  name: str = ''

  @classmethod
  def HParamsAdamB(cls) -> Config:
    """Returns a config with Adam's decays 0.9 and 0.98, and int8 momentum."""
    return cls.config(
      beta1=0.9, decay_method='adam', decay_adam=0.98, quantized_dtype='int8'
    )

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.decay_method in ('adam', 'pow'),
      f"decay_method is {self.decay_method!r}; expected one of 'adam', 'pow'",
    )
    self.check(
      self.quantized_dtype in _MOMENTUM_DTYPES,
      f'quantized_dtype is {self.quantized_dtype!r}; expected one of'
      f' {", ".join(_MOMENTUM_DTYPES)}',
    )
    used = f'decay_{self.decay_method}'
    self.check(
      getattr(self, used) > 0,
      f'{used} is {getattr(self, used)}; decay_method {self.decay_method!r}'
      ' needs a positive one',
    )
    self.refuse(
      respect_skip_lp_regularization='decoupled_weight_decay respects it',
      per_var_learning_summary='these summaries are not supported',
      name='it is for per_var_learning_summary only',
    )
    for pattern in (
      *(self.exclude_from_layerwise_adaptation or ()),
      *(self.weight_decay if isinstance(self.weight_decay, dict) else ()),
    ):
      errors.compiled(pattern, type(self).__name__)

  def factored_dims(self, shape: Sequence[int]) -> tuple[int, int] | None:
    """Returns the dimensions that second moments are averaged over.

    Args:
      shape: shape of the weight.

    Returns:
      The dimension that `vr` lacks (rows) and the one that `vc` lacks
      (columns), or None for a weight that has a full second moment `v`.
    """
    if not self.factored or len(shape) < 2:
      return None
    if not self.sort_factored_second_moment_dims:
      return len(shape) - 1, len(shape) - 2
    # The first one of equal sizes comes first.
    row, col, *_ = sorted(range(len(shape)), key=lambda dim: -shape[dim])
    return (row, col) if shape[col] >= self.min_dim_size_to_factor else None

  def reduced_dim(self, name, weight_shape, leaf_shape):
    if name == 'm_scale':
      return 0
    dims = self.factored_dims(weight_shape)
    if dims is None or name not in ('vr', 'vc'):
      return super().reduced_dim(name, weight_shape, leaf_shape)
    return dims[name == 'vc']

  def grad_transformation(self):
    return counted(optax.GradientTransformation(self._init, self._update))

  def _init(self, params):
    return _state(
      jnp.zeros([], jnp.int32), jax.tree.map(self._initial_slots, params)
    )

  def _initial_slots(self, weight) -> '_Slots':
    slots = _Slots()
    if self.beta1:
      m, m_scale = momentum_storage.quantize(
        jnp.zeros(weight.shape), self.quantized_dtype
      )
      slots = dataclasses.replace(slots, m=m, m_scale=m_scale)
    dims = self.factored_dims(weight.shape)
    if dims is None:
      return dataclasses.replace(slots, v=jnp.zeros(weight.shape))
    vr, vc = (jnp.zeros(without_dim(weight.shape, dim)) for dim in dims)
    return dataclasses.replace(slots, vr=vr, vc=vc)

  def _update(self, gradients, state, params):
    decay = self._second_moment_decay(state.count)
    rate = self.learning_rate_fn()(state.count)

    def of_weight(path, gradient, weight, *slots):
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      return self._step(
        name, gradient, weight, _Slots(*slots), decay=decay, rate=rate
      )

    slots = jax.tree_util.tree_map_with_path(
      of_weight, gradients, params, *state[1:]
    )
    updates = jax.tree.map(lambda s: -s.step, slots)
    return updates, _state(optax.safe_increment(state.count), slots)

  def _second_moment_decay(self, count) -> jax.Array:
    t = jnp.asarray(count, jnp.float32) + 1.0
    if self.decay_method == 'pow':
      return 1.0 - (t - self.decay_offset) ** -self.decay_pow
    beta2 = self.decay_adam
    return beta2 * (1.0 - beta2 ** (t - 1.0)) / (1.0 - beta2**t)

  def _step(self, name, gradient, weight, slots, *, decay, rate) -> '_Slots':
    """Returns the new slots of a weight, with the step to subtract."""
    x, slots = self._normalized(gradient, slots, decay)
    if self.clip_threshold is not None:
      x /= jnp.maximum(1.0, self._finite(_rms(x)) / self.clip_threshold)
    scale = rate
    if self.multiply_by_parameter_scale:
      scale *= jnp.maximum(_rms(weight), self.epsilon2_param_scale_reg)
    step = scale * x
    if self.beta1:
      m = momentum_storage.dequantize(slots.m, slots.m_scale)
      step = self._finite(self.beta1 * m + (1.0 - self.beta1) * step)
      m, m_scale = momentum_storage.quantize(step, self.quantized_dtype)
      slots = dataclasses.replace(slots, m=m, m_scale=m_scale)
    step += self._weight_decay_of(name) * rate * weight
    if self.layerwise_adaptation and not _matches(
      name, self.exclude_from_layerwise_adaptation or ()
    ):
      step *= self._layerwise_ratio(step, weight, scale)
    return dataclasses.replace(slots, step=step)

  def _normalized(self, gradient, slots, decay) -> tuple[jax.Array, '_Slots']:
    """Divides a gradient by the root of its second moment; updates slots."""
    gradient = self._finite(gradient.astype(jnp.float32))
    squares = self._finite(jnp.square(gradient)) + self.epsilon1_grad_sq_reg
    dims = self.factored_dims(gradient.shape)
    if dims is None:
      v = decay * slots.v + (1.0 - decay) * squares
      return gradient * jax.lax.rsqrt(v), dataclasses.replace(slots, v=v)
    vr, vc = (
      decay * old + (1.0 - decay) * jnp.mean(squares, axis=dim)
      for old, dim in zip((slots.vr, slots.vc), dims, strict=True)
    )
    rows = jax.lax.rsqrt(vr / jnp.mean(vr, axis=-1, keepdims=True))
    x = (
      gradient
      * jnp.expand_dims(rows, dims[0])
      * jnp.expand_dims(jax.lax.rsqrt(vc), dims[1])
    )
    return x, dataclasses.replace(slots, vr=vr, vc=vc)

  def _layerwise_ratio(self, step, weight, scale) -> jax.Array:
    # With a learning rate of 0 the size of the step is undefined.
    per_rate = step / jnp.where(scale == 0.0, 1.0, scale)
    size = _rms(weight)
    ratio = size / (_rms(per_rate) + self.epsilon1_grad_sq_reg)
    return jnp.where((size == 0.0) | (scale == 0.0), 1.0, ratio)

  def _weight_decay_of(self, name: str) -> float:
    if not isinstance(self.weight_decay, dict):
      return self.weight_decay or 0.0
    matching = [d for p, d in self.weight_decay.items() if _matches(name, [p])]
    return matching[-1] if matching else 0.0

  def _finite(self, x: jax.Array) -> jax.Array:
    return infinite_as_nan(x) if self.maybe_inf_to_nan else x


def _unused() -> Any:
  return dataclasses.field(default_factory=lambda: jnp.zeros([1]))


@dataclasses.dataclass(frozen=True)
class _Slots:
  """State of one weight, and its step; a leaf to JAX, so that trees unzip.

  All fields except the last are those of `AdafactorState`, in its order.
  """

  m: Any = _unused()
  m_scale: Any = _unused()
  vr: Any = _unused()
  vc: Any = _unused()
  v: Any = _unused()
  step: Any = None


def _state(count: jax.Array, slots: Any) -> AdafactorState:
  """Returns the state from the count and a tree of slots."""
  trees = {
    name: jax.tree.map(operator.attrgetter(name), slots)
    for name in AdafactorState._fields[1:]
  }
  return AdafactorState(count=count, **trees)


def _rms(x: jax.Array) -> jax.Array:
  return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))


def _matches(name: str, patterns: Sequence[str]) -> bool:
  return any(
    re.match(pattern, spelling)
    for pattern in patterns
    for spelling in (name, f'params/{name}')
  )
