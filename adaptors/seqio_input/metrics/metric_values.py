"""Values of SeqIO metrics, converted for a `MetricWriter`.

Shapes: K images, H height, W width, C channels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from clu import values as clu_values

from adaptors import lingvo_runtime

# Values of clu that a MetricWriter takes.
_CLU_KINDS = (clu_values.Text, clu_values.Histogram, clu_values.Image)
# Buckets of a histogram if SeqIO's does not set them.
_BUCKETS = 30


def translate(metric: str, values: Any) -> dict[str, Any]:
  """Returns the values of a metric for a `MetricWriter`.

  Scalars become floats; SeqIO's texts, histograms and images (at most its
  `max_outputs`) become clu's. Others, such as audio, are left out with a log
  line.

  Args:
    metric: name of the metric, for messages.
    values: its results: numbers, values of SeqIO or of clu, by name.

  Raises:
    TypeError: the metric did not return a mapping.
    ValueError: a scalar is not a single number.
  """
  if not isinstance(values, Mapping):
    raise TypeError(
      f'the metric returned a {type(values).__name__}; expected values by name'
    )
  found = {}
  for name, value in values.items():
    translated = _translate(value)
    if translated is None:
      logging.warning(
        'the metric %s: its value %r is left out, as it is a %s; expected a'
        ' number, a text, a histogram or images',
        metric,
        name,
        type(value).__name__,
      )
    else:
      found[name] = translated
  return found


def _translate(value: Any) -> Any:
  """Returns one value for a `MetricWriter`; None if it is not supported."""
  kinds = lingvo_runtime.seqio().metrics
  if isinstance(value, kinds.Scalar | clu_values.Scalar):
    return _number(value.value)
  if isinstance(value, kinds.Text):
    text = value.textdata
    return clu_values.Text(text.decode() if isinstance(text, bytes) else text)
  if isinstance(value, kinds.Histogram):
    samples = np.asarray(value.values)
    return clu_values.Histogram(samples, value.bins or _BUCKETS)
  if isinstance(value, kinds.Image):
    images = np.asarray(value.image)
    if images.ndim == 4:  # [K, H, W, C]
      images = images[: value.max_outputs]
    return clu_values.Image(images)
  if isinstance(value, _CLU_KINDS):
    return value
  if isinstance(value, kinds.MetricValue | str | bytes | Mapping):
    return None
  return _number(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
  array = np.asarray(value)
  return array.ndim == 0 and array.dtype.kind not in 'OSUMm'


def _number(value: Any) -> float:
  array = np.asarray(value)
  if array.size != 1:
    raise ValueError(
      f'a scalar has the shape {list(array.shape)}; expected one number'
    )
  return float(array.reshape(()))
