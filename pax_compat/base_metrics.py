"""Metrics of batches, put together to those of a dataset; the loss among them.

A batch's metrics are `{name: (value, weight)}`. The trainer computes them in
one step over the batches of all devices and processes, so what is left to do is
to put together those of several batches, which a `BaseMetrics` does on the
host. A metric of weight 0 says nothing, whatever its value: what only fills a
batch does not count.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from clu import metrics as clu_metrics

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config import REQUIRED, Config

# Metrics of a batch or a dataset: {name: (value, weight)}.
WeightedScalars = Mapping[str, tuple[Any, Any]]

# What a sum of several losses is called.
TOTAL_LOSS = 'total_loss'


class BaseMetrics(config_lib.Configurable):
  """Puts the metrics of several batches together."""

  def names(self) -> set[str]:
    """Returns the names of metrics that the model must have; none by default.

    A batch without them (such as one that is decoded) is stored all the same.
    """
    return set()

  def store(self, batch_metrics: WeightedScalars):
    """Takes the metrics of one batch.

    Args:
      batch_metrics: {name: (value, weight)}, where a value may be an array and
        a weight is a number.
    """
    raise NotImplementedError(type(self).__name__)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    """Returns the metrics of all batches so far, and forgets them.

    Returns:
      {name: (value, weight)}; what never had any weight is left out.
    """
    raise NotImplementedError(type(self).__name__)


class _Chosen(BaseMetrics):
  """Puts together chosen metrics, each by one function of its own.

  Attributes:
    metric_keys: names of the metrics; None, the default, for all.
  """

  metric_keys: Sequence[str] | None = None

  def __post_init__(self):
    self._kept: dict[str, tuple[Any, float]] = {}

  def names(self) -> set[str]:
    return set(self.metric_keys or ())

  def store(self, batch_metrics: WeightedScalars):
    for name, (value, weight) in batch_metrics.items():
      if self.metric_keys is not None and name not in self.metric_keys:
        continue
      weight = float(weight)
      if weight:
        value = np.asarray(value, np.float64)
        self._kept[name] = self._put_together(
          self._kept.get(name), value, weight
        )

  def _put_together(
    self, kept: tuple[Any, float] | None, value: np.ndarray, weight: float
  ) -> tuple[Any, float]:
    raise NotImplementedError(type(self).__name__)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    kept, self._kept = self._kept, {}
    return kept


class MeanMetrics(_Chosen):
  """Means, weighted by the metrics' weights, in double precision."""

  def _put_together(self, kept, value, weight):
    total, total_weight = kept or (0.0, 0.0)
    return total + value * weight, total_weight + weight

  def finalize(self):
    return {k: (v / w, w) for k, (v, w) in super().finalize().items()}


class MaxMetrics(_Chosen):
  """The largest values."""

  def _put_together(self, kept, value, weight):
    if kept is None:
      return value, weight
    return np.maximum(kept[0], value), kept[1] + weight


class HistogramMetrics(BaseMetrics):
  """How evenly items are spread over classes.

  Attributes:
    histogram_key: name of the metric whose value counts the items of each
      class: [C], or [G, C] for G groups that are spread on their own.

  The results are `<key>_pplx`, the number of classes over which items spread
  evenly would be as uncertain (the exponential of the entropy), a mean over the
  groups; `<key>_entropy`, its logarithm; and `<key>_coverage`, the part of the
  classes that have an item.
  """

  histogram_key: str = REQUIRED

  def __post_init__(self):
    self._clear()

  def _clear(self):
    self._counts: Any = None
    self._weight = 0.0

  def names(self) -> set[str]:
    return {self.histogram_key}

  def store(self, batch_metrics: WeightedScalars):
    counts, weight = batch_metrics.get(self.histogram_key, (0.0, 0.0))
    if float(weight):
      counts = np.atleast_2d(np.asarray(counts, np.float64))
      self._counts = counts + (0 if self._counts is None else self._counts)
      self._weight += float(weight)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    counts, weight = self._counts, self._weight
    self._clear()
    if counts is None:
      return {}
    totals = counts.sum(axis=-1, keepdims=True)
    parts = counts / np.where(totals > 0, totals, 1.0)
    logs = np.log(np.where(parts > 0, parts, 1.0))
    perplexity = float(np.exp(-(parts * logs).sum(axis=-1)).mean())
    return {
      f'{self.histogram_key}_pplx': (perplexity, weight),
      f'{self.histogram_key}_entropy': (math.log(perplexity), weight),
      f'{self.histogram_key}_coverage': (float((counts > 0).mean()), weight),
    }


