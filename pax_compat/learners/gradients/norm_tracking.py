"""Rejects steps whose gradients are much larger than usual."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from pax_compat import config as config_lib
from pax_compat import errors

# Steps are rejected once the averages have this total weight, of at most 1.
_ENOUGH = 0.75
_SMALLEST = 1e-6


class NormStatistics(NamedTuple):
  """Statistics of the norms of gradients. All are [], float32.

  Attributes:
    log_mean: decaying sum of log(1 + norm).
    log_mean_squared: decaying sum of its square.
    total_weight: decaying sum of 1, which the other two are divided by.
    total_rejections: number of rejected steps.
  """

  log_mean: jax.Array
  log_mean_squared: jax.Array
  total_weight: jax.Array
  total_rejections: jax.Array


class GradNormTracker(config_lib.Configurable):
  """Rejects steps by the global norm of gradients, as Lingvo's tracker does.

  It keeps moving averages of log(1 + norm) and of its square. A step whose norm
  is far above them, or not finite, is rejected: its gradients are set to zero,
  and the optimizer steps on. No step is rejected until the averages have
  enough weight.

  Attributes:
    name: name of the tracker in messages.
    decay: of the moving averages, above 0 and below 1.
    grad_norm_lower_cap: lower norms count as this one.
    clip_threshold: how many standard deviations above the mean a norm may be.
    grad_norm_clip_cap_min: steps of this norm or a lower one are never
      rejected.
    dry_run: whether rejected steps are only counted.

  Raises:
    UserError: `decay` is out of its range.
  """

  name: str = 'grad_norm_tracker'
  decay: float = 0.995
  grad_norm_lower_cap: float = 1e-2
  clip_threshold: float = 4.0
  grad_norm_clip_cap_min: float = 0.0
  dry_run: bool = False

  def __post_init__(self):
    if not 0 < self.decay < 1:
      raise errors.UserError(
        f'{self.name}: GradNormTracker.decay is {self.decay}; expected a number'
        ' above 0 and below 1'
      )

  def init(self) -> NormStatistics:
    """Returns the initial statistics: zeros."""
    return NormStatistics(*(jnp.zeros([]) for _ in NormStatistics._fields))

  def abstract_state(self, sharding: Sharding | None) -> NormStatistics:
    """Returns shapes and dtypes of the statistics, with a sharding."""
    one = jax.ShapeDtypeStruct([], jnp.float32, sharding=sharding)
    return NormStatistics(*(one for _ in NormStatistics._fields))

  def step(
    self, known: NormStatistics, norm: jax.Array
  ) -> tuple[jax.Array, NormStatistics]:
    """Returns the factor [] of the gradients, 1 or 0, and the next statistics.

    Args:
      known: the statistics before the step.
      norm: [], the global norm of gradients.
    """
    finite = jnp.isfinite(norm)
    seen = jnp.log(jnp.maximum(norm, self.grad_norm_lower_cap) + 1)
    weight = jnp.maximum(known.total_weight, _SMALLEST)
    mean = known.log_mean / weight
    variance = known.log_mean_squared / weight - jnp.square(mean)
    deviation = jnp.sqrt(jnp.maximum(variance, _SMALLEST))
    limit = jnp.maximum(
      mean + deviation * self.clip_threshold,
      jnp.log(jnp.float32(self.grad_norm_clip_cap_min) + 1),
    )
    too_large = (seen > limit) & (known.total_weight > _ENOUGH)
    rejected = (too_large | ~finite).astype(jnp.float32)
    counted = jnp.minimum(seen, limit)

    def moved(average, value):
      return average + jnp.where(
        finite, (1 - self.decay) * (value - average), 0
      )

    factor = jnp.ones([]) if self.dry_run else 1 - rejected
    return factor, NormStatistics(
      log_mean=moved(known.log_mean, counted),
      log_mean_squared=moved(known.log_mean_squared, jnp.square(counted)),
      total_weight=moved(known.total_weight, 1.0),
      total_rejections=known.total_rejections + rejected,
    )
