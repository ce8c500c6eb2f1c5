"""Collections of clu metrics by name: merged over batches, then computed.

>>> def of_batch(x):
...   return {'mean': metrics.Average.from_model_output(np.array(x))}
>>> merged = None
>>> for x in ([1.0, 2.0], [6.0]):
...   merged = merge(merged, of_batch(x))
>>> scalars(compute(merged))
{'mean': 3.0}
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from clu import metrics, values

from pax_compat import errors

Metrics = Mapping[str, metrics.Metric]


def merge(one: Metrics | None, other: Metrics) -> Metrics:
  """Merges each metric with the one of the same name.

  Args:
    one: of earlier batches; None, if there are none.
    other: of the next batch.

  Raises:
    UserError: the names differ.
  """
  if one is None:
    return other
  if one.keys() != other.keys():
    raise errors.UserError(
      f'a batch has the clu metrics {", ".join(sorted(other)) or "none"}; the'
      f' batches before it have {", ".join(sorted(one)) or "none"}'
    )
  return {name: metric.merge(other[name]) for name, metric in one.items()}


def compute(merged: Metrics) -> dict[str, Any]:
  """Computes the metrics' values, as clu values by name; see `named_values`.

  Raises:
    UserError: `compute_value` returns anything else than clu values.
  """
  named = named_values(merged)
  for name, value in named.items():
    if not isinstance(value, values.Value):
      raise errors.UserError(
        f'the value of the clu metric {name!r} is {value!r}; expected a clu'
        ' value, such as clu.values.Scalar'
      )
  return named


def named_values(merged: Metrics) -> dict[str, Any]:
  """Computes the metrics' values, by name.

  If `compute_value` returns a dict, its values are named `metric/key`; if it
  returns a list, `metric/metric_0`, `metric/metric_1`, ...
  """
  named: dict[str, Any] = {}
  for name, metric in merged.items():
    value = metric.compute_value()
    if isinstance(value, Mapping):
      for key, item in value.items():
        named |= _numbered(f'{name}/{key}', item)
    elif isinstance(value, list | tuple):
      named |= _numbered(f'{name}/{name}', value)
    else:
      named[name] = value
  return named


def scalars(computed: Mapping[str, Any]) -> dict[str, float]:
  """Returns the scalars among clu values, as numbers."""
  return {
    name: float(np.asarray(value.value))
    for name, value in computed.items()
    if isinstance(value, values.Scalar)
  }


def _numbered(name: str, value: Any) -> dict[str, Any]:
  if not isinstance(value, list | tuple):
    return {name: value}
  return {f'{name}_{i}': item for i, item in enumerate(value)}
