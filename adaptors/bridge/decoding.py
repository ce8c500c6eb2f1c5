"""Decodes with a Lingvo task, in TensorFlow on the host.

XLA cannot compile Lingvo's beam search, or strings. The jitted step therefore
only returns variables and batch; TensorFlow decodes in `process_decode_out`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import numpy as np
from clu import metrics as clu_metrics
from clu import values as clu_values

from adaptors import lingvo_runtime
from adaptors.bridge.functional import structures
from adaptors.bridge.functional.functional_task import FunctionalTask
from pax_compat import base_model, errors
from pax_compat.input_core import example_rows, host_fields


class Decoder:
  """A Lingvo task that decodes.

  Attributes:
    task: the task in evaluation mode, built for CPU.
  """

  def __init__(self, params: Any, build: Callable[[Any], Any] | None = None):
    """Checks the task; it is built when first used.

    Args:
      params: of the task, with its input, for the tokenizer.
      build: builds the task by its Params; None to instantiate them.

    Raises:
      UserError: the task has no `Decode`.
    """
    self._params, self._build = params, build
    base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
    own = (
      getattr(params.cls, name) is not getattr(base, name)
      for name in ('Decode', 'DecodeWithTheta')
    )
    if not any(own):
      raise errors.UserError(
        f'{params.cls.__module__}.{params.cls.__qualname__} has neither Decode'
        ' nor DecodeWithTheta, so it cannot decode; expected a program schedule'
        ' that only evaluates it'
      )

  @functools.cached_property
  def task(self) -> FunctionalTask:
    return FunctionalTask(
      self._params, do_eval=True, xla_device='cpu', build=self._build
    )

  @functools.cached_property
  def _decode(self):
    tf = lingvo_runtime.module('tensorflow')
    return tf.function(self.task.decode, autograph=False)

  @functools.cached_property
  def _decode_found(self):
    tf = lingvo_runtime.module('tensorflow')
    return tf.function(self.task.decode_found, autograph=False)

  def decode(
    self, values: Mapping[str, Any], batch: Any, step: Any, seed: Any
  ) -> 'Decoded':
    """Decodes a batch.

    Args:
      values: of all variables, arrays by theta path.
      batch: nested dicts of arrays.
      step: [], number of steps.
      seed: [2], int32, of random numbers.

    Raises:
      UserError: the task fails to decode.
    """
    return self._decoded(
      self._decode, dict(values), structures.plain(batch), step, seed
    )

  def decode_found(self, found: Mapping[str, Any], batch: Any) -> 'Decoded':
    """Decodes a batch whose hypotheses are given.

    Args:
      found: `ids` [B, K, T], `lengths` [B, K] and `scores` [B, K].
      batch: nested dicts of arrays.

    Raises:
      UserError: the task fails to decode.
    """
    ids, lengths = found['ids'], found['lengths']
    flat = {
      'ids': ids.reshape(-1, ids.shape[-1]),
      'lengths': lengths.ravel(),
      'scores': found['scores'],
    }
    return self._decoded(self._decode_found, flat, structures.plain(batch))

  def _decoded(self, function: Callable, *given: Any) -> 'Decoded':
    """Returns the outputs of a TensorFlow function of arrays."""
    tf = lingvo_runtime.module('tensorflow')
    name = self.task.task.params.name
    try:
      outputs = tf.nest.map_structure(
        lambda x: x.numpy() if tf.is_tensor(x) else x,
        function(*tf.nest.map_structure(tf.constant, given)),
      )
    except Exception as error:
      raise errors.UserError(
        f'{name} cannot be decoded: {errors.with_location(error)}'
      ) from error
    return Decoded(self.task.task, outputs)


class Decoded:
  """The outputs of decoded batches, and Lingvo's metrics.

  Attributes:
    metrics: Lingvo's metrics by name, over all batches so far.
    pairs: the (key, value) pairs of the first batch.
  """

  def __init__(self, task: Any, outputs: Any):
    """Post-processes a first batch.

    Args:
      task: the Lingvo task.
      outputs: of its `Decode`, as arrays.
    """
    self._task, self._outputs = task, outputs
    self.metrics = task.CreateDecoderMetrics() or {}
    self._batches = [self]
    pairs = task.PostProcessDecodeOut(outputs, self.metrics) or ()
    self.pairs = list(pairs.items() if isinstance(pairs, dict) else pairs)

  def add(self, other: 'Decoded'):
    """Adds the first batch of another one, unless it is already included."""
    if not any(other is batch for batch in self._batches):
      self._batches.append(other)
      self._task.PostProcessDecodeOut(other._outputs, self.metrics)

  def as_clu(self) -> dict[str, 'DecodedMetric']:
    """Returns the metrics that may have values, which pictures do not.

    No value is read before all batches are added: an average precision keeps
    the first one that was asked for.
    """
    base = lingvo_runtime.module('lingvo.core.metrics').BaseMetric
    return {
      name: DecodedMetric(self, name)
      for name, metric in self.metrics.items()
      if getattr(type(metric), 'value', None) is not base.value
    }


@flax.struct.dataclass
class DecodedMetric(clu_metrics.Metric):
  """A metric that Lingvo aggregates over batches.

  Its value is a number; or numbers by name, if its summary has several, as an
  average precision has by class and difficulty; or nothing, if it is neither.

  Attributes:
    decoded: contains the metric.
    name: of the metric.
  """

  decoded: Decoded = flax.struct.field(pytree_node=False)
  name: str = flax.struct.field(pytree_node=False)

  def merge(self, other: 'DecodedMetric') -> 'DecodedMetric':
    """Merges another metric into this one; returns it."""
    self.decoded.add(other.decoded)
    return self

  def compute(self) -> float | dict[str, float]:
    metric = self.decoded.metrics[self.name]
    value = metric.value
    if not isinstance(value, int | float | np.number):
      return {}
    by_tag = {
      one.tag: one.simple_value
      for one in metric.Summary(self.name).value
      if one.HasField('simple_value')
    }
    prefix = f'{self.name}/'
    if self.name in by_tag or not any(t.startswith(prefix) for t in by_tag):
      return float(value)
    return {tag.removeprefix(prefix): x for tag, x in by_tag.items()}

  def compute_value(self) -> clu_values.Scalar | dict[str, clu_values.Scalar]:
    computed = self.compute()
    if isinstance(computed, dict):
      return {name: clu_values.Scalar(x) for name, x in computed.items()}
    return clu_values.Scalar(computed)


def process(
  decoder: Decoder,
  values: Mapping[str, np.ndarray],
  decode_out: Mapping[str, Any],
  step: Any,
) -> base_model.ProcessDecodeOut:
  """Decodes a batch in TensorFlow, with strings, as Lingvo does.

  Args:
    decoder: of the task.
    values: the variables by theta path.
    decode_out: of the jitted step, with `batch` and `seed`.
    step: the global step.

  Returns:
    No scalars; Lingvo's (key, value) pairs; and Lingvo's metrics.
  """
  batch = with_host_fields(decode_out)
  rows = batch.pop(example_rows.WEIGHTS, None)
  decoded = decoder.decode(
    values, without_padding_rows(batch, rows), step, decode_out['seed']
  )
  return {}, decoded.pairs, decoded.as_clu()


def process_found(
  decoder: Decoder, decode_out: Mapping[str, Any]
) -> base_model.ProcessDecodeOut:
  """Computes the strings and metrics of a batch that was searched in JAX.

  Args:
    decoder: of the task.
    decode_out: of the jitted step, with `batch` and `found`; see
      `Decoder.decode_found`.

  Returns:
    As `process`.
  """
  batch = with_host_fields(decode_out)
  rows = batch.pop(example_rows.WEIGHTS, None)
  given = without_padding_rows(
    {'batch': batch, 'found': dict(decode_out['found'])}, rows
  )
  decoded = decoder.decode_found(given['found'], given['batch'])
  return {}, decoded.pairs, decoded.as_clu()


def without_padding_rows(batch: Any, weights: np.ndarray | None) -> Any:
  """Returns a batch without its padding rows.

  Args:
    batch: nested dicts of arrays [B, ...].
    weights: [B], 0 for padding rows; None if there are none.
  """
  if weights is None or np.all(weights):
    return batch
  kept = np.flatnonzero(weights)

  def select(x):
    has_rows = np.ndim(x) and len(x) == len(weights)
    return x[kept] if has_rows else x

  return {
    k: without_padding_rows(v, weights) if isinstance(v, dict) else select(v)
    for k, v in batch.items()
  }


def with_host_fields(decode_out: Any) -> dict[str, Any]:
  """Returns the `batch` of a model's `decode`, with its host fields.

  Args:
    decode_out: has the fields by dotted path, if there are any.
  """
  return _with_fields(decode_out['batch'], decode_out.get(host_fields.NAME, {}))


def _with_fields(
  batch: Any, fields: Mapping[str, np.ndarray]
) -> dict[str, Any]:
  batch = dict(batch)
  for path, x in fields.items():
    *parents, name = path.split('.')
    node = batch
    for parent in parents:
      node[parent] = node = dict(node.get(parent, {}))
    node[name] = x
  return batch
