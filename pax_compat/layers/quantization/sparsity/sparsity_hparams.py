"""Settings of sparse weights, with Pax's names."""

import dataclasses
import enum

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.quantization.sparsity.sparsity_modes import (
  BaseSparsityScheduleMode,
  FewShotMode,  # noqa: F401 (as in Pax)
  InferenceMode,
)

# The values of `SparsityHParams.topk_estimator_type`.
BINARY_MASK = 'BINARY_MASK'
PROB_MASK = 'PROB_MASK'


@enum.unique
class SparsityScore(enum.StrEnum):
  """Which weights are kept: those with the largest scores.

  Attributes:
    MAGNITUDE: absolute values.
    ACTIVATION_WEIGHTED: these times the sum of the absolute inputs that they
      are multiplied with, for weights [I, O].
  """

  MAGNITUDE = 'magnitude'
  ACTIVATION_WEIGHTED = 'activation_weighted'


@enum.unique
class SparsityType(enum.StrEnum):
  """Which weights are compared with each other.

  Attributes:
    STRUCTURED_NM: the M of a group, of which N are kept.
    UNSTRUCTURED: all of the layer.
    CHANNELWISE_PRUNING: the channels of one dimension, by the sums of their
      scores.
  """

  STRUCTURED_NM = 'structured_nm'
  UNSTRUCTURED = 'unstructured'
  CHANNELWISE_PRUNING = 'channelwise_pruning'


@enum.unique
class SparsityOrder(enum.StrEnum):
  """The dimension along which groups of M lie.

  Attributes:
    C: the last but one, which for a weight [I, O] is summed over.
    R: the last.
  """

  C = 'C'
  R = 'R'


@dataclasses.dataclass
class PolynomialDecayParams:
  """A rate of pruning that changes over the steps.

  Attributes:
    initial_sparsity: percentage of pruned weights at `begin_step`; before it, 0
      are pruned.
    final_sparsity: percentage from `end_step` on.
    begin_step: see above.
    end_step: likewise.
    exponent: power of the remaining share of the steps between them, by which
      the distance from `final_sparsity` falls.
  """

  initial_sparsity: float = 10.0
  final_sparsity: float = 70.0
  begin_step: int = 0
  end_step: int = 50_000
  exponent: float = 3.0

  def __post_init__(self):
    if self.end_step <= self.begin_step:
      raise errors.wrong_field(
        self, 'end_step', f'more than begin_step, {self.begin_step}'
      )

  def rate(self, step: jax.Array) -> jax.Array:
    """Returns the percentage [] of pruned weights at a step."""
    steps = self.end_step - self.begin_step
    left = 1 - (jnp.minimum(step, self.end_step) - self.begin_step) / steps
    change = self.initial_sparsity - self.final_sparsity
    rate = self.final_sparsity + change * left**self.exponent
    return jnp.where(step >= self.begin_step, rate, 0.0)


@dataclasses.dataclass
class WeightSparsityParams:
  """How weights are pruned.

  Attributes:
    prune_rate: `(N, M)` with STRUCTURED_NM; with UNSTRUCTURED a percentage, 0.0
      to 100.0; with CHANNELWISE_PRUNING a share, 0.0 to 1.0. None prunes none.
    structure_decay: not supported.
    mask_decay_weight: not supported.
    sparse_ste: with STRUCTURED_NM: whether pruned weights have gradients, those
      that they would have unpruned (SR-STE).
    sparse_ste_weight: with it: factor on a pruned weight that is added to its
      gradient.
    offset: distance of the values of a group; 0 and 1 are neighbors.
    pruned_value: what replaces pruned weights.
    pruned_value_trainable: whether it is trained.
  """

  prune_rate: None | float | tuple[int, int]
  structure_decay: bool = False
  mask_decay_weight: float = 0.0
  sparse_ste: bool = False
  sparse_ste_weight: float = 0.0002
  offset: int = 0
  pruned_value: float = 0.0
  pruned_value_trainable: bool = False

  def __post_init__(self):
    where = 'WeightSparsityParams'
    for name in ('structure_decay', 'mask_decay_weight'):
      if getattr(self, name):
        raise errors.UserError(
          f'{where}.{name} is not supported; Pax reads it nowhere'
        )
    errors.check_least(self, 0, 'sparse_ste_weight', 'offset')
    if self.sparse_ste and self.has_pruned_value:
      raise errors.UserError(
        f'{where}.pruned_value is not supported with sparse_ste'
      )

  @property
  def has_pruned_value(self) -> bool:
    """Whether pruned weights become the value of a variable, not 0."""
    return self.pruned_value != 0.0 or self.pruned_value_trainable


