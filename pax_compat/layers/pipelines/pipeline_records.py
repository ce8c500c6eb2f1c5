"""Auxiliary losses and summaries of a pipeline's stages, without bubbles.

Stages record them in each iteration of the loop: arrays [L, S, ...].

Shapes: L iterations of the loop, S stages, M microbatches, R circular repeats.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.layer_core.summaries import (
  Summary,
  SummaryType,
  have_pax_keys,
  is_summary,
  key_of_layer,
)
from pax_compat.layers.pipelines.pipeline_schedule import Schedule


def mean_losses(losses: Any, schedule: Schedule) -> Any:
  """Returns auxiliary losses: means over microbatches, summed over layers.

  Args:
    losses: arrays [L, S].
    schedule: of the pipeline.
  """
  return jax.tree.map(
    lambda x: jnp.sum(jnp.mean(_without_bubbles(x, schedule), axis=2)), losses
  )


def summaries_of_layers(
  summaries: Any, schedule: Schedule, *, unpack: bool, shared: bool = False
) -> dict[str, Any]:
  """Returns the summaries of all layers.

  Args:
    summaries: nested dicts of summaries, of values [L, S, ...].
    schedule: of the pipeline.
    unpack: whether each layer has separate summaries, with its index appended
      to their names, or with Pax's keys its repeat and stage.
    shared: whether the repeats of a stage share their weights. With Pax's keys
      a scalar is then their mean.
  """
  result = {}
  for name, value in summaries.items():
    if not is_summary(value):
      result[name] = summaries_of_layers(
        value, schedule, unpack=unpack, shared=shared
      )
      continue
    summary = _over_microbatches(value, schedule)
    if not unpack:
      result[name] = summary
      continue
    kind = summary.summary_type
    repeats, values = schedule.repeats, summary.value
    if shared and kind is SummaryType.SCALAR and have_pax_keys():
      values = jnp.mean(values.reshape(repeats, -1), axis=0)
      repeats = 1
    for i, of_layer in enumerate(values):
      repeat, stage = divmod(i, schedule.stages)
      place = f'stage{stage}'
      if repeats > 1:
        place = f'circular_layer{repeat}.{place}'
      key = key_of_layer(name, kind, i, place)
      result[key] = summary.replace(value=of_layer)
  return result


def _over_microbatches(summary: Summary, schedule: Schedule) -> Summary:
  """Returns a summary over all microbatches, with values [R S, ...]."""
  values = _without_bubbles(summary.value, schedule)
  values = values.reshape(-1, *values.shape[2:])  # [R S, M, ...]
  kind = summary.summary_type
  if kind is SummaryType.SCALAR:
    values = jnp.mean(values, axis=1)
  elif kind is SummaryType.TEXT:
    values = values[:, 0]
  elif values.ndim > 2:
    values = values.reshape(len(values), -1, *values.shape[3:])
  return summary.replace(value=values)


def _without_bubbles(x: jax.Array, schedule: Schedule) -> jax.Array:
  """Returns records [L, S, ...] in the order of layers, [R, S, M, ...]."""
  repeats, stages, microbatches = (
    np.arange(n).reshape([-1 if axis == i else 1 for axis in range(3)])
    for i, n in enumerate(
      (schedule.repeats, schedule.stages, schedule.microbatches)
    )
  )
  return x[repeats * schedule.microbatches + microbatches + stages, stages]
