"""Results of the batches of an evaluation or decoding, aggregated."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from clu import values as clu_values

from pax_compat import base_metrics, errors
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.metrics import clu_metrics
from pax_compat.processes import joint_failure
from pax_compat.trainer import program
from pax_compat.trainer.feeding.pipeline import DeviceBatch
from pax_compat.trainer.step_outputs import (
  DecodeOutputs,
  NonScalarSummary,
  StepOutputs,
)


def one_late(
  batches: Iterable[DeviceBatch],
  step: Callable[[int, DeviceBatch], Any],
  take: Callable[[DeviceBatch, Any], object],
  *,
  before: Callable[[int, Any], object] = lambda count, outputs: None,
  failure: joint_failure.JointFailure | None = None,
) -> int:
  """Runs a step on each batch, and takes its outputs one batch late.

  So the devices have the next step while the host reads the outputs.

  Args:
    batches: at least one.
    step: dispatches the step of a batch, by its number, from 0 on.
    take: takes a batch and its outputs, which are on the devices.
    before: is called before each step with its count, from 1 on, and the
      outputs of the step before, None for the first one.
    failure: keeps errors of `take` and `before` until the next batch, before
      which `batches` raises them in all processes; and after the last one.

  Returns:
    The number of batches.
  """
  failure = failure or joint_failure.JointFailure('the use of a batch')
  pending, count = None, 0
  for count, batch in enumerate(batches, 1):
    with failure.held():
      before(count, pending and pending[1])
    outputs = step(count - 1, batch)
    if pending is not None:
      with failure.held():
        take(*pending)
    pending = (batch, outputs)
  with failure.held():
    take(*pending)
  failure.check()
  return count


class TaskMetrics:
  """The task's weighted metrics and the model's clu metrics, aggregated.

  Attributes:
    weighted: aggregates the weighted metrics.
    clu: the merged clu metrics; None before the first batch.
  """

  def __init__(self, task_program: program.TaskProgram):
    self.weighted: base_metrics.BaseMetrics = task_program.task.create_metrics()
    self.clu: clu_metrics.Metrics | None = None

  def add(self, weighted: dict[str, Any], clu: dict[str, Any]):
    """Adds the metrics of a batch."""
    self.weighted.store(weighted)
    self.clu = clu_metrics.merge(self.clu, clu)

  def scalars(self) -> dict[str, float]:
    """Returns the weighted metrics that are scalars and have a weight."""
    return {
      name: float(value)
      for name, (value, _) in self.weighted.finalize().items()
      if np.ndim(value) == 0
    }

  def clu_values(self) -> dict[str, Any]:
    """Returns the values of the clu metrics, for a `MetricWriter`."""
    return clu_metrics.compute(self.clu or {})


class Summaries:
  """Summaries of layers: means of scalars, and the first of the others."""

  def __init__(self):
    self._scalars = base_metrics.MeanMetrics()
    self._non_scalar: dict[str, Any] = {}

  def add(self, outputs: StepOutputs | DecodeOutputs, *others: dict[str, Any]):
    """Adds the summaries of a step, and other scalars by name."""
    scalars = dict(outputs.scalars)
    for other in others:
      scalars |= other
    self._scalars.store({k: (v, 1.0) for k, v in scalars.items()})
    if outputs.has_summaries and not self._non_scalar:
      self._non_scalar = values_of(outputs.non_scalar_summaries)

  def result(self) -> dict[str, Any]:
    """Returns all of them, as values that a `MetricWriter` takes."""
    means = self._scalars.finalize().items()
    scalars = {name: float(value) for name, (value, _) in means}
    return scalars | self._non_scalar


class StepAggregator:
  """Aggregates the outputs of train or eval steps over batches.

  Weighted scalars are aggregated by the task's metrics, other scalars are
  averaged, clu metrics are merged, and of non-scalar summaries the first ones
  are kept.

  Attributes:
    count: number of steps.
  """

  def __init__(self, task_program: program.TaskProgram):
    self._aggregator = task_program.loss_aggregator
    self._metrics = TaskMetrics(task_program)
    # The loss does not depend on the task's choice of metrics.
    self._means = base_metrics.MeanMetrics()
    self._summaries = Summaries()
    self._names: set[str] = set()
    self.count = 0

  def add(self, outputs: StepOutputs):
    """Adds the outputs of a step, fetched from the devices."""
    for name in self._metrics.weighted.names() - outputs.weighted.keys():
      raise errors.UserError(
        f"the task's metrics use {name!r}, which is not a metric of the model"
        + errors.did_you_mean(name, outputs.weighted)
      )
    self._metrics.add(outputs.weighted, outputs.clu)
    self._means.store(outputs.weighted)
    self._summaries.add(outputs, outputs.norms if outputs.has_summaries else {})
    self._names |= outputs.weighted.keys()
    self.count += 1

  def result(self) -> dict[str, Any]:
    """Returns everything by name, as values that a `MetricWriter` takes.

    Metrics without any weight are left out, and so are arrays of the task's
    metrics.
    """
    found = self._metrics.scalars()
    found.pop(self._aggregator.loss_name, None)
    return {
      **found,
      **self._loss(),
      **self._summaries.result(),
      **self._metrics.clu_values(),
    }

  def _loss(self) -> dict[str, float]:
    """Returns the loss that the metrics of all batches together make."""
    means = self._means.finalize()
    clu = self._metrics.clu or {}
    try:
      _, loss, _ = self._aggregator.aggregate({**means, **clu})
    except errors.UserError:
      if means.keys() == self._names:
        raise
      return {}  # One of its metrics never had a weight.
    return {self._aggregator.loss_name: float(loss)}


def values_of(found: dict[str, NonScalarSummary]) -> dict[str, Any]:
  """Returns non-scalar summaries as values that a `MetricWriter` takes."""
  values = {}
  for name, summary in found.items():
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
