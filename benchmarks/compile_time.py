"""Times the compilation of a train step by the number of layers.

    python -m benchmarks.compile_time

It compiles the trainer's step (loss, gradient, Adam) of a Transformer language
model, from its config to the executable, without the compilation cache.
Repeated layers are compiled once: the goal is that 32 of them take at most 1.3
times as long as 4. Stacked layers, which are compiled one by one, are timed for
comparison.

A round compiles each step once; every second round in reverse order. A ratio is
the median over the rounds of two times of the same round, so that other load
affects both.

Measured 2026-11-27, two cores of an AMD EPYC, otherwise idle, JAX 0.10.2,
--rounds=4:

    layers          build s    trace s  compile s      all s
    4 repeated         0.22       0.76       3.26       4.23
    32 repeated        0.25       0.86       3.05       4.13
    4 stacked          0.29       1.12       4.06       5.48
    16 stacked         1.01       4.06      12.84      17.90
    32 to 4 repeated: 0.93
    16 to 4 stacked: 3.22
"""

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging

from benchmarks import command_line
from pax_compat import config as config_lib
from pax_compat import layers, optimizers, tasks_lib
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program

# The phases of a compilation, timed separately.
PHASES = ('build', 'trace', 'compile')


class Step(NamedTuple):
  """A train step to time.

  Attributes:
    form: 'repeated' or 'stacked'.
    layers: number of layers.
  """

  form: str
  layers: int


class Sizes(NamedTuple):
  """The dimensions of a model and of its batches."""

  model_dims: int = 256
  hidden_dims: int = 1024
  num_heads: int = 4
  vocab_size: int = 8192
  batch: int = 8
  time: int = 256


SIZES = Sizes()
STEPS = (
  Step('repeated', 4),
  Step('repeated', 32),
  Step('stacked', 4),
  Step('stacked', 16),
)
# The pairs of steps that are compared, the longer one first.
RATIOS = ((STEPS[1], STEPS[0]), (STEPS[3], STEPS[2]))


def task(step: Step, sizes: Sizes) -> config_lib.Config:
  """Returns the task of a step."""
  stack = layers.StackedTransformer.config(
    num_layers=step.layers,
    hidden_dims=sizes.hidden_dims,
    num_heads=sizes.num_heads,
  )
  if step.form == 'repeated':
    stack = layers.StackedTransformerRepeated.config(
      block=stack.set(num_layers=1), x_times=step.layers
    )
  model = models.LanguageModel.config()
  model.lm_tpl.set(
    vocab_size=sizes.vocab_size,
    model_dims=sizes.model_dims,
    stacked_transformer_tpl=stack,
  )
  made = tasks_lib.SingleTask.config(model=model)
  made.train.learner.optimizer = optimizers.Adam.config(learning_rate=1e-3)
  return made


def batch(sizes: Sizes) -> NestedMap:
  """Returns the shapes of a batch of tokens."""
  rows = (sizes.batch, sizes.time)
  ids = jax.ShapeDtypeStruct(rows, jnp.int32)
  numbers = jax.ShapeDtypeStruct(rows, jnp.float32)
  return NestedMap(ids=ids, labels=ids, paddings=numbers, weights=numbers)


def time_once(step: Step, sizes: Sizes) -> dict[str, float]:
  """Returns the seconds of each phase, with empty caches."""
  jax.clear_caches()
  gc.collect()
  config, shapes = task(step, sizes), batch(sizes)
  mesh = partitioning.create_mesh(None, None)
  times = [time.perf_counter()]
  made = program.create(config.Instantiate(), mesh, shapes)
  times.append(time.perf_counter())
  due = jax.ShapeDtypeStruct([], jnp.bool_)
  lowered = made.train_step.lower(made.abstract_state, shapes, due)
  times.append(time.perf_counter())
  lowered.compile()
  times.append(time.perf_counter())
  return {
    phase: after - before
    for phase, before, after in zip(PHASES, times, times[1:], strict=False)
  }


def measure(
  rounds: int, sizes: Sizes = SIZES, steps: Sequence[Step] = STEPS
) -> dict[Step, list[dict[str, float]]]:
  """Returns the results of `time_once` in each round, by step."""
  jax.config.update('jax_enable_compilation_cache', False)
  time_once(steps[0], sizes)  # Warm-up.
  found = {step: [] for step in steps}
  for number in range(rounds):
    logging.info('round %d of %d', number + 1, rounds)
    for step in steps[:: -1 if number % 2 else 1]:
      found[step].append(time_once(step, sizes))
  return found


def summary(found: Mapping[Step, Sequence[Mapping[str, float]]]) -> dict:
  """Returns medians and ratios of the results of `measure`.

  Returns:
    `seconds`, by step such as '4 repeated' and by phase or 'all'; and `ratios`
    of the total times of two steps, such as '32 to 4 repeated'.
  """
  totals = {step: [sum(r.values()) for r in found[step]] for step in found}
  return {
    'seconds': {
      f'{step.layers} {step.form}': {
        **{p: statistics.median(r[p] for r in rounds) for p in PHASES},
        'all': statistics.median(totals[step]),
      }
      for step, rounds in found.items()
    },
    'ratios': {
      f'{more.layers} to {less.layers} {more.form}': statistics.median(
        a / b for a, b in zip(totals[more], totals[less], strict=True)
      )
      for more, less in RATIOS
    },
  }


def table(result: Mapping[str, Any]) -> str:
  """Returns a summary as text."""
  columns = (*PHASES, 'all')
  lines = ['layers'.ljust(12) + ''.join(f'{c} s'.rjust(11) for c in columns)]
  for name, seconds in result['seconds'].items():
    cells = (f'{seconds[c]:11.2f}' for c in columns)
    lines.append(name.ljust(12) + ''.join(cells))
  for name, ratio in result['ratios'].items():
    lines.append(f'{name}: {ratio:.2f}')
  return '\n'.join(lines)


def main():
  """Measures, prints the table, and writes the JSON."""
  command_line.run(
    'compile_time', lambda rounds: summary(measure(rounds)), table
  )


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  main()
