"""Metrics that an input computes of all examples together.

Shapes: B batch of all processes together.
"""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import base_input, errors
from pax_compat.metrics import example_outputs
from pax_compat.trainer.evaluating import gathering

# Prefixes of the metrics' names.
_PREFIXES = {'eval': 'scoring_eval', 'decode': 'decoder'}


class ExampleMetrics:
  """Collects the examples of an evaluation or decoding, and their outputs.

  Padding rows are left out. Only the first process collects.

  Attributes:
    enabled: whether the input has such metrics; otherwise nothing is added.
  """

  def __init__(self, data: base_input.BaseInput, kind: str):
    """Starts without an example.

    Args:
      data: computes the metrics.
      kind: 'eval' or 'decode'.
    """
    self.enabled = data.has_example_metrics(kind)
    self._data = data
    self._kind = kind
    self._kept: list[tuple[dict[str, Any], Mapping]] = []

  def add_arrays(
    self, examples: gathering.Examples, outputs: Mapping[str, np.ndarray]
  ):
    """Adds a batch.

    Args:
      examples: its rows.
      outputs: the per-example outputs, [B, ...] by name.
    """
    self._add(
      examples,
      {
        row: {name: x[row] for name, x in outputs.items()}
        for row in np.flatnonzero(examples.counts)
      },
    )

  def add_pairs(
    self, examples: gathering.Examples, pairs: Sequence[tuple[str, Any]]
  ):
    """Adds a batch.

    Args:
      examples: its rows.
      pairs: the (key, value) pairs of `process_decode_out`, either of the rows
        with a weight or of all rows.

    Raises:
      UserError: the number of pairs is neither of the two.
    """
    counted = np.flatnonzero(examples.counts)
    values = [value for _, value in pairs]
    if len(values) == len(examples.counts):
      values = [values[row] for row in counted]
    elif len(values) != len(counted):
      raise errors.UserError(
        f'{self._data.name}: process_decode_out has returned {len(values)}'
        f' (key, value) pairs of a batch of {len(examples.counts)} rows, of'
        f' which {len(counted)} have a weight; expected {len(counted)} or'
        f' {len(examples.counts)} pairs for the metrics of the input'
      )
    self._add(examples, dict(zip(counted, values, strict=True)))

  def _add(self, examples: gathering.Examples, outputs: Mapping[int, Any]):
    if jax.process_index():
      return
    for row, output in outputs.items():
      host = {path: x[row] for path, x in examples.host.items()}
      self._kept.append((host, output))

  def values(self, outputs_path: pathlib.Path | None) -> dict[str, Any]:
    """Returns the metrics by name, as values that a `MetricWriter` takes.

    They are empty if not `enabled`, and except on the first process.

    Args:
      outputs_path: the file of the per-example outputs. The input's lines for
        the examples, if any, are written next to it. None writes nothing.
    """
    if not self.enabled or jax.process_index():
      return {}
    found = self._data.example_metrics(self._kind, self._kept)
    if outputs_path is not None:
      self._write(outputs_path)
    return {
      f'{_PREFIXES[self._kind]}/{name}': _plain(value)
      for name, value in found.items()
    }

  def _write(self, outputs_path: pathlib.Path):
    lines = iter(self._data.example_lines(self._kind, self._kept))
    first = next(lines, None)
    if first is None:
      return
    stem = outputs_path.stem.partition('_shard_')[0]
    path = outputs_path.with_name(f'{stem}_metrics.jsonl')
    with example_outputs.example_writer(path) as writer:
      for line in itertools.chain([first], lines):
        writer.write(**line)


def _plain(value: Any) -> Any:
  kinds = (int, float, np.generic, np.ndarray, jax.Array)
  return (
    float(value) if isinstance(value, kinds) and not np.ndim(value) else value
  )
