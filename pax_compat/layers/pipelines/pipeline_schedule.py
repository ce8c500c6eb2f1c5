"""The schedule of a pipeline: which stage runs which microbatch, when.

In iteration t of the loop, stage s runs microbatch step t - s. Step i is
microbatch i mod M in circular repeat i // M. Outside of these steps the stage
runs a bubble, whose outputs are dropped. Here 3 stages run 4 microbatches in 2
repeats, a and b; columns are iterations, and `..` is a bubble:

>>> schedule = Schedule(stages=3, microbatches=4, repeats=2)
>>> def cell(microbatch, repeat, is_valid):
...   return f'{"ab"[repeat]}{microbatch}' if is_valid else '..'
>>> for stage in range(3):
...   times = range(schedule.iterations)
...   print('stage', stage, *[cell(*schedule.at(t, stage)) for t in times])
stage 0 a0 a1 a2 a3 b0 b1 b2 b3 .. ..
stage 1 .. a0 a1 a2 a3 b0 b1 b2 b3 ..
stage 2 .. .. a0 a1 a2 a3 b0 b1 b2 b3

Shapes: M microbatches, S stages, R circular repeats.
"""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The schedule of microbatches over stages.

  Attributes:
    stages: S.
    microbatches: M.
    repeats: R.
  """

  stages: int
  microbatches: int
  repeats: int = 1

  @property
  def microbatch_steps(self) -> int:
    """Number of steps of each stage, without bubbles: M R."""
    return self.microbatches * self.repeats

  @property
  def iterations(self) -> int:
    """Number of iterations of the loop."""
    return self.microbatch_steps + self.stages - 1

  def at(
    self, iteration: jax.Array, stage: jax.Array | int
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the step that a stage, or each of several, runs.

    Returns:
      The microbatch, the repeat, and whether they are valid; in a bubble they
      are not, but still in range.
    """
    step = iteration - stage
    is_valid = (step >= 0) & (step < self.microbatch_steps)
    step = jnp.clip(step, 0, self.microbatch_steps - 1)
    return step % self.microbatches, step // self.microbatches, is_valid
