"""Finite eval inputs of every kind, with distinct examples."""

import collections
import json
import pathlib
from collections.abc import Callable, Iterable

import numpy as np

from adaptors import (
  lingvo_runtime,
  tf_data_input,
)
from adaptors.lingvo_input import eval_adaptors
from pax_compat import base_input
from pax_compat.inputs import grain_input, indexed_input
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing
from tests.adaptors.seqio_input import tiny_tasks


def _reader_rows(count: int) -> int:
  """Returns the examples of a reader's batch, other than an evaluation's."""
  return max(1, count // 7)


def _lines(count: int, rows: int, folder: pathlib.Path, hosts: dict):
  """Text, read by Lingvo's C++ reader."""
  path = folder / f'{count}.txt'
  # Written beside and moved: several processes may do it.
  new = folder / f'{count}.{hosts["infeed_host_index"]}.new'
  pattern = testing.write_lines(new, testing.unique_lines(count))
  new.replace(path)
  pattern = f'text:{path}'
  limits = [_reader_rows(count)] * 3
  return eval_adaptors.LingvoEvalAdaptor(
    input=testing.lm_params(pattern, bucket_batch_limit=limits),
    batch_size=rows,
    reset_for_eval=True,
    **hosts,
  )


def _numbers(count: int, rows: int, folder: pathlib.Path, hosts: dict):
  """Numbers, read by a Lingvo generator of tf.data."""
  del folder
  params = testing.numbers(count, batch=_reader_rows(count))
  return eval_adaptors.LingvoEvalAdaptor(
    input=params, batch_size=rows, reset_for_eval=True, **hosts
  )


def _repeating_numbers(
  count: int, rows: int, folder: pathlib.Path, hosts: dict
):
  """Numbers that are repeated."""
  del folder
  params = testing.numbers(count, repeat=True, batch=_reader_rows(count))
  params.Set(batch_size=rows, num_samples=count)
  return eval_adaptors.LingvoLazyEvalAdaptor(
    input=params, reset_for_eval=True, **hosts
  )


class _Indexed(indexed_input.IndexedInput):
  """Numbers read by index."""

  count: int = 0

  @property
  def num_examples(self) -> int:
    return self.count

  def examples(self, indices: np.ndarray) -> NestedMap:
    return NestedMap(x=indices)


def _indexed(count: int, rows: int, folder: pathlib.Path, hosts: dict):
  """Numbers in NumPy."""
  del folder
  return _Indexed(count=count, batch_size=rows, reset_for_eval=True, **hosts)


def _grain(count: int, rows: int, folder: pathlib.Path, hosts: dict):
  """Numbers of Grain."""
  del folder

  def dataset():
    import grain

    return grain.MapDataset.range(count).map(lambda x: {'x': np.asarray(x)})

  return grain_input.GrainInput(
    dataset_fn=dataset, batch_size=rows, reset_for_eval=True, **hosts
  )


def _tf_data(count: int, rows: int, folder: pathlib.Path, hosts: dict):
  """Numbers of tf.data."""
  del folder

  def dataset():
    tf = lingvo_runtime.tensorflow()
    return tf.data.Dataset.range(count).map(lambda x: {'x': x})

  return tf_data_input.TFDataInput(
    dataset_fn=dataset, batch_size=rows, reset_for_eval=True, **hosts
  )


def _seqio(count: int, rows: int, folder: pathlib.Path, hosts: dict):
  """Strings of a SeqIO task."""
  del folder
  name = f'exact_{count}'
  tiny_tasks.register(name, count)
  params = tiny_tasks.eval_config(name, batch_size=rows)
  return params.Instantiate(**hosts)


KINDS: dict[str, Callable[..., base_input.BaseInput]] = {
  'lingvo text': _lines,
  'lingvo tf.data': _numbers,
  'lingvo lazy': _repeating_numbers,
  'numpy': _indexed,
  'grain': _grain,
  'tf.data': _tf_data,
  'seqio': _seqio,
}


def shard(
  kind: str,
  *,
  count: int,
  rows: int,
  folder: pathlib.Path,
  hosts: int,
  host: int,
) -> tuple[list[str], int]:
  """Reads the examples of one host in an evaluation.

  Args:
    kind: of the input, of `KINDS`.
    count: examples of the data.
    rows: of a batch of a host.
    folder: for files.
    hosts: number of hosts.
    host: which of them.

  Returns:
    Unique values of the examples that count, and the number of batches.
  """
  fields = dict(num_infeed_hosts=hosts, infeed_host_index=host)
  data = KINDS[kind](count, rows, folder, fields)
  try:
    found, batches = [], testing.drain(data)
    for batch in batches:
      weights = batch.eval_sample_weights
      assert weights.shape == (rows,), weights.shape
      assert set(weights.tolist()) <= {0.0, 1.0}, weights
      names = _names(batch)
      found += [name for name, w in zip(names, weights, strict=True) if w]
    return found, len(batches)
  finally:
    data.close()


def _names(batch) -> list[str]:
  if 'x' in batch:
    return [str(x) for x in np.asarray(batch.x).tolist()]
  return testing.texts(batch)


def check(shards: Iterable[tuple[list[str], int]], count: int):
  """Asserts that all hosts together got each of `count` examples once."""
  shards = list(shards)
  found = collections.Counter(name for names, _ in shards for name in names)
  assert len(found) == count, len(found)
  assert set(found.values()) <= {1}, found.most_common(3)
  assert len({batches for _, batches in shards}) == 1, shards


def print_shards(folder: str, host: int, hosts: int, counts: Iterable[int]):
  """Prints, as JSON, a host's examples of the inputs of all kinds."""
  result = {
    f'{kind}/{count}': shard(
      kind,
      count=count,
      rows=3,
      folder=pathlib.Path(folder),
      hosts=hosts,
      host=host,
    )
    for kind in KINDS
    for count in counts
  }
  print(json.dumps(result))
