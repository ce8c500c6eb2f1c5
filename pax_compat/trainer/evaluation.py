"""Evaluation: weighted means over the batches of a dataset."""

import collections
from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from pax_compat import base_input, errors
from pax_compat.trainer import feeding


class WeightedMeans:
  """Adds up {name: (value, weight)} of batches, in double precision."""

  def __init__(self):
    self._sums = collections.defaultdict(float)
    self._weights = collections.defaultdict(float)

  def add(self, metrics: dict[str, tuple[Any, Any]]):
    """Adds the metrics of one batch; a value of weight 0 does not count."""
    for name, (value, weight) in metrics.items():
      weight = float(weight)
      self._weights[name] += weight
      if weight:
        self._sums[name] += float(value) * weight

  def result(self) -> dict[str, float]:
    """Returns the means by name; those without any weight are left out."""
    return {
      name: self._sums[name] / weight
      for name, weight in self._weights.items()
      if weight
    }


def evaluate(
  data: base_input.BaseInput,
  *,
  eval_step: Callable,
  mdl_vars: Any,
  put: Callable,
) -> dict[str, float]:
  """Evaluates a model on a dataset.

  Every example counts as often as its weight says, so what only fills a batch
  does not count.

  Args:
    data: the input. With `reset_for_eval` it is read to its end and reset,
      else `eval_loop_num_batches` batches are read on from where it stands.
    eval_step: compiled (mdl_vars, batch) -> {name: (value, weight)}.
    mdl_vars: the model's variables.
    put: sends a batch to the devices.

  Returns:
    The weighted means, and `num_batches`.

  Raises:
    UserError: the dataset has no batch, or fewer than it is to have.
  """
  limit = None if data.reset_for_eval else data.eval_loop_num_batches
  means = WeightedMeans()
  count = 0
  pending = None
  with feeding.Feeder(data.get_next, put, max_batches=limit) as feeder:
    for fed in feeder:
      metrics = eval_step(mdl_vars, fed.arrays)
      # One batch late, so that the devices always have the next one.
      if pending is not None:
        means.add(jax.device_get(pending))
      pending = metrics
      count += 1
  if pending is not None:
    means.add(jax.device_get(pending))
  if data.reset_for_eval:
    data.reset()
  if not count or (limit is not None and count < limit):
    raise errors.UserError(
      f'the dataset {data.name!r} has {count} batches; expected'
      f' {limit or "at least one"}'
    )
  logging.info('evaluated %r on %d batches', data.name, count)
  return {**means.result(), 'num_batches': float(count)}
