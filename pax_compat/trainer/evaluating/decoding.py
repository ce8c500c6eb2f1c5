"""Decoding: a model's outputs on a dataset, post-processed on the host."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from clu import values as clu_values

from pax_compat import base_input, errors
from pax_compat import config as config_lib
from pax_compat.input_core import host_fields
from pax_compat.metrics import example_outputs
from pax_compat.nested_map import NestedMap
from pax_compat.processes import joint_failure, watchdog
from pax_compat.trainer import profiling, program, stopping
from pax_compat.trainer.evaluating import (
  batch_results,
  evaluation,
  example_metrics,
  gathering,
)
from pax_compat.trainer.feeding.pipeline import DeviceBatch
from pax_compat.trainer.step_outputs import DecodeOutputs


class _DecodeResults:
  """Results of the batches of a decoding.

  On the first process, the model also post-processes the decoded outputs.
  """

  def __init__(
    self,
    data: base_input.BaseInput,
    task_program: program.TaskProgram,
    examples: example_outputs.ExampleWriter | None,
  ):
    """Starts without a batch.

    Args:
      data: where the batches come from.
      task_program: has the model.
      examples: takes the post-processed outputs; None on processes that do not
        post-process.
    """
    self._data = data
    self._program = task_program
    self._example_metrics = example_metrics.ExampleMetrics(data, 'decode')
    self._examples = examples
    self._decoded = batch_results.TaskMetrics(task_program)
    self._processed = batch_results.TaskMetrics(task_program)
    self._summaries = batch_results.Summaries()
    self._at_end = task_program.model.after_decoding()
    self._pairs = []

  def take(self, batch: DeviceBatch, outputs: DecodeOutputs):
    """Takes a batch and its outputs, which are on the devices."""
    rows = None
    if batch.host or self._example_metrics.enabled:
      rows = gathering.examples(batch, self._program.batch_sharding)
    outputs = jax.device_get(outputs)
    self._decoded.add(outputs.weighted, outputs.clu)
    self._summaries.add(outputs)
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
    if self._at_end is not None:
      self._pairs.extend(pairs)
    if self._example_metrics.enabled:
      self._example_metrics.add_pairs(rows, pairs)

  def finish(self, path: pathlib.Path):
    """Calls the model's `after_decoding` on the first process."""
    if self._at_end is not None and self._examples is not None:
      self._at_end(path.with_suffix(''), self._pairs)

  def values(self, path: pathlib.Path) -> dict[str, Any]:
    """Returns everything by name; see `decode`."""
    of_examples = self._example_metrics.values(path)
    return {
      **self._summaries.result(),
      **self._named(self._decoded, 'decode_metrics'),
      **self._named(self._processed, 'process_decode_metrics'),
      **of_examples,
    }

  def _named(
    self, metrics: batch_results.TaskMetrics, prefix: str
  ) -> dict[str, Any]:
    scalars = {f'{prefix}/{k}': v for k, v in metrics.scalars().items()}
    clu_prefix = self._program.task.decode.metrics_prefix
    clu = {f'{clu_prefix}{k}': v for k, v in metrics.clu_values().items()}
    return scalars | clu


def _with_host_fields(decoded: Any, host: dict[str, np.ndarray]) -> Any:
  """Adds the fields that stayed on the host to the decoded outputs."""
  if not host or not isinstance(decoded, Mapping):
    return decoded
  if host_fields.NAME in decoded:
    raise errors.UserError(
      f'the decoded outputs have the field {host_fields.NAME!r}, which is the'
      ' name for the fields of the batch that stayed on the host; expected'
      ' another name'
    )
  return NestedMap({**decoded, host_fields.NAME: NestedMap(host)})


def check_settings(config: config_lib.Config):
  """Raises a UserError if a model cannot decode with its settings.

  A run decodes only after some steps, which would be lost.

  Args:
    config: of the model.
  """
  model = config.Instantiate()
  if hasattr(model, 'check_decoder'):
    # A layer may create variables when it is set up.
    jax.eval_shape(
      lambda: model.init(jax.random.key(0), method='check_decoder')
    )


def decode(
  data: base_input.BaseInput,
  *,
  task_program: program.TaskProgram,
  mdl_vars: Any,
  path: pathlib.Path,
  profile: profiling.Profile | None = None,
  stop: stopping.Stop = stopping.NEVER,
) -> dict[str, Any]:
  """Decodes a dataset.

  All processes decode; on the first one the model post-processes the outputs,
  which are written for each example. The fields that stayed on the host, of all
  processes' rows, are added to the decoded outputs, by path in `host_fields`.

  Args:
    data: the input, read as for an evaluation.
    task_program: has the step.
    mdl_vars: the model's variables.
    path: the file for the examples' (key, value) pairs, JSON lines.
    profile: takes a profile meanwhile; None for none.
    stop: called between batches; returns whether to stop.

  Returns:
    By name, as values that a `MetricWriter` takes: `decode_metrics/...` of the
    model's `decode`; on the first process the first lines of the file as the
    text `examples`, `process_decode_metrics/...` of its `process_decode_out`,
    and `decoder/...` that the input computes of all examples; clu metrics of
    both under the task's `metrics_prefix`; summaries of layers, means of
    scalars and the first of the others; the input's own metrics; and
    `num_decode_steps`, the number of batches.

  Raises:
    UserError: the dataset has no batch, or fewer than `eval_loop_num_batches`;
      or a method of the model returns anything else than it should.
    Interrupted: the run is to stop.
  """
  work = f'the decoding of {data.name!r}'
  failure = joint_failure.JointFailure(work)
  with contextlib.ExitStack() as stack:
    examples = None
    with failure.held():
      if jax.process_index() == 0:
        examples = stack.enter_context(example_outputs.example_writer(path))
      if profile is not None:
        stack.enter_context(profile)
    results = _DecodeResults(data, task_program, examples)
    batches = evaluation.all_batches(data, task_program.put, stop, failure)
    count = batch_results.one_late(
      stack.enter_context(contextlib.closing(batches)),
      lambda n, batch: task_program.decode_step(
        mdl_vars, batch.arrays, np.uint32(n)
      ),
      results.take,
      failure=failure,
      **({'before': profile.before_step} if profile is not None else {}),
    )

  def values():
    results.finish(path)
    return results.values(path) | data.input_metrics()

  with watchdog.current().longer(f'computing the metrics of {data.name!r}'):
    found = joint_failure.together(values, work)
  logging.info('decoded %r in %d batches', data.name, count)
  shown = {}
  if examples is not None and examples.first:
    text = '\n\n'.join(f'    {line}' for line in examples.first)
    shown['examples'] = clu_values.Text(text)
  return {**found, **shown, 'num_decode_steps': float(count)}


@contextlib.contextmanager
def _on_the_host() -> Iterator[None]:
  """Within it, JAX computes on the CPU, if it has that backend."""
  try:
    device = jax.local_devices(backend='cpu')[0]
  except RuntimeError:  # JAX is configured for accelerators only.
    yield
    return
  with jax.default_device(device):
    yield
