"""Files that share the examples of a dataset among them."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pax_compat.input_core import host_fields
from pax_compat.metrics import example_outputs
from pax_compat.runs import example_records, files


class Shards:
  """Writes examples to several files, in process 0; example n to n % count.

  The files are complete at the end of a `with` block, and replace earlier ones.
  If an error ends the block, none is written. Until then 'npz' keeps all
  examples in memory.

  Attributes:
    count: number of examples written.
  """

  def __init__(self, folder: pathlib.Path, *, count: int, kind: str):
    """Writes nothing.

    Args:
      folder: of the files `output-00000-of-00032.jsonl` and so on, or
        `output.tfrecord-00000-of-00032`, as Pax and TensorFlow name them.
      count: number of files.
      kind: 'jsonl', 'npz' or 'tfrecord', see `tasks_lib.InferWriter`.
    """
    name = 'output.tfrecord-{}' if kind == 'tfrecord' else f'output-{{}}.{kind}'
    self._paths = [
      folder / name.format(f'{i:05d}-of-{count:05d}') for i in range(count)
    ]
    self._kind = kind
    self._arrays: list[list[Mapping[str, Any]]] = [[] for _ in range(count)]
    self._lines: list[example_outputs.ExampleWriter] = []
    self._records: list[example_records.RecordWriter] = []
    self._stack = contextlib.ExitStack()
    self.count = 0

  def __enter__(self) -> 'Shards':
    if jax.process_index():
      return self
    for path in self._paths if self._kind != 'npz' else ():
      if self._kind == 'jsonl':
        writer = example_outputs.example_writer(path)
        self._lines.append(self._stack.enter_context(writer))
      else:
        records = example_records.record_writer(path)
        self._records.append(self._stack.enter_context(records))
    return self

  def __exit__(self, *error):
    if error[0] is None and jax.process_index() == 0 and self._kind == 'npz':
      for path, examples in zip(self._paths, self._arrays, strict=True):
        _write_npz(path, examples)
    self._stack.__exit__(*error)

  def write(self, outputs: Mapping[str, Any], host: Mapping[str, Any]):
    """Writes an example.

    Args:
      outputs: its arrays by dotted path.
      host: its fields that stayed on the host, by path.
    """
    shard = self.count % len(self._paths)
    self.count += 1
    flat = {f'{host_fields.NAME}/{k}': v for k, v in host.items()}
    if self._kind == 'npz':
      self._arrays[shard].append({**outputs, **flat})
    elif self._kind == 'tfrecord':
      # As TFDS names nested features.
      named = {k.replace('.', '/'): v for k, v in (outputs | flat).items()}
      self._records[shard].write(named)
    else:
      texts = {host_fields.NAME: dict(host)} if host else {}
      self._lines[shard].write(**outputs, **texts)


def _write_npz(path: pathlib.Path, examples: list[Mapping[str, Any]]):
  names = examples[0] if examples else ()
  arrays = {n: _stacked([e[n] for e in examples]) for n in names}
  with files.replacing(path) as half, open(half, 'wb') as f:
    np.savez(f, **arrays)


def _stacked(values: list[Any]) -> np.ndarray:
  """Returns one array; strings as such, since objects would be pickled."""
  array = np.stack([np.asarray(v) for v in values])
  if array.dtype != object:
    return array
  texts = [v.decode() if isinstance(v, bytes) else v for v in array.flat]
  return np.array(texts, str).reshape(array.shape)
