"""Checks before the first step of what is used only after many of them.

A model that cannot evaluate or decode a batch, a metric that is not one, or a
dataset without a batch would otherwise be found hours later.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import program, row_weights
from pax_compat.trainer.evaluating import batch_results, example_metrics
from pax_compat.trainer.feeding import (
  agreement,
  dataset_inputs,
  first_batch,
)


def check(
  task_program: program.TaskProgram,
  data: dataset_inputs.Inputs,
  example: NestedMap | None = None,
):
  """Traces the evaluation and the decoding of the first batch of each dataset.

  Nothing is computed. Of each dataset a batch is read, which is evaluated
  later. All processes call it together.

  Args:
    task_program: has the steps.
    data: the inputs.
    example: a training batch of this process, or its shapes; None if nothing
      is trained.

  Raises:
    UserError: a dataset has no batch, or one that the devices do not divide and
      that cannot be padded; or a metric of the task cannot be used.
    Exception: of the model, with a note about the dataset.
  """
  if example is not None:
    task_program.check_rows(example)
  batch_results.StepAggregator(task_program)
  for name, one in data.eval.items():
    rows = example_metrics.ExampleMetrics(one, 'eval').enabled
    step = task_program.eval_rows_step if rows else task_program.eval_step
    _check_dataset(task_program, one, step, f'in the evaluation of {name!r}')
  if data.decode:
    task_program.model.after_decoding()
  for name, one in data.decode.items():
    example_metrics.ExampleMetrics(one, 'decode')
    step = task_program.decode_step
    _check_dataset(task_program, one, step, f'in the decoding of {name!r}')


def _check_dataset(
  task_program: program.TaskProgram,
  data: base_input.BaseInput,
  step: Callable[..., Any],
  where: str,
):
  where = f'{where}, which is checked before the first step'
  batch = first_batch.peeked(data)
  if batch is None:
    raise errors.UserError(f'the dataset {data.name!r} has no batch\n  {where}')
  agreement.warn_of_equal_batches(data, batch)
  batch = host_fields.for_devices(batch, data.is_host_field)
  try:
    if step is not task_program.decode_step:
      task_program.check_rows(batch)
    with first_batch.tried(batch, data):
      traced = step.trace(
        task_program.abstract_state.mdl_vars,
        _shapes(task_program, batch),
        np.uint32(0),
      )
  except errors.UserError as e:
    e.args = (f'{e}\n  {where}',)
    raise
  except Exception as e:
    e.add_note(where)
    raise
  if step is not task_program.decode_step and example_rows.WEIGHTS in batch:
    _warn_of_unused_weights(task_program, traced, data.name)


def _warn_of_unused_weights(
  task_program: program.TaskProgram, traced: jax.stages.Traced, name: str
):
  """Warns if rows of padding would count in the loss of an evaluation."""
  loss_name = task_program.loss_aggregator.loss_name
  if not row_weights.eval_loss_uses_weights(traced, loss_name):
    logging.warning(
      '%s.compute_loss does not use %s of the dataset %r: padding rows, which'
      ' fill its last batch, count in the loss %r as examples do; expected a'
      ' mean of the examples by these weights, which are 0 for padding, and'
      ' their sum as its weight',
      type(task_program.model).__name__,
      example_rows.WEIGHTS,
      name,
      loss_name,
    )


def _shapes(task_program: program.TaskProgram, batch: NestedMap) -> NestedMap:
  """Returns the shapes of the global batch, with their shardings."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape,
      x.dtype,
      sharding=task_program.batch_sharding.of_shape(x.shape),
    ),
    program.global_shapes(batch, task_program.batch_sharding),
  )
