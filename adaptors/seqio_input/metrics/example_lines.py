"""Lines with the arguments of a SeqIO task's metrics for each example."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adaptors.seqio_input.metrics import task_metrics
from pax_compat import errors

# The columns of a line; the names are Pax's.
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
  """Yields a line for each example, in the order of the data.

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
    except Exception:  # Of the user's postprocessor; metrics failed too.
      logging.exception('%r: %s cannot be written', data.name, name)
  for row, number in enumerate(matched.keys):
    values = {name: _writable(column[row]) for name, column in columns.items()}
    yield {'number': number, **values}


def _writable(value: Any) -> Any:
  """Returns a value of a postprocessor in types that can be written."""
  if isinstance(value, Mapping):
    return {str(key): _writable(x) for key, x in value.items()}
  if isinstance(value, list | tuple):
    return [_writable(x) for x in value]
  known = str | bytes | bool | int | float | np.ndarray | np.generic | None
  return value if isinstance(value, known) else repr(value)
