"""What a pipeline's stages tell of themselves, without that of bubbles.

Shapes: L iterations of the loop, S stages, M micro-batches, R ways through the
stages. What is told comes as arrays [L, S, ...].
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.layer_core.summaries import Summary, SummaryType, is_summary
from pax_compat.layers.pipelines.pipeline_schedule import Schedule


def mean_losses(losses: Any, schedule: Schedule) -> Any:
  """Returns auxiliary losses: means over micro-batches, summed over the rest.

  Args:
    losses: arrays [L, S].
    schedule: of the pipeline.
  """
  return jax.tree.map(
    lambda x: jnp.sum(jnp.mean(_of_items(x, schedule), axis=2)), losses
  )


def summaries_of_layers(
  summaries: Any, schedule: Schedule, *, unpack: bool
) -> dict[str, Any]:
  """Returns the summaries of all layers.

  Args:
    summaries: nested dicts of summaries, of values [L, S, ...].
    schedule: of the pipeline.
    unpack: whether each layer has summaries of its own, with its number at the
      end of their names.
  """
  told = {}
  for name, value in summaries.items():
    if not is_summary(value):
      told[name] = summaries_of_layers(value, schedule, unpack=unpack)
      continue
    summary = _over_microbatches(value, schedule)
    if not unpack:
      told[name] = summary
      continue
    for i, of_layer in enumerate(summary.value):
      told[f'{name}_{i}'] = summary.replace(value=of_layer)
  return told


def _over_microbatches(summary: Summary, schedule: Schedule) -> Summary:
  """Returns the summary of all micro-batches, with values by layer."""
  values = _of_items(summary.value, schedule)
  values = values.reshape(-1, *values.shape[2:])  # [R S, M, ...]
  kind = summary.summary_type
  if kind is SummaryType.SCALAR:
    values = jnp.mean(values, axis=1)
  elif kind is SummaryType.TEXT:
    values = values[:, 0]
  elif values.ndim > 2:
    values = values.reshape(len(values), -1, *values.shape[3:])
  return summary.replace(value=values)


def _of_items(x: jax.Array, schedule: Schedule) -> jax.Array:
  """Returns what was told [L, S, ...] of all items, [R, S, M, ...]."""
  ways, stages, parts = (
    np.arange(n).reshape([-1 if axis == i else 1 for axis in range(3)])
    for i, n in enumerate(
      (schedule.ways, schedule.stages, schedule.microbatches)
    )
  )
  return x[ways * schedule.microbatches + parts + stages, stages]
