"""Evaluation: the metrics of a dataset."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, errors
from pax_compat.input_core import host_fields
from pax_compat.metrics import example_outputs
from pax_compat.processes import joint_failure, watchdog
from pax_compat.trainer import partitioning, program, stopping
from pax_compat.trainer.evaluating import (
  batch_results,
  example_metrics,
  gathering,
)
from pax_compat.trainer.feeding import (
  agreement,
  pipeline,
  prefetching,
  sources,
)
from pax_compat.trainer.feeding.pipeline import DeviceBatch
from pax_compat.trainer.step_outputs import StepOutputs


def evaluate(
  data: base_input.BaseInput,
  *,
  task_program: program.TaskProgram,
  mdl_vars: Any,
  examples_path: pathlib.Path | None = None,
  stop: stopping.Stop = stopping.NEVER,
) -> dict[str, Any]:
  """Evaluates a model on a dataset.

  Examples count by their weight; padding rows have weight 0.

  Args:
    data: the input. `eval_loop_num_batches` batches of it are read, or all of
      them; with `reset_for_eval` it is reset then.
    task_program: has the step.
    mdl_vars: the model's variables.
    examples_path: the file for the per-example outputs of this process; None
      writes none.
    stop: called between batches; returns whether to stop.

  Returns:
    By name, as values that a `MetricWriter` takes: the weighted means and
    summaries, the input's own metrics, and `num_batches`; on the first process
    also the metrics that the input computes of all examples, as
    `scoring_eval/...`.

  Raises:
    UserError: the dataset has no batch, or fewer than `eval_loop_num_batches`.
    Interrupted: the run is to stop.
  """
  results = _EvalResults(data, task_program)
  failure = joint_failure.JointFailure(f'the evaluation of {data.name!r}')
  with contextlib.ExitStack() as stack:
    if examples_path is not None:
      with failure.held():
        results.examples = stack.enter_context(
          example_outputs.example_writer(examples_path)
        )
    batches = all_batches(
      data,
      task_program.put,
      stop,
      failure,
      # Several processes need equal shapes.
      drops_padding=task_program.model.counts_padding_rows
      and jax.process_count() == 1,
    )
    count = batch_results.one_late(
      stack.enter_context(contextlib.closing(batches)),
      lambda n, batch: results.step(mdl_vars, batch.arrays, np.uint32(n)),
      results.take,
      failure=failure,
    )
  logging.info('evaluated %r on %d batches', data.name, count)

  def values():
    return results.values(examples_path) | data.input_metrics()

  with watchdog.current().longer(f'computing the metrics of {data.name!r}'):
    found = joint_failure.together(values, f'the evaluation of {data.name!r}')
  return {**found, 'num_batches': float(count)}


class _EvalResults:
  """Results of the batches of an evaluation.

  Attributes:
    step: the compiled step.
    examples: takes the per-example outputs of this process; None without.
  """

  def __init__(
    self, data: base_input.BaseInput, task_program: program.TaskProgram
  ):
    self._sharding = task_program.batch_sharding
    self._example_metrics = example_metrics.ExampleMetrics(data, 'eval')
    self._steps = batch_results.StepAggregator(task_program)
    self.examples: example_outputs.ExampleWriter | None = None
    self.step = task_program.eval_step
    if self._example_metrics.enabled:
      self.step = task_program.eval_rows_step

  def take(self, batch: DeviceBatch, outputs: StepOutputs):
    """Takes a batch and its outputs, which are on the devices."""
    number = self._steps.count
    rows = whole = None
    if self._example_metrics.enabled:
      rows = gathering.examples(batch, self._sharding)
      whole = gathering.whole(outputs.per_example)
    self._steps.add(jax.device_get(outputs.replace(per_example={})))
    if self.examples is not None:
      _write_rows(
        self.examples, number, batch, outputs.per_example, self._sharding
      )
    if rows is not None:
      self._example_metrics.add_arrays(rows, whole)

  def values(self, path: pathlib.Path | None) -> dict[str, Any]:
    """Returns everything by name; see `evaluate`."""
    of_examples = self._example_metrics.values(path)
    return {**self._steps.result(), **of_examples}


def all_batches(
  data: base_input.BaseInput,
  put: Callable,
  stop: stopping.Stop = stopping.NEVER,
  failure: joint_failure.JointFailure | None = None,
  *,
  drops_padding: bool = False,
) -> Iterator[DeviceBatch]:
  """Yields the batches of one evaluation or decoding, on the devices.

  With `reset_for_eval` the input is reset at the end.

  Args:
    data: the input.
    put: sends a batch to the devices.
    stop: called between batches; returns whether to stop.
    failure: an error of this process so far. All processes raise together
      before the next batch if it exists, or if the input fails, in any.
    drops_padding: whether the input's padding rows are left out.

  Raises:
    Exception: a process has failed.
    UserError: the dataset has no batch, or fewer than `eval_loop_num_batches`,
      or differs between processes.
    Interrupted: the run is to stop.
  """
  cross_host = agreement.CrossHostCheck(data.name)
  rows = agreement.ReplicaRowCheck(data)
  limit = data.eval_loop_num_batches
  failure = failure or joint_failure.JointFailure(f'reading {data.name!r}')
  count, watch = 0, watchdog.current()
  with prefetching.Prefetcher(
    pipeline.Pipeline(
      pipeline.stages(
        data,
        put=put,
        rows=rows,
        records_order=True,
        drops_padding=drops_padding,
      ),
      sources.Source(data),
    ),
    max_batches=limit,
    stop=stop,
    check=data.raise_if_broken,
    interrupt=data.interrupt,
  ) as prefetcher:
    batches = iter(prefetcher)
    while True:
      batch = None
      with failure.held():
        batch = next(batches, None)
      stop.check()  # Processes without a batch do so, too.
      if batch is None:
        break
      cross_host.check(batch.shapes, batch.order_digest, failure)
      rows.check(batch.rows_digest)
      count += 1
      watch.alive('batch %d of %r begins', count, data.name)
      yield batch
      if count % 100 == 0:  # Shows a long evaluation, or one without an end.
        logging.log_every_n_seconds(
          logging.INFO, '%r: %d batches so far', 30, data.name, count
        )
    watch.alive('%d batches of %r are read', count, data.name)
    cross_host.check(None, data.order_digest(), failure)
  if data.reset_for_eval:
    with failure.held():
      data.reset()
  if not count or (limit is not None and count < limit):
    raise errors.UserError(
      f'the dataset {data.name!r} has {count} batches; expected'
      f' {limit or "at least one"}'
    )


def _write_rows(
  examples: example_outputs.ExampleWriter,
  number: int,
  batch: DeviceBatch,
  per_example: dict[str, jax.Array],
  sharding: partitioning.BatchSharding,
):
  """Writes a line for each example of this process that has a weight."""
  if not per_example:
    return
  rows = {k: partitioning.local_rows(x) for k, x in per_example.items()}
  weights = gathering.example_weights(batch.arrays)
  if weights is not None:
    weights = partitioning.local_rows(weights)
  some = next(iter(per_example.values()))
  of_hosts = sharding.rows_of_hosts(len(some))[sharding.infeed_host_index]
  # Indices among the rows that this process has read.
  indices = np.searchsorted(of_hosts, partitioning.local_row_numbers(some))
  for row, index in enumerate(indices):
    if weights is None or np.any(weights[row]):
      values = {name: array[row] for name, array in rows.items()}
      if batch.host:
        values[host_fields.NAME] = {k: x[index] for k, x in batch.host.items()}
      examples.write(batch=number, row=row, **values)
