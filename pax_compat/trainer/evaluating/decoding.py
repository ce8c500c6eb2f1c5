"""Decoding: what a model makes of a dataset, on devices, then on the host."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, base_metrics, errors
from pax_compat.input_core import host_fields
from pax_compat.metrics import clu_metrics, example_outputs
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import profiling, program, stopping
from pax_compat.trainer.evaluating import evaluation, example_metrics, gathering
from pax_compat.trainer.feeding import prefetching
from pax_compat.trainer.step_outputs import DecodeOutputs


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
    read = clu_metrics.compute(self.clu or {})
    return found | {f'{clu_prefix}{name}': v for name, v in read.items()}


class _Results:
  """What comes out of the batches of a decoding.

  On the first process, the model also processes what was decoded.
  """

  def __init__(
    self,
    data: base_input.BaseInput,
    task_program: program.TaskProgram,
    examples: example_outputs.ExampleWriter | None,
  ):
    """Begins with nothing.

    Args:
      data: where the batches come from.
      task_program: has the model.
      examples: takes what the model makes of each example; None where it does
        not process them.
    """
    self._data = data
    self._program = task_program
    self._examples = examples
    self._collected = None
    if data.has_example_metrics('decode'):
      self._collected = example_metrics.ExampleMetrics(data, 'decode')
    self._decoded = _Metrics(task_program.task.create_metrics())
    self._processed = _Metrics(task_program.task.create_metrics())
    self._described = base_metrics.MeanMetrics()
    self._large: dict[str, Any] = {}

  def take(self, fed: prefetching.FedBatch, outputs: DecodeOutputs):
    """Takes a batch and its outputs, which are on the devices."""
    rows = None
    if fed.host or self._collected is not None:
      rows = gathering.examples(fed, self._program.batch_sharding)
    outputs = jax.device_get(outputs)
    self._decoded.add(outputs.weighted, outputs.clu)
    self._described.store({k: (v, 1.0) for k, v in outputs.described.items()})
    if outputs.is_due:
      self._large = evaluation.values_of(outputs.large)
    if self._examples is not None:
      self._process(outputs.decoded, rows)

  def _process(self, decoded: Any, rows: gathering.Examples | None):
    model = self._program.model
    if rows is not None:
      decoded = _with_host_fields(decoded, rows.host)
    with _on_the_host():
      result = model.process_decode_out(self._data, decoded)
    if not isinstance(result, tuple) or len(result) != 3:
      raise errors.UserError(
        f'{type(model).__name__}.process_decode_out returns'
        f' {type(result).__name__}; expected a tuple of weighted scalars, (key,'
        ' value) pairs and clu metrics'
      )
    weighted, pairs, clu = result
    pairs = list(pairs)
    self._processed.add(dict(weighted), dict(clu))
    for key, value in pairs:
      self._examples.write(key=key, value=value)
    if self._collected is not None:
      self._collected.add_pairs(rows, pairs)

  def values(self, path: pathlib.Path) -> dict[str, Any]:
    """Returns what is told of all batches; see `decode`."""
    prefix = self._program.task.decode.metrics_prefix
    described = self._described.finalize().items()
    made = {} if self._collected is None else self._collected.values(path)
    return {
      **{name: float(value) for name, (value, _) in described},
      **self._large,
      **self._decoded.result('decode_metrics', prefix),
      **self._processed.result('process_decode_metrics', prefix),
      **made,
    }


def _with_host_fields(decoded: Any, host: dict[str, np.ndarray]) -> Any:
  """Puts the fields that stayed on the host to what was decoded."""
  if not host or not isinstance(decoded, Mapping):
    return decoded
  if host_fields.NAME in decoded:
    raise errors.UserError(
      f'what the model decodes has the field {host_fields.NAME!r}, which is'
      ' what the fields of the batch are called that stayed on the host;'
      ' expected another name'
    )
  return NestedMap({**decoded, host_fields.NAME: NestedMap(host)})


def decode(
  data: base_input.BaseInput,
  *,
  task_program: program.TaskProgram,
  mdl_vars: Any,
  put: Callable,
  path: pathlib.Path,
  profile: profiling.Profile | None = None,
  stop: stopping.Stop = stopping.NEVER,
) -> dict[str, Any]:
  """Decodes a dataset.

  All processes decode; the first one has the model process what came out, and
  writes what it makes of each example. The model finds the fields that stayed
  on the host, of all processes' rows, beside what it decoded, by path in
  `host_fields`.

  Args:
    data: the input, read as for an evaluation.
    task_program: has the step.
    mdl_vars: the model's variables.
    put: sends a batch to the devices.
    path: the file for the examples' (key, value) pairs, JSON lines.
    profile: takes a profile while it lasts; None for none.
    stop: tells between batches whether to stop.

  Returns:
    By name, as values that a `MetricWriter` takes: `decode_metrics/...` of the
    model's `decode`; on the first process `process_decode_metrics/...` of its
    `process_decode_out`, and `decoder/...` that the input makes of all
    examples; clu metrics of both under the task's
    `metrics_prefix`; what layers say, means of scalars and of the rest the
    first; what the input tells of itself; and `num_decode_steps`, the number of
    batches.

  Raises:
    UserError: the dataset has no batch, or fewer than it is to have; or the
      model does not return what it should.
    Interrupted: it is to stop.
  """
  with contextlib.ExitStack() as stack:
    examples = None
    if jax.process_index() == 0:
      examples = stack.enter_context(example_outputs.example_writer(path))
    if profile is not None:
      stack.enter_context(profile)
    batches = stack.enter_context(
      contextlib.closing(evaluation.all_batches(data, put, stop))
    )
    results = _Results(data, task_program, examples)
    pending, count = None, 0
    for count, fed in enumerate(batches, 1):
      if profile is not None:
        profile.before_step(count, pending and pending[1])
      outputs = task_program.decode_step(
        mdl_vars, fed.arrays, np.uint32(count - 1)
      )
      # One batch late, so that the devices decode while the host processes.
      if pending is not None:
        results.take(*pending)
      pending = (fed, outputs)
    results.take(*pending)
  logging.info('decoded %r in %d batches', data.name, count)
  return {
    **results.values(path),
    **data.input_metrics(),
    'num_decode_steps': float(count),
  }


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
