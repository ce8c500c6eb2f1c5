"""Outputs of a compiled step, in addition to the next state."""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from clu import metrics as clu_metrics

from pax_compat import base_metrics, errors, learners
from pax_compat.layer_core import summaries
from pax_compat.layer_core.losses import aux_losses
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.metrics import histograms

# The largest number of images in a summary.
_MAX_IMAGES = 8


# What a train step returns as `StepOutputs.watched`.
WATCHED = ('loss', 'gradient norm', 'learning rate')


class NonScalarSummary(flax.struct.PyTreeNode):
  """A summary that is not a scalar, as a step returns it.

  Attributes:
    value: a `Histogram`; images [N, H, W, C]; or UTF-8 bytes, uint8 [N].
    summary_type: its type.
  """

  value: Any
  summary_type: SummaryType = flax.struct.field(pytree_node=False)


class StepOutputs(flax.struct.PyTreeNode):
  """Outputs of a train or eval step, replicated unless stated otherwise.

  Attributes:
    weighted: the model's metrics, {name: (value, weight)}.
    scalars: other scalars by name: of layers, the learner, the trainer.
    clu: the model's clu metrics by name.
    norms: norms of weights, gradients and updates, by name.
    non_scalar_summaries: of layers, by name.
    has_summaries: [], bool, whether `norms` and `non_scalar_summaries` were
      computed; else they are all zeros.
    per_example: per-example outputs of the model, by name, [B, ...], split as
      batches are; empty unless the step was built with them.
    watched: numbers of a train step [3], in the order of `WATCHED`; 0 if they
      are not known. None for other steps.
  """

  weighted: dict[str, tuple[Any, Any]]
  scalars: dict[str, Any]
  clu: dict[str, clu_metrics.Metric]
  norms: dict[str, Any]
  non_scalar_summaries: dict[str, NonScalarSummary]
  has_summaries: Any
  per_example: dict[str, Any]
  watched: Any = None

  def __getitem__(self, name: str) -> Any:
    """Returns a metric's value, or another scalar, by name."""
    if name in self.weighted:
      return self.weighted[name][0]
    return self.scalars[name] if name in self.scalars else self.norms[name]

  def scalar_names(self) -> list[str]:
    """Returns the names of all scalars that were computed."""
    weighted = [k for k, (value, _) in self.weighted.items() if not value.ndim]
    norms = self.norms if self.has_summaries else ()
    return [*weighted, *self.scalars, *norms]


class DecodeOutputs(flax.struct.PyTreeNode):
  """Outputs of a decoding step.

  Attributes:
    weighted: the metrics of the model's `decode`, {name: (value, weight)}.
    decoded: the decoded outputs, arrays [B, ...].
    clu: its clu metrics by name.
    scalars: scalar summaries of layers, by name.
    non_scalar_summaries: as of `StepOutputs`.
    has_summaries: [], bool, whether `non_scalar_summaries` was computed; else
      it is all zeros.
  """

  weighted: dict[str, tuple[Any, Any]]
  decoded: Any
  clu: dict[str, clu_metrics.Metric]
  scalars: dict[str, Any]
  non_scalar_summaries: dict[str, NonScalarSummary]
  has_summaries: Any


def watched_numbers(
  loss: jax.Array, scalars: Mapping[str, jax.Array]
) -> jax.Array:
  """Returns the numbers that are watched at each step, float32 [3].

  Args:
    loss: the loss [].
    scalars: metrics of the learner by name. Of several the largest counts.
  """

  def largest(ending):
    found = [x for name, x in scalars.items() if name.endswith(ending)]
    found = [jnp.asarray(x, jnp.float32) for x in found if not jnp.ndim(x)]
    return jnp.max(jnp.stack(found)) if found else jnp.zeros([])

  numbers = loss, largest('learning/raw_grad_norm'), largest('learning/lr')
  return jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])


def split_metrics(
  metrics: Mapping[str, Any],
) -> tuple[dict[str, tuple[Any, Any]], dict[str, clu_metrics.Metric]]:
  """Returns a model's weighted metrics, in float32, and its clu metrics.

  Raises:
    UserError: a metric is neither.
  """
  weighted, clu = {}, {}
  for name, metric in metrics.items():
    if isinstance(metric, clu_metrics.Metric):
      clu[name] = metric
    elif isinstance(metric, tuple | list) and len(metric) == 2:
      value, weight = (jnp.asarray(x, jnp.float32) for x in metric)
      weighted[name] = (value, weight)
    else:
      raise errors.UserError(
        f'the metric {name!r} of the model is a {type(metric).__name__};'
        ' expected (value, weight) or a clu metric'
      )
  return weighted, clu


