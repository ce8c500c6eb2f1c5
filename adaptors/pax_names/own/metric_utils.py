"""Functions of `paxml.metric_utils`: metrics as numbers.

>>> as_float([(1.0, 1.0), (4.0, 2.0)])
3.0
>>> as_float_dict({'loss': (2.0, 8.0), 'text': 'a'})
{'loss': 2.0}
>>> update_float_dict({'a': 1.0}, {'a': 2.0}, prefix='eval')
{'a': 1.0, 'eval/a': 2.0}
"""

import numbers
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from clu import metrics as clu
from clu import values

from pax_compat import errors
from pax_compat.metrics import clu_metrics
from pax_compat.nested_map import NestedMap

__all__ = [
  'as_float',
  'as_float_dict',
  'compute_metric_values',
  'extract_weighted_scalars_and_clu_metrics',
  'is_float_convertible',
  'is_scalar',
  'is_weighted_scalar',
  'merge_clu_metrics',
  'update_float_dict',
]

compute_metric_values = clu_metrics.named_values


def merge_clu_metrics(
  metrics: clu_metrics.Metrics, updated_metrics: clu_metrics.Metrics
) -> clu_metrics.Metrics:
  """Returns the merged metrics; `metrics` may be empty."""
  return clu_metrics.merge(metrics or None, updated_metrics)


def is_scalar(v: Any) -> bool:
  """Whether a value is a number or an array."""
  return isinstance(v, numbers.Number | np.ndarray | jax.Array)


def is_weighted_scalar(v: Any) -> bool:
  """Whether a value is a tuple (value, weight)."""
  return isinstance(v, tuple) and len(v) == 2 and all(map(is_scalar, v))


def is_float_convertible(metric_value: Any) -> bool:
  """Whether `as_float` accepts a value."""
  if isinstance(metric_value, list):
    return all(map(is_weighted_scalar, metric_value))
  return (
    isinstance(metric_value, numbers.Number)
    or _is_scalar_value(metric_value)
    or is_weighted_scalar(metric_value)
  )


def as_float(metric_value: Any) -> float:
  """Returns a metric as a number.

  Args:
    metric_value: a number, a `Scalar` of clu or SeqIO, a tuple (value, weight),
      or a list of these, which gives the weighted mean.

  Raises:
    UserError: it is something else.
  """
  if not is_float_convertible(metric_value):
    raise errors.UserError(
      f'the metric {metric_value!r} is not a number; expected a number, a'
      ' Scalar, (value, weight) or a list of these'
    )
  if _is_scalar_value(metric_value):
    return float(metric_value.value)
  if isinstance(metric_value, numbers.Number):
    return float(metric_value)
  pairs = metric_value if isinstance(metric_value, list) else [metric_value]
  found, weights = (np.stack(x) for x in zip(*pairs, strict=True))
  return float(np.sum(found * weights) / np.sum(weights))


def as_float_dict(
  metric_output: Mapping[str, Any], raise_on_non_float_convertible: bool = False
) -> dict[str, float]:
  """Returns metrics as numbers, by name.

  Args:
    metric_output: metrics by name; see `as_float`.
    raise_on_non_float_convertible: whether another metric is an error; by
      default it is left out.

  Raises:
    UserError: a metric is not a number.
  """
  return {
    name: as_float(value)
    for name, value in metric_output.items()
    if raise_on_non_float_convertible or is_float_convertible(value)
  }


def update_float_dict(
  target: dict[str, float], source: dict[str, float], prefix: str | None = None
) -> dict[str, float]:
  """Adds numbers to a dict, and returns it.

  Args:
    target: the dict.
    source: the numbers by name.
    prefix: if not None, names become `prefix/name`.
  """
  start = '' if prefix is None else f'{prefix}/'
  target.update({f'{start}{name}': value for name, value in source.items()})
  return target


def extract_weighted_scalars_and_clu_metrics(
  metrics: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
  """Returns metrics as weighted scalars, or as clu metrics; {} for the other.

  Raises:
    UserError: the first metric is neither, or is missing.
  """
  found = (
    metrics.Flatten() if isinstance(metrics, NestedMap) else [*metrics.values()]
  )
  if found and is_weighted_scalar(found[0]):
    return metrics, {}
  if found and isinstance(found[0], clu.Metric):
    return {}, metrics
  raise errors.UserError(
    f'metrics are {found[:1]}; expected (value, weight) or clu metrics by name'
  )


def _is_scalar_value(value: Any) -> bool:
  """Whether a value is a `Scalar` of clu, or of SeqIO."""
  cls = type(value)
  return isinstance(value, values.Scalar) or (
    cls.__name__ == 'Scalar' and cls.__module__.startswith('seqio.')
  )
