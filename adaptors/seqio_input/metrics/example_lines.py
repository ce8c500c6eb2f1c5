"""What metrics of a SeqIO task got of each example, to be written down."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adaptors.seqio_input.metrics import task_metrics
from pax_compat import errors

# What is written of each example; the names are Pax's.
_LINES = {
  'seqio_postprocessed_targets': lambda matched: matched.targets,
  'seqio_preprocessed_targets': lambda matched: matched.examples,
  'scores': lambda matched: matched.scores,
  'decoded_substr': lambda matched: matched.prediction_texts,
  'seqio_postprocessed_predictions': lambda matched: matched.predictions,
}


def lines(
  data: task_metrics.EvalInput,
  kind: str,
  examples: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> Iterator[dict[str, Any]]:
  """Yields what metrics got of each example, in the order of the data.

  Args:
    data: the input.
    kind: 'decode' or 'eval'.
    examples: as for `task_metrics.compute`.

  Raises:
    UserError: as for `task_metrics.compute`.
  """
  matched = task_metrics.matched(data, examples)
  names = ['seqio_postprocessed_targets', 'seqio_preprocessed_targets']
  if kind == 'eval':
    names.append('scores')
  else:
    names += ['decoded_substr', 'seqio_postprocessed_predictions']
  columns = {}
  for name in names:
    try:
      columns[name] = _LINES[name](matched)
    except errors.UserError:
      raise
    except Exception:  # The user's postprocessor, of which metrics told.
      logging.exception('%r: %s cannot be written', data.name, name)
  for row, number in enumerate(matched.keys):
    values = {name: _told(column[row]) for name, column in columns.items()}
    yield {'number': number, **values}


def _told(value: Any) -> Any:
  """Returns a value that can be written, of what a postprocessor may return."""
  if isinstance(value, Mapping):
    return {str(key): _told(x) for key, x in value.items()}
  if isinstance(value, list | tuple):
    return [_told(x) for x in value]
  known = str | bytes | bool | int | float | np.ndarray | np.generic | None
  return value if isinstance(value, known) else repr(value)
