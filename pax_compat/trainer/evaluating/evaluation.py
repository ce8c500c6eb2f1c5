"""Evaluation: the metrics of a dataset."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from clu import values as clu_values

from pax_compat import base_input, base_metrics, errors
from pax_compat.input_core import host_fields
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.metrics import clu_metrics, example_outputs
from pax_compat.trainer import partitioning, program, stopping
from pax_compat.trainer.evaluating import example_metrics, gathering
from pax_compat.trainer.feeding import agreement, prefetching
from pax_compat.trainer.step_outputs import LargeSummary, StepOutputs


class Means:
  """Puts together what the steps on several batches told.

  Weighted scalars go through the task's metrics, other scalars are averaged,
  clu's metrics are merged, and of large summaries the first count.

  Attributes:
    count: how many steps there were.
  """

  def __init__(self, task_program: program.TaskProgram):
    self._aggregator = task_program.loss_aggregator
    self._metrics = task_program.task.create_metrics()
    # The loss is known whatever the task's metrics are.
    self._all = base_metrics.MeanMetrics()
    self._described = base_metrics.MeanMetrics()
    self._clu: clu_metrics.Metrics | None = None
    self._large: dict[str, Any] = {}
    self._names: set[str] = set()
    self.count = 0

  def add(self, outputs: StepOutputs):
    """Takes the outputs of a step, fetched from the devices."""
    for name in self._metrics.names() - outputs.weighted.keys():
      raise errors.UserError(
        f"the task's metrics are to use {name!r}, which the model has not"
        + errors.did_you_mean(name, outputs.weighted)
      )
    self._metrics.store(outputs.weighted)
    self._all.store(outputs.weighted)
    described = outputs.described | (outputs.norms if outputs.is_due else {})
    self._described.store({k: (v, 1.0) for k, v in described.items()})
    self._clu = clu_metrics.merge(self._clu, outputs.clu)
    self._names |= outputs.weighted.keys()
    self.count += 1
    if outputs.is_due and not self._large:
      self._large = values_of(outputs.large)

  def result(self) -> dict[str, Any]:
    """Returns everything by name, as values that a `MetricWriter` takes.

    Metrics without any weight are left out, and arrays among those that the
    task's metrics make.
    """
    found = {
      name: float(value)
      for name, (value, _) in self._metrics.finalize().items()
      if np.ndim(value) == 0
    }
    found.pop(self._aggregator.loss_name, None)
    found |= self._loss()
    found |= {k: float(v) for k, (v, _) in self._described.finalize().items()}
    return {**found, **clu_metrics.compute(self._clu or {}), **self._large}

  def _loss(self) -> dict[str, float]:
    """Returns the loss that the metrics of all batches together make."""
    means = self._all.finalize()
    try:
      _, loss, _ = self._aggregator.aggregate({**means, **(self._clu or {})})
    except errors.UserError:
      if means.keys() == self._names:
        raise
      return {}  # One of its metrics never had a weight.
    return {self._aggregator.loss_name: float(loss)}


def values_of(large: dict[str, LargeSummary]) -> dict[str, Any]:
  """Returns large summaries as values that a `MetricWriter` takes."""
  values = {}
  for name, summary in large.items():
    value = summary.value
    if summary.summary_type is SummaryType.IMAGE:
      value = clu_values.Image(value)
    elif summary.summary_type is SummaryType.TEXT:
      text = np.asarray(value).tobytes().decode('utf-8', errors='replace')
      value = clu_values.Text(text)
    values[name] = value
  return values


def numbers(values: dict[str, Any]) -> dict[str, float]:
  """Returns the scalars among the values that a `MetricWriter` takes."""
  plain = {k: v for k, v in values.items() if isinstance(v, float)}
  return plain | clu_metrics.scalars(values)


def evaluate(
  data: base_input.BaseInput,
  *,
  task_program: program.TaskProgram,
  mdl_vars: Any,
  put: Callable,
  examples_path: pathlib.Path | None = None,
  stop: stopping.Stop = stopping.NEVER,
) -> dict[str, Any]:
  """Evaluates a model on a dataset.

  Every example counts as often as its weight says, so what only fills a batch
  does not count.

  Args:
    data: the input. `eval_loop_num_batches` batches of it are read, or all
      that there are; with `reset_for_eval` it is reset then.
    task_program: has the step.
    mdl_vars: the model's variables.
    put: sends a batch to the devices.
    examples_path: the file for what is said of each example of this process;
      None where it is not asked for.
    stop: tells between batches whether to stop.

  Returns:
    The weighted means and all else that was said, by name, as values that a
    `MetricWriter` takes, what the input tells of itself, and `num_batches`; on
    the first process also the metrics that the input makes of all examples, as
    `scoring_eval/...`.

  Raises:
    UserError: the dataset has no batch, or fewer than it is to have.
    Interrupted: it is to stop.
  """
  results = _Results(data, task_program)
  with contextlib.ExitStack() as stack:
    if examples_path is not None:
      results.examples = stack.enter_context(
        example_outputs.example_writer(examples_path)
      )
    batches = stack.enter_context(
      contextlib.closing(all_batches(data, put, stop))
    )
    pending, count = None, 0
    for count, fed in enumerate(batches, 1):
      outputs = results.step(mdl_vars, fed.arrays, np.uint32(count - 1))
      # One batch late, so that the devices always have the next one.
      if pending is not None:
        results.take(*pending)
      pending = (fed, outputs)
    results.take(*pending)
  logging.info('evaluated %r on %d batches', data.name, count)
  return {
    **results.values(examples_path),
    **data.input_metrics(),
    'num_batches': float(count),
  }


class _Results:
  """What comes out of the batches of an evaluation.

  Attributes:
    step: the compiled step.
    examples: takes what is said of each example of this process; None where it
      is not asked for.
  """

  def __init__(
    self, data: base_input.BaseInput, task_program: program.TaskProgram
  ):
    """Begins with nothing."""
    self._sharding = task_program.batch_sharding
    self._means = Means(task_program)
    self._collected = None
    self.step = task_program.eval_step
    self.examples: example_outputs.ExampleWriter | None = None
    if data.has_example_metrics('eval'):
      self._collected = example_metrics.ExampleMetrics(data, 'eval')
      self.step = task_program.eval_rows_step

  def take(self, fed: prefetching.FedBatch, outputs: StepOutputs):
    """Takes a batch and its outputs, which are on the devices."""
    number = self._means.count
    self._means.add(jax.device_get(outputs.replace(per_example={})))
    if self.examples is not None:
      said = outputs.per_example
      _write_rows(self.examples, number, fed, said, self._sharding)
    if self._collected is not None:
      self._collected.add_arrays(
        gathering.examples(fed, self._sharding),
        gathering.whole(outputs.per_example),
      )

  def values(self, path: pathlib.Path | None) -> dict[str, Any]:
    """Returns what is told of all batches; see `evaluate`."""
    made = {} if self._collected is None else self._collected.values(path)
    return {**self._means.result(), **made}


def all_batches(
  data: base_input.BaseInput,
  put: Callable,
  stop: stopping.Stop = stopping.NEVER,
) -> Iterator[prefetching.FedBatch]:
  """Yields the batches of one evaluation or decoding, on the devices.

  The input is reset at the end where it says so.

  Raises:
    UserError: the dataset has no batch, or fewer than it is to have, or is not
      the same on all processes.
    Interrupted: it is to stop.
  """
  same = agreement.Agreement(data.name)
  shared = agreement.SharedRows(data)
  limit = data.eval_loop_num_batches
  count = 0
  with prefetching.Feeder(
    functools.partial(shared.noting, data.get_next_padded),
    put,
    max_batches=limit,
    is_host_field=data.is_host_field,
    order=lambda: (data.order_digest(), shared.digest()),
    stop=stop,
    check=data.raise_if_broken,
    interrupt=data.interrupt,
  ) as feeder:
    for fed in feeder:
      stop.check()
      order, rows = fed.order
      same.check(fed.shapes, order)
      shared.check(rows)
      count += 1
      yield fed
      if count % 100 == 0:  # A long one, or one that has no end, is seen.
        logging.log_every_n_seconds(
          logging.INFO, '%r: %d batches so far', 30, data.name, count
        )
    stop.check()  # As those do that have a batch left; see `same`.
    same.check(None, data.order_digest())
  if data.reset_for_eval:
    data.reset()
  if not count or (limit is not None and count < limit):
    raise errors.UserError(
      f'the dataset {data.name!r} has {count} batches; expected'
      f' {limit or "at least one"}'
    )


def _write_rows(
  examples: example_outputs.ExampleWriter,
  number: int,
  fed: prefetching.FedBatch,
  per_example: dict[str, jax.Array],
  sharding: partitioning.BatchSharding,
):
  """Writes a line for each example of this process that counts."""
  if not per_example:
    return
  rows = {k: partitioning.local_rows(x) for k, x in per_example.items()}
  weights = gathering.example_weights(fed.arrays)
  if weights is not None:
    weights = partitioning.local_rows(weights)
  some = next(iter(per_example.values()))
  of_hosts = sharding.rows_of_hosts(len(some))[sharding.infeed_host_index]
  # Where the rows are among those that this process has read.
  places = np.searchsorted(of_hosts, partitioning.local_row_numbers(some))
  for row, place in enumerate(places):
    if weights is None or np.any(weights[row]):
      values = {name: array[row] for name, array in rows.items()}
      if fed.host:
        values[host_fields.NAME] = {k: x[place] for k, x in fed.host.items()}
      examples.write(batch=number, row=row, **values)
