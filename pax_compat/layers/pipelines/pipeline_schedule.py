"""Which stage of a pipeline works on what, when.

In iteration t of a loop, stage s has item t - s, where item i is micro-batch
i mod M on its way i // M through the stages. Where there is no such item, the
stage works on what nobody asks for: a bubble.

Shapes: M micro-batches, S stages, R ways through the stages.
"""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The order in which stages work.

  Attributes:
    stages: S.
    microbatches: M.
    ways: R.
  """

  stages: int
  microbatches: int
  ways: int = 1

  @property
  def items(self) -> int:
    """How many items each stage works on."""
    return self.microbatches * self.ways

  @property
  def iterations(self) -> int:
    """How often the loop goes round."""
    return self.items + self.stages - 1

  def at(
    self, iteration: jax.Array, stage: jax.Array | int
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns what a stage, or each of several, works on.

    Returns:
      The micro-batch, the way, and whether there is such an item at all.
    """
    item = iteration - stage
    is_item = (item >= 0) & (item < self.items)
    item = jnp.clip(item, 0, self.items - 1)
    return item % self.microbatches, item // self.microbatches, is_item
