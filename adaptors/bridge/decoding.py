"""Decodes with a Lingvo task, by TensorFlow on the host.

What Lingvo's tasks decode with, such as its beam search, XLA does not compile,
and they make texts. So a step only hands the variables and the batch on, and
TensorFlow decodes in `process_decode_out`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax.struct
import numpy as np
from absl import logging
from clu import metrics as clu_metrics
from clu import values as clu_values

from adaptors import lingvo_runtime
from adaptors.bridge.functional import structures
from adaptors.bridge.functional.functional_task import FunctionalTask
from pax_compat import errors


class Decoder:
  """A Lingvo task that decodes.

  Attributes:
    task: the task as it is evaluated, built for a CPU.
  """

  def __init__(self, params: Any):
    """Builds nothing yet.

    Args:
      params: of the task, with its input, whose tokenizer makes texts.

    Raises:
      UserError: the task has no `Decode`.
    """
    self._params = params
    base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
    own = (
      getattr(params.cls, name) is not getattr(base, name)
      for name in ('Decode', 'DecodeWithTheta')
    )
    if not any(own):
      raise errors.UserError(
        f'{params.cls.__module__}.{params.cls.__qualname__} has neither Decode'
        ' nor DecodeWithTheta, so that there is nothing to decode with;'
        ' expected a program schedule that only evaluates it'
      )
    if params.cls.DecodeFinalize is not base.DecodeFinalize:
      logging.warning(
        '%s.%s overrides DecodeFinalize, which is not called: what it makes of'
        ' examples is written as JSON lines',
        params.cls.__module__,
        params.cls.__qualname__,
      )

  @functools.cached_property
  def task(self) -> FunctionalTask:
    return FunctionalTask(self._params, do_eval=True, xla_device='cpu')

  @functools.cached_property
  def _decode(self):
    tf = lingvo_runtime.module('tensorflow')
    return tf.function(self.task.decode, autograph=False)

  def decode(
    self, values: Mapping[str, Any], batch: Any, step: Any, seed: Any
  ) -> 'Decoded':
    """Decodes a batch.

    Args:
      values: of all variables, arrays by theta path.
      batch: nested dicts of arrays.
      step: [], how many steps were made.
      seed: [2], int32, of random numbers.

    Raises:
      UserError: the task fails to.
    """
    tf = lingvo_runtime.module('tensorflow')
    given = tf.nest.map_structure(
      tf.constant, (dict(values), structures.plain(batch), step, seed)
    )
    name = self.task.task.params.name
    try:
      outputs = tf.nest.map_structure(
        lambda x: x.numpy() if tf.is_tensor(x) else x, self._decode(*given)
      )
    except Exception as error:
      raise errors.UserError(
        f'{name} cannot be decoded: {type(error).__name__}: {error}'
        f' ({errors.location_of(error)})'
      ) from error
    return Decoded(self.task.task, outputs)


class Decoded:
  """What came out of the batches of a decoding, and Lingvo's metrics of it.

  Attributes:
    metrics: Lingvo's, by name, of all batches so far.
    pairs: the (key, value) pairs of the first batch.
  """

  def __init__(self, task: Any, outputs: Any):
    """Begins with a batch.

    Args:
      task: the Lingvo task.
      outputs: what its `Decode` has returned, as arrays.
    """
    self._task, self._outputs = task, outputs
    self.metrics = task.CreateDecoderMetrics() or {}
    self._batches = [self]
    pairs = task.PostProcessDecodeOut(outputs, self.metrics) or ()
    self.pairs = list(pairs.items() if isinstance(pairs, dict) else pairs)

  def take(self, other: 'Decoded'):
    """Takes the first batch of another one, unless it has it already."""
    if not any(other is batch for batch in self._batches):
      self._batches.append(other)
      self._task.PostProcessDecodeOut(other._outputs, self.metrics)

  def as_clu(self) -> dict[str, 'DecodedMetric']:
    """Returns those metrics that are numbers."""
    return {
      name: DecodedMetric(self, name)
      for name, metric in self.metrics.items()
      if isinstance(metric.value, int | float | np.number)
    }


@flax.struct.dataclass
class DecodedMetric(clu_metrics.Metric):
  """A metric of Lingvo's, which puts batches together in its own way.

  Attributes:
    decoded: has the metric, with others.
    name: which of them it is.
  """

  decoded: Decoded = flax.struct.field(pytree_node=False)
  name: str = flax.struct.field(pytree_node=False)

  def merge(self, other: 'DecodedMetric') -> 'DecodedMetric':
    """Returns this metric, of the batch of the other one, too."""
    self.decoded.take(other.decoded)
    return self

  def compute(self) -> float:
    return float(self.decoded.metrics[self.name].value)

  def compute_value(self) -> clu_values.Scalar:
    return clu_values.Scalar(self.compute())


def examples_of(batch: Any, weights: np.ndarray | None) -> Any:
  """Returns a batch without the rows that only fill it up.

  Args:
    batch: nested dicts of arrays [B, ...].
    weights: [B], 0 for such rows; None where there are none.
  """
  if weights is None or np.all(weights):
    return batch
  kept = np.flatnonzero(weights)

  def cut(x):
    whole = np.ndim(x) and len(x) == len(weights)
    return x[kept] if whole else x

  return {
    k: examples_of(v, weights) if isinstance(v, dict) else cut(v)
    for k, v in batch.items()
  }
