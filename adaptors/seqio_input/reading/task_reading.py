"""Datasets of SeqIO tasks and mixtures, as chunks of NumPy arrays."""

import contextlib
import copy
import dataclasses
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.records import record_files
from adaptors.seqio_input.reading import host_rows
from pax_compat import errors
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap

# Names of graph nodes in TensorFlow's error messages.
_GRAPH_NAMES = re.compile(
  r'\{\{[^}]*\}\}|\[\[.*?\]\]|\[Op:\w+\] name:'
  r'|Error in user-defined function passed to \S+ transformation with iterator:'
  r' \S+'
)

# SeqIO has one `ReadConfig` per process.
_read_config_lock = threading.RLock()


def find(name: str) -> Any:
  """Returns the registered task or mixture of a name.

  Raises:
    UserError: the name is not registered.
  """
  seqio = lingvo_runtime.seqio()
  known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
  if name not in known:
    raise errors.UserError(
      f'unknown SeqIO task or mixture {name!r}; none of the {len(known)}'
      ' registered ones'
      + errors.did_you_mean(name, known)
      + ' (The module that'
      ' registers it has to be imported.)'
    )
  return seqio.get_mixture_or_task(name)


def tasks_of(provider: Any) -> list[Any]:
  """Returns the tasks of a mixture, or the task itself."""
  return list(lingvo_runtime.seqio().get_subtasks(provider))


def set_folders(
  provider: Any, tfds_data_dir: str | None, cache_dirs: Sequence[str]
):
  """Sets where a task, or the tasks of a mixture, read their data.

  Args:
    provider: a SeqIO task or mixture.
    tfds_data_dir: folder for TFDS sources, instead of their own; or None.
    cache_dirs: folders of caches, added to SeqIO's.
  """
  seqio = lingvo_runtime.seqio()
  seqio.add_global_cache_dirs([os.fspath(folder) for folder in cache_dirs])
  if tfds_data_dir is None:
    return
  tasks = tasks_of(provider)
  read = [t for t in tasks if isinstance(t.source, seqio.TfdsDataSource)]
  for task in read:
    if task.source.tfds_dataset.data_dir != os.fspath(tfds_data_dir):
      task.source.tfds_dataset.override_data_dir(os.fspath(tfds_data_dir))
  if len(read) < len(tasks):
    logging.warning(
      'tfds_data_dir has no effect on %s, which TFDS does not read',
      ', '.join(task.name for task in tasks if task not in read),
    )


