"""Runs of optimizers that are interrupted by a checkpoint.

Each takes steps with the gradients of `optimizer_cases`, of which the weights
are those of that module and one that is stacked, as a repeated layer has. The
loss of a step is the product of weights and gradients: its gradient is given.
"""

import dataclasses
from typing import Any

import numpy as np

from tests import source_tree
from tests.pax import optimizer_cases

RECORDED = source_tree.ROOT / 'testdata/pax/continued.tar.gz'
LOSSES = 'losses.json'
# The checkpoint is that of step 3: in the middle of an accumulation of two.
STEP, STEPS = 3, 7
CASES = (
  'adafactor',
  'adafactor_momentum',
  'accumulator',
  'accumulated_adam',
  'adagrad',
  'adam',
  'lamb',
  'lars',
  'lion',
  'sgd',
  'sgd_nesterov',
  'shampoo',
  'shampoo_blocks',
  'shampoo_summarized',
  'sharded_adafactor',
  'sharded_adafactor_pow',
  'sharded_adagrad',
  'sharded_shampoo',
)
# Those that are recorded in an OCDBT database, too, in the folder CASE.ocdbt.
IN_OCDBT = (
  'adafactor_momentum',
  'accumulated_adam',
  'shampoo_blocks',
  'sharded_shampoo',
  'shampoo_summarized',
)
STACK = 2


@dataclasses.dataclass(frozen=True)
class Weight:
  """A weight.

  Attributes:
    shape: without the stack.
    stack: () or the number of layers.
  """

  shape: tuple[int, ...]
  stack: tuple[int, ...]


def weights() -> dict[str, np.ndarray]:
  """Returns the weights before the first step, by name."""
  stacked = np.random.default_rng(5).normal(size=[STACK, 5, 6]).astype('f')
  return {**optimizer_cases.weights(), 's': stacked}


def shapes() -> dict[str, Weight]:
  """Returns the shapes of the weights by name."""
  return {
    name: Weight(x.shape[1:], x.shape[:1])
    if name == 's'
    else Weight(x.shape, ())
    for name, x in weights().items()
  }


def gradients(step: int) -> dict[str, np.ndarray]:
  """Returns the gradients of a step, by name."""
  stacked = np.random.default_rng(step + 200).normal(size=[STACK, 5, 6])
  return {**optimizer_cases.gradients(step), 's': stacked.astype('f')}


def loss(step: int, values: dict[str, Any]) -> float:
  """Returns the loss of a step before its update."""
  return float(
    sum(
      np.vdot(np.asarray(values[name], np.float64), x)
      for name, x in gradients(step).items()
    )
  )


def config(optimizers, schedules, name: str) -> Any:
  """Returns the config of an optimizer, of Pax's modules or of ours."""
  if name == 'shampoo_summarized':  # Errors of roots are in the state.
    found = optimizer_cases.config(optimizers, schedules, 'shampoo_blocks')
    found.summarize_training_metrics = True
    return found
  if name != 'accumulated_adam':
    return optimizer_cases.config(optimizers, schedules, name)
  wrapped = optimizer_cases.config(optimizers, schedules, 'adam')
  found = optimizer_cases.config(optimizers, schedules, 'accumulator')
  found.optimizer_tpl = wrapped
  return found
