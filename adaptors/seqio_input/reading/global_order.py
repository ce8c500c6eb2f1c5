"""The order of the examples of a SeqIO task or mixture, on each host."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from absl import logging

from adaptors import lingvo_runtime
from adaptors.seqio_input.reading import host_rows, task_reading
from pax_compat.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
  """A reproducible order of all examples, or of those of one host.

  Attributes:
    source: the data.
    converter: makes the model's fields from the task's features.
    lengths: lengths of the task's features.
    targets_lengths: lengths of the features for metrics.
    seed: seed of shuffling and of the task's preprocessing.
    shuffles: whether the examples are shuffled.
    repeats: whether the data is repeated.
    reshuffles: whether each epoch has a different order.
    keeps_epochs: whether each example is read once before any is repeated.
      SeqIO's own repetition mixes epochs, as it shuffles across their ends.
    hosts: number of hosts that read parts of the data; 1 if each reads all.
    host: index of this host.
    keeps_inputs: whether the data is read only once, into memory.
  """

  source: task_reading.Source
  converter: Callable
  lengths: Mapping[str, int]
  targets_lengths: Mapping[str, int]
  seed: int
  shuffles: bool
  repeats: bool
  reshuffles: bool
  keeps_epochs: bool
  hosts: int = 1
  host: int = 0
  keeps_inputs: bool = False
  # The dataset of the check, not read yet.
  _checked: list = dataclasses.field(default_factory=list, init=False)

  @functools.cached_property
  def _has_epochs(self) -> bool:
    """Whether the data is repeated here epoch by epoch, not by SeqIO.

    Not for mixtures, whose epoch would end with the smallest task.
    """
    is_task = isinstance(self.source.provider, lingvo_runtime.seqio().Task)
    return self.repeats and self.keeps_epochs and is_task

  @property
  def _epochs_differ(self) -> bool:
    """Whether each epoch is a separate dataset, with a different seed."""
    return self._has_epochs and self.reshuffles

  def chunks(
    self, start: host_rows.Position, *, rows: int, drops_text: bool
  ) -> Iterator[host_rows.Chunk]:
    """Yields the converted examples from a position on.

    Args:
      start: the position.
      rows: maximum number of examples in a chunk.
      drops_text: whether string leaves are dropped.
    """
    return task_reading.chunks(
      self._converted,
      start=start,
      rows=rows,
      epochs=None if self._epochs_differ else 1,
      drops_text=drops_text,
    )

  def check(self):
    """Raises a UserError if the data cannot be converted to batches."""
    self._checked.append(self._converted(0))

  def specs(self) -> NestedMap | None:
    """Returns the shapes and dtypes of an example's fields, without strings.

    None if a shape is not static.
    """
    if not self._checked:
      self.check()
    tf = lingvo_runtime.tensorflow()

    def spec(value):
      if not isinstance(value, Mapping):
        return jax.ShapeDtypeStruct(value.shape, value.dtype.as_numpy_dtype)
      return NestedMap(
        {
          key: spec(child)
          for key, child in value.items()
          if getattr(child, 'dtype', None) != tf.string
        }
      )

    element = self._checked[-1].element_spec
    shapes = [x.shape for x in tf.nest.flatten(element)]
    known = all(shape.is_fully_defined() for shape in shapes)
    return spec(element) if known else None

  def targets(self, first: int) -> Iterator[tuple[int, Any]]:
    """Yields the indices and examples of the task before conversion.

    Args:
      first: index of the first one to yield.
    """
    index = 0
    for epoch in itertools.count() if self._epochs_differ else range(1):
      before = index
      data = self._repeated(self._inputs(epoch, self.targets_lengths))
      for example in data:
        if index >= first:
          yield index, example
        index += 1
      if index == before:
        return

  @functools.cached_property
  def has_own_shards(self) -> bool:
    """Whether each host reads and shuffles separate shards.

    Otherwise hosts take turns in one order, with one seed.
    """
    with self.source.user_errors('cannot be listed'):
      return self.hosts > 1 and all(
        not task.source.supports_arbitrary_sharding
        and self.source.num_shards(task) >= self.hosts
        for task in task_reading.tasks_of(self.source.provider)
        if self.source.split in task.splits
      )

  def _converted(self, epoch: int) -> Any:
    if self._checked and not epoch:
      return self._checked.pop()
    data = self._inputs(epoch, self.lengths)
    with self.source.user_errors('cannot be converted'):
      data = self.converter(data, task_feature_lengths=dict(self.lengths))
    task_reading.check_fits_batches(self.source.label, data)
    return self._repeated(data)

  def _repeated(self, data: Any) -> Any:
    return data.repeat() if self._has_epochs and not self.reshuffles else data

  def _inputs(self, epoch: int, lengths: Mapping[str, int]) -> Any:
    """Returns the task's examples as a `tf.data.Dataset`."""
    if self.keeps_inputs:
      return self.source.trimmed(self._kept_inputs, lengths)
    seed = self.seed
    if self.has_own_shards:
      seed = task_reading.derive_seed(seed, 1, self.host)
    if self.reshuffles and epoch:
      seed = task_reading.derive_seed(seed, 2, epoch)
    return self.source.dataset(
      lengths=lengths,
      shuffle=self.shuffles,
      seed=seed,
      num_epochs=None if self.repeats and not self._has_epochs else 1,
      shard=(self.host, self.hosts) if self.hosts > 1 else None,
    )

  @functools.cached_property
  def _kept_inputs(self) -> Any:
    """All examples, read once, at the longer length of batches and metrics."""
    longest = {
      name: max(length, self.targets_lengths.get(name, 0))
      for name, length in self.lengths.items()
    }
    data = self.source.dataset(
      lengths={**self.targets_lengths, **longest},
      shuffle=self.shuffles,
      seed=self.seed,
      num_epochs=1,
      shard=None,
    ).cache()
    with self.source.user_errors('cannot be read'):
      count = sum(1 for _ in data)  # Iterating fills the cache.
    logging.info('%s: %d examples in memory', self.source.label, count)
    return data