def derive_seed(seed: int, *keys: int) -> int:
  """Returns a seed below 2^31 that depends on the keys."""
  return int(np.random.SeedSequence([seed, *keys]).generate_state(1)[0] >> 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A split of a task or mixture, and how it is read.

  Attributes:
    label: its name in messages.
    provider: a SeqIO task or mixture.
    split: name of the split.
    use_cached: whether to read offline caches.
    trim: whether features are truncated to their lengths.
    try_in_mem_cache: whether small sources are kept in memory.
    passthrough: features of a mixture that are kept in addition to its own.
    read_config: a `tfds.ReadConfig` for sources of TFDS, or None.
    warm_start: whether reading starts before the first example is requested.
  """

  label: str
  provider: Any
  split: str
  use_cached: bool
  trim: bool
  try_in_mem_cache: bool
  passthrough: tuple[str, ...]
  read_config: Any
  warm_start: bool

  def check(self):
    """Raises a UserError if the split does not exist, or is not cached."""
    self._check_split()
    self._check_cached()

  def _check_split(self):
    known = set()
    with self.user_errors('cannot be read'):
      for task in tasks_of(self.provider):
        known.update(self._splits(task))
    # TFDS also supports slices of a split, such as `train[:90%]`.
    if known and self.split.split('[')[0] not in known:
      raise errors.UserError(
        f'{self.label}: {self.provider.name} has no split {self.split!r}'
        + errors.did_you_mean(self.split, known)
      )

  def _splits(self, task: Any) -> list[str]:
    """Returns a task's splits; those of its cache, if that is read."""
    if not (self.use_cached and task.supports_caching and task.cache_dir):
      return list(task.splits)
    infos = lingvo_runtime.tensorflow().io.gfile.glob(
      os.path.join(task.cache_dir, 'info.*.json')
    )
    return [
      os.path.basename(x).split('.', 1)[1][: -len('.json')] for x in infos
    ]

  def _check_cached(self):
    dirs = lingvo_runtime.seqio().utils.get_global_cache_dirs()
    for task in tasks_of(self.provider):
      if self.use_cached and task.supports_caching and not task.cache_dir:
        raise errors.UserError(
          f'{self.label}: use_cached is True, but task {task.name} is not in'
          f' the folders of seqio.add_global_cache_dirs: {", ".join(dirs)}'
        )
      if task.requires_caching and not self.use_cached:
        raise errors.UserError(
          f'{self.label}: task {task.name} requires use_cached=True'
        )

  def num_shards(self, task: Any) -> int:
    """Returns the number of shards of a task's source."""
    if self.use_cached and task.supports_caching:
      return len(self._cached_files(task))
    return len(task.source.list_shards(split=self.split))

  def _cached_files(self, task: Any) -> list[str]:
    utils = lingvo_runtime.seqio().utils
    prefix = utils.get_cached_tfrecord_prefix(task.cache_dir, self.split)
    return utils.list_files(f'{prefix}-*-of-*')

  def dataset(
    self,
    *,
    lengths: Mapping[str, int] | None,
    shuffle: bool,
    seed: int,
    num_epochs: int | None,
    shard: tuple[int, int] | None,
  ) -> Any:
    """Returns the task's examples as a `tf.data.Dataset`, before conversion.

    Args:
      lengths: lengths of the features.
      shuffle: whether to shuffle.
      seed: seed of shuffling and of the task's preprocessing.
      num_epochs: number of epochs; None for no end.
      shard: index and number of shards; None for all data.

    Raises:
      UserError: SeqIO cannot make it.
    """
    seqio = lingvo_runtime.seqio()
    options = {}
    if self.passthrough and isinstance(self.provider, seqio.Mixture):
      options['passthrough_features'] = self.passthrough
    with self.user_errors('cannot be read'), self._own_read_config():
      data = self.provider.get_dataset(
        sequence_length=None if lengths is None else dict(lengths),
        split=self.split,
        use_cached=self.use_cached,
        shuffle=shuffle,
        seed=seed,
        shard_info=shard
        and seqio.ShardInfo(index=shard[0], num_shards=shard[1]),
        num_epochs=num_epochs,
        trim_output_features=self.trim,
        try_in_mem_cache=self.try_in_mem_cache,
        **options,
      )
    return data.with_options(self._options())

  def trimmed(self, data: Any, lengths: Mapping[str, int]) -> Any:
    """Returns the examples with truncated features, if `trim`."""
    if not self.trim:
      return data
    return lingvo_runtime.seqio().utils.trim_dataset(
      data, dict(lengths), self.provider.output_features
    )

  def _options(self) -> Any:
    options = lingvo_runtime.tensorflow().data.Options()
    # Several hosts, and a run that continues, rely on the order.
    options.deterministic = True
    options.experimental_warm_start = self.warm_start
    return options

  @contextlib.contextmanager
  def _own_read_config(self) -> Iterator[None]:
    """Makes SeqIO use this source's `ReadConfig`, within the context only."""
    utils = lingvo_runtime.seqio().utils
    # Copied, as SeqIO sets its fields.
    config = copy.deepcopy(self.read_config)
    with _read_config_lock:
      before = utils._TFDS_DATA_READ_CONFIG_OVERRIDE  # noqa: SLF001
      utils.set_tfds_read_config_override(config or before)
      try:
        yield
      finally:
        utils.set_tfds_read_config_override(before)

  @contextlib.contextmanager
  def user_errors(self, what: str) -> Iterator[None]:
    """Turns errors of SeqIO and TensorFlow about the data into UserErrors.

    Other errors, such as those of Python functions inside, are raised as they
    are.
    """
    tf = lingvo_runtime.tensorflow().errors
    try:
      yield
    except errors.UserError:
      raise
    except (
      ValueError,
      KeyError,
      AssertionError,
      OSError,
      tf.DataLossError,
      tf.FailedPreconditionError,
      tf.InvalidArgumentError,
      tf.NotFoundError,
      tf.PermissionDeniedError,
    ) as e:
      text = self._damage() if isinstance(e, tf.DataLossError) else ''
      raise errors.UserError(
        f'{self.label}: split {self.split!r} of {self.provider.name} {what}:'
        f' {text}{_in_short(e)}'
      ) from e

  def _damage(self) -> str:
    """Names the damaged record of TFRecord files; TensorFlow does not."""
    files = lingvo_runtime.seqio().FileDataSource
    for task in tasks_of(self.provider):
      source = task.source
      if self.use_cached and task.supports_caching:
        paths = self._cached_files(task)
      elif isinstance(source, files) and self.split in source.splits:
        paths = source.list_shards(split=self.split)
      else:
        continue
      for path in paths:
        for damage in record_files.scan(path, 'tfrecord').damages:
          return f'record {damage.record} of {path} {damage.reason}. '
    return ''


def _in_short(error: Exception) -> str:
  """Returns the message of an error, without names of graph nodes."""
  text = getattr(error, 'message', None) or str(error)
  text = _GRAPH_NAMES.sub('', text)
  frame = errors.location_in_user_code(error)
  if frame and 'in user code' not in text:
    text += f' (at {frame})'
  kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
  return kind + ' '.join(text.split())[:1000]


def check_fits_batches(label: str, data: Any):
  """Raises a UserError if examples cannot be stacked into one array."""
  tf = lingvo_runtime.tensorflow()
  kinds = {tf.RaggedTensorSpec: 'ragged', tf.SparseTensorSpec: 'sparse'}
  for name, spec in _leaves(data.element_spec):
    kind = kinds.get(type(spec))
    if kind:
      raise errors.UserError(
        f'{label}: after conversion the feature {name!r} is {kind}, so its'
        ' examples cannot be stacked; expected a feature_converter that pads or'
        ' drops it'
      )


def _leaves(value: Any, name: str = '') -> Iterator[tuple[str, Any]]:
  """Yields the leaves of nested mappings with their dotted names."""
  if not isinstance(value, Mapping):
    yield name, value
    return
  for key, child in value.items():
    yield from _leaves(child, f'{name}.{key}' if name else key)


def chunks(
  make: Callable[[int], Any],
  *,
  start: host_rows.Position,
  rows: int,
  epochs: int | None,
  drops_text: bool,
) -> Iterator[host_rows.Chunk]:
  """Yields the examples of one dataset after the other.

  Args:
    make: returns the `tf.data.Dataset` of an epoch.
    start: the first position. Its row may be after the end of its epoch.
    rows: maximum number of examples in a chunk.
    epochs: number of datasets; None for no end, unless one is empty.
    drops_text: whether string leaves are dropped.
  """
  skip = start.row
  counter = itertools.count() if epochs is None else range(epochs)
  for epoch in itertools.islice(counter, start.epoch, None):
    row = 0
    for examples in make(epoch).batch(rows).prefetch(2).as_numpy_iterator():
      n = example_rows.num_rows(examples)
      skipped = min(skip, n)
      if skipped < n:
        examples = _nested_map(examples, skipped, drops_text=drops_text)
        yield host_rows.Chunk(epoch, row + skipped, examples)
      row, skip = row + n, skip - skipped
    if not row and epochs is None:
      return


def _nested_map(value: Any, skipped: int, *, drops_text: bool) -> Any:
  """Returns nested mappings as `NestedMap`s, without the first rows."""
  if not isinstance(value, Mapping):
    return value[skipped:] if skipped else value
  return NestedMap(
    {
      key: _nested_map(child, skipped, drops_text=drops_text)
      for key, child in value.items()
      if not (drops_text and _is_text(child))
    }
  )


def _is_text(value: Any) -> bool:
  return not isinstance(value, Mapping) and value.dtype.kind in 'OSU'


def as_numpy(example: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an example of a `tf.data.Dataset` with NumPy leaves.

  Ragged leaves become one row of all values: [1, values].
  """
  tf = lingvo_runtime.tensorflow()
  return {
    key: value.flat_values.numpy()[None]
    if isinstance(value, tf.RaggedTensor)
    else value.numpy()
    for key, value in example.items()
  }