class CompositeMetrics(BaseMetrics):
  """Several ways to put metrics together, side by side.

  Attributes:
    metrics_p: their configs. Of equal names in their results the last counts.
  """

  metrics_p: Sequence[Config] = REQUIRED

  def __post_init__(self):
    self._parts = [config.Instantiate() for config in self.metrics_p]

  def names(self) -> set[str]:
    return {name for part in self._parts for name in part.names()}

  def store(self, batch_metrics: WeightedScalars):
    for part in self._parts:
      part.store(batch_metrics)

  def finalize(self) -> dict[str, tuple[Any, float]]:
    return {k: v for part in self._parts for k, v in part.finalize().items()}


class LossAggregator(config_lib.Configurable):
  """Says which of the model's metrics is the loss.

  Attributes:
    loss_key: name of the metric.
  """

  loss_key: str | None = None

  def aggregate(
    self, batch_metrics: Mapping[str, Any]
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the loss of a batch, or of a dataset.

    Args:
      batch_metrics: the model's metrics, `(value, weight)` or
        `WeightedScalarCluMetric`.

    Returns:
      The loss that the learner minimises, the one that is reported, and its
      weight, None where it has none of its own.

    Raises:
      UserError: the model has no such metric.
    """
    loss, weight = self._loss_of(self.loss_key, batch_metrics)
    return loss, loss, weight

  @property
  def loss_name(self) -> str:
    """What the loss is called in reports."""
    return self.loss_key or TOTAL_LOSS

  def _loss_of(self, key: str | None, metrics: Mapping[str, Any]):
    if key not in metrics:
      raise errors.UserError(
        f'the model has no metric {key!r}, which is to be the loss'
        + errors.did_you_mean(str(key), metrics)
      )
    metric = metrics[key]
    if isinstance(metric, WeightedScalarCluMetric):
      return metric.compute(), metric.weight
    if isinstance(metric, clu_metrics.Metric):
      raise errors.UserError(
        f'the metric {key!r} is a {type(metric).__name__}, which cannot be the'
        ' loss; expected (value, weight) or a WeightedScalarCluMetric'
      )
    return metric


class MultiLossAggregator(LossAggregator):
  """Makes the loss of several metrics: the sum of them.

  It is reported as `total_loss`.

  Attributes:
    loss_keys: names of the metrics.
    loss_weights: what each of them is multiplied by, by name or in their order;
      None, the default, for 1.
    loss_key: has no meaning here.
  """

  loss_keys: Sequence[str] = REQUIRED
  loss_weights: Mapping[str, float] | Sequence[float] | None = None

  def __post_init__(self):
    if self.loss_key is not None:
      raise errors.UserError(
        f'MultiLossAggregator.loss_key is {self.loss_key!r}; expected loss_keys'
        ' instead'
      )
    given = self.loss_weights
    if given is None:
      given = {key: 1.0 for key in self.loss_keys}
    if not isinstance(given, Mapping) and len(given) == len(self.loss_keys):
      given = dict(zip(self.loss_keys, given, strict=True))
    if not isinstance(given, Mapping) or set(given) != set(self.loss_keys):
      raise errors.UserError(
        f'MultiLossAggregator.loss_weights is {self.loss_weights!r}; expected a'
        f' number for each of the loss_keys {list(self.loss_keys)}'
      )
    self._factors = dict(given)

  def aggregate(self, batch_metrics: Mapping[str, Any]):
    total = 0.0
    for key, factor in self._factors.items():
      loss, _ = self._loss_of(key, batch_metrics)
      total = total + factor * loss
    return total, total, None


@flax.struct.dataclass
class WeightedScalarCluMetric(clu_metrics.Metric):
  """A weighted mean as a clu metric; make one by `create`.

  Attributes:
    weighted_value: [], sum of values times weights.
    weight: [], sum of weights.
  """

  weighted_value: jax.Array
  weight: jax.Array

  @classmethod
  def create(
    cls, value: jax.Array, weight: jax.Array
  ) -> 'WeightedScalarCluMetric':
    """Returns the mean of values of any shape; those of weight 0 are unseen."""
    weight = jnp.broadcast_to(jnp.asarray(weight, jnp.float32), value.shape)
    seen = jnp.where(weight == 0, 0.0, value)
    return cls(weighted_value=jnp.sum(seen * weight), weight=jnp.sum(weight))

  @classmethod
  def empty(cls) -> 'WeightedScalarCluMetric':
    return cls(weighted_value=jnp.zeros([]), weight=jnp.zeros([]))

  def merge(
    self, other: 'WeightedScalarCluMetric'
  ) -> 'WeightedScalarCluMetric':
    return type(self)(
      weighted_value=self.weighted_value + other.weighted_value,
      weight=self.weight + other.weight,
    )

  def compute(self) -> jax.Array:
    """Returns the mean [], NaN where nothing has a weight."""
    return self.weighted_value / self.weight
