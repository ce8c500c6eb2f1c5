"""clu's metrics: put together over batches, and read out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from clu import metrics, values

from pax_compat import errors

Metrics = Mapping[str, metrics.Metric]


def merge(one: Metrics | None, other: Metrics) -> Metrics:
  """Returns the metrics of the batches of both; None is of no batch.

  Raises:
    UserError: a batch has other metrics than the batch before.
  """
  if one is None:
    return other
  if one.keys() != other.keys():
    raise errors.UserError(
      f'a batch has the clu metrics {", ".join(sorted(other)) or "none"}; those'
      f' of the batch before are {", ".join(sorted(one)) or "none"}'
    )
  return {name: metric.merge(other[name]) for name, metric in one.items()}


def read(found: Metrics) -> dict[str, Any]:
  """Returns what metrics amount to, as values of clu by name.

  A metric that amounts to several values has each under a name of its own:
  `metric/key` where it calls them so, else `metric/metric_0` and so on.

  Raises:
    UserError: a metric's `compute_value` returns something else.
  """
  named: dict[str, Any] = {}
  for name, metric in found.items():
    value = metric.compute_value()
    if isinstance(value, Mapping):
      for key, part in value.items():
        named |= _numbered(f'{name}/{key}', part)
    elif isinstance(value, list | tuple):
      named |= _numbered(f'{name}/{name}', value)
    else:
      named[name] = value
  for name, value in named.items():
    if not isinstance(value, values.Value):
      raise errors.UserError(
        f'the clu metric {name!r} amounts to {value!r}; expected a clu value,'
        ' such as clu.values.Scalar'
      )
  return named


def scalars(found: Mapping[str, Any]) -> dict[str, float]:
  """Returns the scalars among values of clu, as numbers."""
  return {
    name: float(np.asarray(value.value))
    for name, value in found.items()
    if isinstance(value, values.Scalar)
  }


def _numbered(name: str, value: Any) -> dict[str, Any]:
  if not isinstance(value, list | tuple):
    return {name: value}
  return {f'{name}_{i}': part for i, part in enumerate(value)}
