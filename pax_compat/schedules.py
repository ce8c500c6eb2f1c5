"""Learning-rate schedules: the factor of the learning rate at each step."""

import jax
import jax.numpy as jnp

from pax_compat import config as config_lib


class BaseSchedule(config_lib.Configurable):
  """A function of the step."""

  def value_at(self, count: jax.Array) -> jax.Array:
    """Returns the factor [] at step `count` [], which starts at 0."""
    raise NotImplementedError(type(self).__name__)


class Constant(BaseSchedule):
  """The same at every step.

  Attributes:
    value: the factor.
  """

  value: float = 1.0

  def value_at(self, count):
    return jnp.full([], self.value, jnp.float32)


class Transformer(BaseSchedule):
  """Linear rise, then a power of the step, as in Lingvo's TransformerSchedule.

  model_dim^-0.5 * min((t + 1) * w^(decay_factor - 1),
  (t + start_step + 1)^decay_factor), w the warm-up.
  https://arxiv.org/abs/1706.03762

  Attributes:
    warmup_steps: steps of the rise.
    model_dim: the model's dims.
    worker_replicas: multiplies the warm-up.
    decay_end: from this step on the factor stays; None for never.
    decay_factor: the power.
    start_step: shifts the fall to the left.
  """

  warmup_steps: int = 4000
  model_dim: int = 512
  worker_replicas: int = 1
  decay_end: int | None = None
  decay_factor: float = -0.5
  start_step: int = 0

  def value_at(self, count):
    step = jnp.asarray(count, jnp.float32)
    if self.decay_end is not None:
      step = jnp.minimum(step, float(self.decay_end))
    warmup = float(self.warmup_steps * self.worker_replicas)
    rise = (step + 1) * warmup ** (self.decay_factor - 1.0)
    fall = (step + self.start_step + 1) ** self.decay_factor
    return self.model_dim**-0.5 * jnp.minimum(rise, fall)
