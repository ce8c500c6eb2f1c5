"""When the masks of sparse weights are updated."""

import abc
import dataclasses

import jax
import jax.numpy as jnp

from pax_compat import errors


@dataclasses.dataclass
class BaseSparsityScheduleMode(abc.ABC):
  """Base class of schedules.

  A step is a call of the layer in training, counted from 0.
  """

  @abc.abstractmethod
  def update_cond(
    self, step: jax.Array, mask_update_times: jax.Array
  ) -> jax.Array:
    """Returns whether the mask is updated at a step.

    Args:
      step: the step [].
      mask_update_times: the number of updates before it [].
    """

  @abc.abstractmethod
  def get_num_shots(self) -> int:
    """Returns the number of updates; -1 if it has no limit."""


@dataclasses.dataclass
class TrainingMode(BaseSparsityScheduleMode):
  """Updates the mask at each step from a first one.

  Attributes:
    target_step: the first step.
  """

  target_step: int = 0

  def update_cond(self, step, mask_update_times):
    return step >= jnp.asarray(self.target_step)

  def get_num_shots(self) -> int:
    return -1


@dataclasses.dataclass
class OneShotMode(BaseSparsityScheduleMode):
  """Updates the mask once.

  Attributes:
    target_step: the step.
  """

  target_step: int = 0

  def update_cond(self, step, mask_update_times):
    return (step == self.target_step) & jnp.less(mask_update_times, 1)

  def get_num_shots(self) -> int:
    return 1


@dataclasses.dataclass
class FewShotMode(BaseSparsityScheduleMode):
  """Updates the mask several times, at equal distances.

  Attributes:
    num_shots: number of updates, at least 2.
    mask_update_interval: steps from one to the next.
    target_step: the step of the first.
  """

  num_shots: int = 0
  mask_update_interval: int = 1
  target_step: int = 0

  def __post_init__(self):
    if self.num_shots < 2:
      raise errors.wrong_field(self, 'num_shots', '2 or more, or OneShotMode')

  def update_cond(self, step, mask_update_times):
    due = self.target_step + mask_update_times * self.mask_update_interval
    return jnp.equal(step, due) & jnp.less(mask_update_times, self.num_shots)

  def get_num_shots(self) -> int:
    return self.num_shots


@dataclasses.dataclass
class MaterializeMode(BaseSparsityScheduleMode):
  """Never updates the mask: weights are pruned by the one that is loaded."""

  def update_cond(self, step, mask_update_times):
    return jnp.bool_(False)

  def get_num_shots(self) -> int:
    return -1


@dataclasses.dataclass
class InferenceMode(BaseSparsityScheduleMode):
  """Without masks: the weights that are loaded are pruned already."""

  def update_cond(self, step, mask_update_times):
    return jnp.bool_(False)

  def get_num_shots(self) -> int:
    return 0