def with_loss(
  aggregator: base_metrics.LossAggregator,
  metrics: Mapping[str, Any],
  losses: Any,
) -> tuple[
  jax.Array,
  dict[str, tuple[jax.Array, jax.Array]],
  dict[str, clu_metrics.Metric],
]:
  """Returns the loss to minimise, weighted metrics with the loss, clu metrics.

  Args:
    aggregator: of the task.
    metrics: the model's.
    losses: the collection of auxiliary losses. Those that no layer has read are
      added to the loss.

  Raises:
    UserError: the loss is unknown, or is not one number.
  """
  weighted, clu = split_metrics(metrics)
  loss, reported, weight = aggregator.aggregate({**weighted, **clu})
  name = aggregator.loss_name
  if jnp.ndim(loss):
    raise errors.UserError(
      f'the loss {name!r} has the shape {list(loss.shape)}; expected one'
      ' number, such as the mean over the examples'
    )
  if aggregator.loss_key is None and name in metrics:
    raise errors.UserError(
      f'the model has a metric {name!r}, which is the name of the sum of'
      ' losses; expected another name'
    )
  weight = jnp.ones([]) if weight is None else weight
  unread = aux_losses.unread(losses)
  if jax.tree.leaves(unread):
    aux_loss = aux_losses.total(unread).value
    of_model, its_weight = weighted.get('aux_loss', (0.0, weight))
    weighted['aux_loss'] = (of_model + aux_loss, its_weight)
    loss, reported = loss + aux_loss, reported + aux_loss
  weighted[name] = (jnp.asarray(reported, jnp.float32), weight)
  return loss, weighted, clu


def split_summaries(
  collection: Mapping[str, Any], verbosity: int
) -> tuple[dict[str, jax.Array], dict[str, summaries.Summary]]:
  """Returns the scalar summaries of layers, and the others, by name.

  Repeated layers stack their scalars, which are named `name/0`, `name/1` and so
  on.

  Args:
    collection: the collection `summaries` after a step.
    verbosity: summaries with a higher verbosity are left out.
  """
  scalars, others = {}, {}
  for key, summary in summaries_by_key(collection, verbosity).items():
    name = summaries.name_of(key, summary.summary_type)
    if summary.summary_type is not SummaryType.SCALAR:
      others[name] = summary
    elif jnp.ndim(summary.value) == 0:
      scalars[name] = jnp.asarray(summary.value, jnp.float32)
    else:
      values = jnp.ravel(summary.value).astype(jnp.float32)
      scalars |= {f'{name}/{i}': value for i, value in enumerate(values)}
  return scalars, others


def summaries_by_key(
  collection: Mapping[str, Any], verbosity: int
) -> dict[str, summaries.Summary]:
  """Returns the summaries of layers by key; see `split_summaries`."""
  found = learners.by_path(
    summaries.typed(collection), is_leaf=summaries.is_summary
  )
  return {k: x for k, x in found.items() if x.verbosity <= verbosity}


def non_scalar_summaries(
  found: Mapping[str, summaries.Summary], enabled: jax.Array
) -> dict[str, NonScalarSummary]:
  """Returns the non-scalar summaries as outputs of a step.

  Args:
    found: the summaries by name.
    enabled: [], bool. If it is False, nothing is computed, and all values are
      0.
  """
  if not found:
    return {}

  def converted(values):
    return {
      name: _converted(value, found[name]) for name, value in values.items()
    }

  values = {name: summary.value for name, summary in found.items()}
  zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(converted, values))
  values = jax.lax.cond(enabled, converted, lambda _: zeros, values)
  return {
    name: NonScalarSummary(value, found[name].summary_type)
    for name, value in values.items()
  }


def _converted(value: jax.Array, summary: summaries.Summary) -> Any:
  if summary.summary_type is SummaryType.HISTOGRAM:
    return histograms.histogram(value)
  if summary.summary_type is SummaryType.IMAGE:
    if value.ndim < 3:
      raise errors.UserError(
        f'an image summary has the shape {list(value.shape)}; expected'
        ' [height, width, channels], or several of them'
      )
    return value.reshape(-1, *value.shape[-3:])[:_MAX_IMAGES]
  return value
