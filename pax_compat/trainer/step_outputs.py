"""What a compiled step tells of itself, beside the next state."""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from clu import metrics as clu_metrics

from pax_compat import errors, learners
from pax_compat.layer_core import summaries
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.metrics import histograms

# Images of one name that a summary has at most.
_MAX_IMAGES = 8


class LargeSummary(flax.struct.PyTreeNode):
  """A summary that is no scalar, as it leaves the devices.

  Attributes:
    value: a `Histogram`; images [N, H, W, C]; or UTF-8 bytes, uint8 [N].
    summary_type: what it is.
  """

  value: Any
  summary_type: SummaryType = flax.struct.field(pytree_node=False)


class StepOutputs(flax.struct.PyTreeNode):
  """What a step tells; its arrays are on all devices unless said.

  Attributes:
    weighted: the model's metrics, {name: (value, weight)}.
    described: other scalars by name: of layers, the learner, the trainer.
    clu: the model's clu metrics by name.
    norms: norms of weights and of what changes them, by name.
    large: what layers say that is no scalar, by name.
    is_due: [], bool, whether `norms` and `large` were worked out; else they are
      all zeros.
    per_example: what the model says of each example, by name, [B, ...], split
      as batches are; empty where it was not asked for.
  """

  weighted: dict[str, tuple[Any, Any]]
  described: dict[str, Any]
  clu: dict[str, clu_metrics.Metric]
  norms: dict[str, Any]
  large: dict[str, LargeSummary]
  is_due: Any
  per_example: dict[str, Any]

  def __getitem__(self, name: str) -> Any:
    """Returns a metric's value, or another scalar, by name."""
    if name in self.weighted:
      return self.weighted[name][0]
    return self.described[name] if name in self.described else self.norms[name]

  def scalar_names(self) -> list[str]:
    """Returns the names of all scalars that it can be asked for now."""
    weighted = [k for k, (value, _) in self.weighted.items() if not value.ndim]
    return [*weighted, *self.described, *(self.norms if self.is_due else ())]


class DecodeOutputs(flax.struct.PyTreeNode):
  """What a decoding step tells.

  Attributes:
    weighted: the metrics of the model's `decode`, {name: (value, weight)}.
    decoded: what it makes of each example, arrays [B, ...].
    clu: its clu metrics by name.
    described: as of `StepOutputs`, of layers alone.
    large: as of `StepOutputs`.
    is_due: [], bool, whether `large` was worked out; else it is all zeros.
  """

  weighted: dict[str, tuple[Any, Any]]
  decoded: Any
  clu: dict[str, clu_metrics.Metric]
  described: dict[str, Any]
  large: dict[str, LargeSummary]
  is_due: Any


def split_metrics(
  metrics: Mapping[str, Any],
) -> tuple[dict[str, tuple[Any, Any]], dict[str, clu_metrics.Metric]]:
  """Returns a model's metrics: those with weights, in float32, and clu's.

  Raises:
    UserError: one is neither.
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


def split_summaries(
  collection: Mapping[str, Any], verbosity: int
) -> tuple[dict[str, jax.Array], dict[str, summaries.Summary]]:
  """Returns what layers said: scalars by name, and the rest.

  Repeated layers stack what they say, which makes a scalar `name/0`, `name/1`
  and so on.

  Args:
    collection: the collection `summaries` after a step.
    verbosity: what has a higher one is left out.
  """
  scalars, others = {}, {}
  found = learners.by_path(collection, is_leaf=summaries.is_summary)
  for name, summary in found.items():
    if summary.verbosity > verbosity:
      continue
    if summary.summary_type is not SummaryType.SCALAR:
      others[name] = summary
    elif jnp.ndim(summary.value) == 0:
      scalars[name] = jnp.asarray(summary.value, jnp.float32)
    else:
      values = jnp.ravel(summary.value).astype(jnp.float32)
      scalars |= {f'{name}/{i}': value for i, value in enumerate(values)}
  return scalars, others


def large_summaries(
  found: Mapping[str, summaries.Summary], due: jax.Array
) -> dict[str, LargeSummary]:
  """Returns what is kept of summaries that are no scalars.

  Args:
    found: the summaries by name.
    due: [], whether they are wanted. If not, nothing is worked out, and all
      values are 0.
  """
  if not found:
    return {}

  def kept(values):
    return {name: _kept(value, found[name]) for name, value in values.items()}

  values = {name: summary.value for name, summary in found.items()}
  zeros = jax.tree.map(
    lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(kept, values)
  )
  values = jax.lax.cond(due, kept, lambda _: zeros, values)
  return {
    name: LargeSummary(value, found[name].summary_type)
    for name, value in values.items()
  }


def _kept(value: jax.Array, summary: summaries.Summary) -> Any:
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