@dataclasses.dataclass
class SparsityHParams:
  """Sparsity of a layer's weights.

  Attributes:
    sparsity_type: see `SparsityType`.
    weight_params: see `WeightSparsityParams`; None prunes none.
    mode: when masks are updated, see `sparsity_modes`.
    score: see `SparsityScore`.
    sparsified_layers: for layers that call `sparsifiy` with `layer_idx`: the
      indices of those that are pruned; None for all.
    polynomial_decay_schedule: with UNSTRUCTURED: the rate, instead of
      `prune_rate`.
    order: see `SparsityOrder`.
    track_sad_metric: whether the weight `sparse_architecture_divergence` [] is
      the share of the mask that the last step changed.
    topk_estimator_type: with STRUCTURED_NM: the N of a group are those with the
      largest values in another weight, `w_mask`, which is trained. With
      'BINARY_MASK' it gets the gradient of the mask, with 'PROB_MASK' weights
      are multiplied by N times the softmax of the kept. Groups are neighbors in
      the last dimension, whatever `order` is.
    channelwise_pruning_dim: with CHANNELWISE_PRUNING: the dimension.
    block_size: with STRUCTURED_NM: groups consist of M blocks of this size
      along `order`, whose scores are summed; 0 and 1 are single weights.
  """

  sparsity_type: SparsityType = SparsityType.STRUCTURED_NM
  weight_params: WeightSparsityParams | None = None
  mode: BaseSparsityScheduleMode = dataclasses.field(
    default_factory=InferenceMode
  )
  score: SparsityScore = SparsityScore.MAGNITUDE
  sparsified_layers: list[int] | None = None
  polynomial_decay_schedule: PolynomialDecayParams | None = None
  order: SparsityOrder = SparsityOrder.C
  track_sad_metric: bool = False
  topk_estimator_type: str | None = None
  channelwise_pruning_dim: int = -1
  block_size: int = 0

  def __post_init__(self):
    for name, known in (
      ('sparsity_type', list(SparsityType)),
      ('score', list(SparsityScore)),
      ('order', list(SparsityOrder)),
      ('topk_estimator_type', [None, BINARY_MASK, PROB_MASK]),
    ):
      if getattr(self, name) not in known:
        expected = ', '.join(repr(x and str(x)) for x in known)
        raise errors.wrong_field(self, name, f'one of {expected}')
    self._check_rate()
    self._check_combinations()

  @property
  def is_active(self) -> bool:
    """Whether there are masks."""
    return not isinstance(self.mode, InferenceMode)

  @property
  def prune_rate(self) -> None | float | tuple[int, int]:
    """The rate of `weight_params`; None prunes none."""
    return None if self.weight_params is None else self.weight_params.prune_rate

  def _check_rate(self):
    rate, kind = self.prune_rate, self.sparsity_type
    if rate is None:
      return
    if kind == SparsityType.STRUCTURED_NM:
      expected = 'two integers (N, M), N at most M'
      fits = isinstance(rate, tuple) and len(rate) == 2 and rate[0] <= rate[1]
    else:
      top = 100.0 if kind == SparsityType.UNSTRUCTURED else 1.0
      expected = f'a float, at most {top}'
      fits = isinstance(rate, float) and 0 <= rate <= top
    if not fits:
      raise errors.UserError(
        f'WeightSparsityParams.prune_rate is {rate!r}; with {kind} expected'
        f' {expected}, or None'
      )

  def _check_combinations(self):
    """Refuses settings that the type or `topk_estimator_type` excludes."""
    params = self.weight_params or WeightSparsityParams(None)
    kind, learned = self.sparsity_type, self.topk_estimator_type is not None
    is_set = {
      'block_size': self.block_size != 0,
      'polynomial_decay_schedule': self.polynomial_decay_schedule is not None,
      'score': self.score != SparsityScore.MAGNITUDE,
      'topk_estimator_type': learned,
      'weight_params.offset': params.offset != 0,
      'weight_params.pruned_value': params.has_pruned_value,
      'weight_params.sparse_ste': params.sparse_ste,
    }
    shape = ['block_size', 'weight_params.offset', 'weight_params.sparse_ste']
    excluded = []
    if kind != SparsityType.STRUCTURED_NM:
      excluded += [(kind, name) for name in (*shape, 'topk_estimator_type')]
    if kind != SparsityType.UNSTRUCTURED:
      excluded += [(kind, 'polynomial_decay_schedule')]
    if learned:
      names = (*shape, 'weight_params.pruned_value', 'score')
      excluded += [('topk_estimator_type', name) for name in names]
    for setting, name in excluded:
      if is_set[name]:
        raise errors.UserError(
          f'SparsityHParams.{name} is not supported with {setting}'
        )
    errors.check_least(self, 0, 'block_size')
    if learned and self.is_active and self.prune_rate is None:
      raise errors.UserError(
        'SparsityHParams.topk_estimator_type needs weight_params.prune_rate'
      )
