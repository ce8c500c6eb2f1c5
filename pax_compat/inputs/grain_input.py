"""Inputs of Grain's random-access datasets.

Grain is optional; importing this module does not load it.

Legend: B examples of a host in a batch.
"""

import concurrent.futures
import functools
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
import jax
import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED, Config
from pax_compat.inputs import dataset_functions, indexed_input
from pax_compat.nested_map import NestedMap

_INSTALL = "pip install 'pax-compat[grain]'"
# The least `len` of a dataset that repeats without an end.
_ENDLESS = 1 << 62


class GrainInput(indexed_input.IndexedInput):
  """Gives the examples of a Grain `MapDataset`, as an `IndexedInput` does.

  This input shuffles, repeats, splits over hosts and batches by itself, so the
  dataset has to be of single examples: dicts of arrays of one shape. In the
  second epoch, the index of an example is larger by the dataset's length, as
  after Grain's own `repeat`, so random transformations differ between epochs.

  Attributes:
    dataset_fn: a function that returns the dataset, or a `Config` or Fiddle
      `Partial` of one. It gets those of these arguments that it has: `seed`
      (`input_random_seed`, of which None is 0) and `is_training`.
    num_threads: number of threads that read the examples of a batch; 0 reads
      them sequentially, which is best for data in memory.

  Raises:
    UserError: Grain is not installed, or the dataset is not of this kind.
  """

  dataset_fn: Callable[..., Any] | Config | fdl.Partial = REQUIRED
  num_threads: int = 0

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.num_threads >= 0,
      f'num_threads of {self.name} is {self.num_threads}; expected 0 or more',
    )
    self._threads = None
    self._make = dataset_functions.bound(
      self.dataset_fn,
      {'seed': self.input_random_seed or 0, 'is_training': self.is_training},
      where=f'{type(self).__name__}.dataset_fn of {self.name}',
    )

  @functools.cached_property
  def _dataset(self) -> Any:
    grain = _grain()
    dataset = self._make()
    self.check(
      isinstance(dataset, grain.MapDataset),
      f'dataset_fn of {self.name} returns a {type(dataset).__name__}; expected'
      ' a grain.MapDataset, which has random access: leave out'
      ' to_iter_dataset()',
    )
    self.check(
      len(dataset) < _ENDLESS,
      f'the dataset of {self.name} repeats without an end; leave out'
      ' repeat(), as this input repeats its data by itself',
    )
    return dataset

  @property
  def num_examples(self) -> int:
    """The length of the dataset."""
    return len(self._dataset)

  def examples_in_epochs(
    self, indices: np.ndarray, epochs: np.ndarray
  ) -> NestedMap:
    """Returns examples as in the given epochs."""
    indices = (epochs * len(self._dataset) + indices).tolist()
    examples = list(self._map()(self._example, indices))
    first = jax.tree.structure(examples[0])
    for index, example in zip(indices, examples, strict=True):
      self.check(
        jax.tree.structure(example) == first,
        f'example {index} of {self.name} has the fields {sorted(example)};'
        f' expected those of example {indices[0]}, {sorted(examples[0])}',
      )
    return jax.tree_util.tree_map_with_path(self._stacked, *examples)

  def _map(self):
    if not self.num_threads:
      return map
    if self._threads is None:
      self._threads = concurrent.futures.ThreadPoolExecutor(
        self.num_threads, thread_name_prefix=self.name
      )
    return self._threads.map

  def _example(self, index: int) -> NestedMap:
    example = self._dataset[index]
    self.check(
      example is not None,
      f'the dataset of {self.name} has no example {index}: a filter dropped'
      ' it; expected one for each index; drop examples in the source instead',
    )
    self.check(
      isinstance(example, Mapping),
      f'example {index} of {self.name} is a {type(example).__name__}; expected'
      ' a dict of arrays',
    )
    return NestedMap.from_nested(example)

  def _stacked(self, path, *leaves) -> np.ndarray:
    shapes = {np.shape(x) for x in leaves}
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    self.check(
      len(shapes) == 1,
      f'the field {name!r} of examples of {self.name} has the shapes'
      f' {sorted(shapes)}; expected one shape, that of a row of a batch',
    )
    if isinstance(leaves[0], str | bytes):
      return np.array(leaves, object)
    return np.stack(leaves)

  def close(self):
    """Ends the threads."""
    if self._threads is not None:
      self._threads.shutdown(cancel_futures=True)


def _grain() -> Any:
  try:
    import grain
  except ModuleNotFoundError as e:
    if e.name != 'grain':
      raise
    raise errors.UserError(
      f'Grain is not installed, and a GrainInput needs it; {_INSTALL}'
    ) from e
  return grain
