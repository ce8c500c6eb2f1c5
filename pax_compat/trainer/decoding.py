"""Decoding: what a model makes of a dataset, on devices, then on the host."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import (
  base_input,
  base_metrics,
  clu_metrics,
  errors,
  example_outputs,
)
from pax_compat.trainer import evaluation, profiling, program


class _Metrics:
  """Metrics of decoded batches: with weights, and clu's.

  Attributes:
    weighted: puts together the former.
    clu: the latter, merged; None before the first batch.
  """

  def __init__(self, weighted: base_metrics.BaseMetrics):
    self.weighted = weighted
    self.clu: clu_metrics.Metrics | None = None

  def add(self, weighted: dict[str, Any], clu: dict[str, Any]):
    self.weighted.store(weighted)
    self.clu = clu_metrics.merge(self.clu, clu)

  def result(self, prefix: str, clu_prefix: str) -> dict[str, Any]:
    """Returns all of them as values that a `MetricWriter` takes."""
    means = self.weighted.finalize().items()
    found = {
      f'{prefix}/{name}': float(value)
      for name, (value, _) in means
      if np.ndim(value) == 0
    }
    read = clu_metrics.read(self.clu or {})
    return found | {f'{clu_prefix}{name}': v for name, v in read.items()}


def decode(
  data: base_input.BaseInput,
  *,
  task_program: program.TaskProgram,
  mdl_vars: Any,
  put: Callable,
  path: pathlib.Path,
  profile: profiling.Profile | None = None,
) -> dict[str, Any]:
  """Decodes a dataset.

  All processes decode; the first one has the model process what came out, and
  writes what it makes of each example.

  Args:
    data: the input, read as for an evaluation.
    task_program: has the step.
    mdl_vars: the model's variables.
    put: sends a batch to the devices.
    path: the file for the examples' (key, value) pairs, JSON lines.
    profile: takes a profile while it lasts; None for none.

  Returns:
    By name, as values that a `MetricWriter` takes: `decode_metrics/...` of the
    model's `decode`; on the first process `process_decode_metrics/...` of its
    `process_decode_out`; clu metrics of both under the task's
    `metrics_prefix`; and `num_decode_steps`, the number of batches.

  Raises:
    UserError: the dataset has no batch, or fewer than it is to have; or the
      model does not return what it should.
  """
  task = task_program.task
  decoded = _Metrics(task.create_metrics())
  processed = _Metrics(task.create_metrics())
  is_first = jax.process_index() == 0
  with contextlib.ExitStack() as stack:
    examples = None
    if is_first:
      examples = stack.enter_context(example_outputs.example_writer(path))
    if profile is not None:
      stack.enter_context(profile)
    batches = stack.enter_context(
      contextlib.closing(evaluation.all_batches(data, put))
    )
    pending: list[Any] = []
    count = 0
    for count, fed in enumerate(batches, 1):
      if profile is not None:
        profile.before_step(count, pending)
      outputs = task_program.decode_step(
        mdl_vars, fed.arrays, np.uint32(count - 1)
      )
      # One batch late, so that the devices decode while the host processes.
      _take(pending, data, task_program, decoded, processed, examples)
      pending.append(outputs)
    _take(pending, data, task_program, decoded, processed, examples)
  logging.info('decoded %r in %d batches', data.name, count)
  prefix = task_program.decode.metrics_prefix
  return {
    **decoded.result('decode_metrics', prefix),
    **processed.result('process_decode_metrics', prefix),
    'num_decode_steps': float(count),
  }


def _take(pending, data, task_program, decoded, processed, examples):
  """Takes the batch before, if there was one."""
  if not pending:
    return
  weighted, outputs, clu = jax.device_get(pending.pop())
  decoded.add(weighted, clu)
  if examples is None:
    return
  with _on_the_host():
    result = task_program.model.process_decode_out(data, outputs)
  if not isinstance(result, tuple) or len(result) != 3:
    raise errors.UserError(
      f'{type(task_program.model).__name__}.process_decode_out returns'
      f' {type(result).__name__}; expected a tuple of weighted scalars, (key,'
      ' value) pairs and clu metrics'
    )
  weighted, pairs, clu = result
  processed.add(dict(weighted), dict(clu))
  for key, value in pairs:
    examples.write(key=key, value=value)


@contextlib.contextmanager
def _on_the_host() -> Iterator[None]:
  """While it is entered, JAX computes on the CPU, where it may use it."""
  try:
    device = jax.local_devices(backend='cpu')[0]
  except RuntimeError:  # JAX was told of accelerators only.
    yield
    return
  with jax.default_device(device):
    yield
