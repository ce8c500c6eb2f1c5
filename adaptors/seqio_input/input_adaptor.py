"""The input of a SeqIO task or mixture.

Legend: B examples of a host in a batch, H hosts.
"""

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors.seqio_input import converters, field_checks, pax_methods
from adaptors.seqio_input.metrics import (
  example_lines,
  task_metrics,
  token_texts,
)
from adaptors.seqio_input.reading import global_order, host_rows, task_reading
from pax_compat import base_input, errors
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap

# The seed if none is set: it has to be the same on all hosts.
_DEFAULT_SEED = 42


class SeqIOInput(pax_methods.PaxMethods, base_input.BaseInput):
  """Gives the batches of a SeqIO task or mixture as NumPy arrays.

  Batches have the fields of the feature converter, and `eval_sample_weights`
  [B].

  Training data is shuffled and repeated, and each host reads a part of it. Eval
  data is read once, in the same order by every host: of each B * H successive
  examples host h takes the h-th B, so each is evaluated once on any number of
  hosts. Eval batches also have the provenance of each example (the names are in
  `host_rows`), and strings, which stay on the host.

  The order is reproducible for a given seed. The state is a position in it;
  earlier examples are read again and skipped. With `deterministic_input`, and
  in evaluation, it fits any number of hosts.

  Attributes:
    mixture_name: name of a registered task or mixture. The module that
      registers it has to be imported.
    mixture_or_task: the task or mixture, instead of its name.
    split_name: such as 'train'; required.
    deterministic_input: whether training data has one order on any number of
      hosts. Each host then reads all of it, and each epoch of a task has each
      example once. (SeqIO's own shuffling mixes epochs.)
    task_feature_lengths: maximum length of each of the task's features, such as
      {'inputs': 64, 'targets': 64}; required.
    feature_converter: makes the model's fields from the task's features; one of
      `converters`, or of SeqIO, or a config of one; required.
    shuffle: whether to shuffle training data; None for yes. Eval data always
      has one order.
    repeat: whether to repeat the data; None for training, and for evaluations
      on a rolling basis.
    use_cached: whether to read offline caches, of tasks that support them.
    additional_cache_dirs: folders with such caches, as `--output_cache_dir` of
      `seqio_cache_tasks`. They are added to SeqIO's, for the whole process.
    eval_auto_pad: whether the last batches of eval data are padded, with copies
      of an example with weight 0.
    drop_remainder: whether a last batch that is too small, and not padded, is
      dropped.
    num_batches_to_skip: number of batches skipped at the start of training.
    trim_output_features: whether features are truncated to their lengths.
    try_in_mem_cache: whether the sources of small data are kept in memory.
    eval_metrics_targets_length: length of the targets for metrics; None for
      that of `task_feature_lengths`.
    eval_metrics_filter_targets_fields: names of the features for metrics; None
      for all.
    annotate_padding_fields: whether all positions of padding rows are also
      marked as padding, with weight 0.
    overridden_vocab: vocabulary that decodes tokens, instead of the task's.
    enable_symbolic_checkpointing: must be True.
    experimental_enable_index_shuffle: must be True.
    deterministic_input_start_index: must be None.
    log_preprocessed_targets: whether the arguments of the task's metrics are
      written for each example, to `decode_out_<step>_metrics.jsonl` beside the
      decoded outputs, or to `eval_out_<step>_metrics.jsonl` beside those of
      `write_per_example_out`.
    eval_enable_cache: whether the batches of an evaluation are kept in memory
      for the next one.
    eval_num_examples: expected number of eval examples of this host; None if
      unknown. Another count is logged as a warning.
    warm_start: whether reading starts before the first batch is requested.
    read_config: a `tfds.ReadConfig` for TFDS sources.
    tfds_data_dir: folder of the datasets of TFDS sources, instead of that of
      each source; the flag `--tfds_data_dir` sets it.
    use_targets_from_input_ds: whether metrics get targets from the same pass
      over the data as the batches, for sources that differ each time; they are
      kept in memory. For one host only.

  Raises:
    UserError: the fields contradict each other, a task, split or feature does
      not exist, or SeqIO cannot read it.
  """

  mixture_name: str | None = None
  mixture_or_task: Any = None
  split_name: str | None = None
  deterministic_input: bool = False
  task_feature_lengths: Mapping[str, int] | None = None
  feature_converter: Any = None
  shuffle: bool | None = None
  repeat: bool | None = None
  use_cached: bool = False
  additional_cache_dirs: Sequence[str] = ()
  eval_auto_pad: bool = True
  drop_remainder: bool = True
  num_batches_to_skip: int | None = None
  trim_output_features: bool = True
  try_in_mem_cache: bool = True
  eval_metrics_targets_length: int | None = None
  eval_metrics_filter_targets_fields: Sequence[str] | None = None
  annotate_padding_fields: bool = False
  overridden_vocab: Any = None
  enable_symbolic_checkpointing: bool = True
  experimental_enable_index_shuffle: bool = True
  deterministic_input_start_index: Any = None
  log_preprocessed_targets: bool = False
  eval_enable_cache: bool = True
  eval_num_examples: int | None = None
  warm_start: bool = True
  read_config: Any = None
  tfds_data_dir: str | None = None
  use_targets_from_input_ds: bool = False

  @classmethod
  def default_name(cls, fields) -> str:
    """Returns `<mixture>_<split>`, with `_` for characters not allowed."""
    mixture = fields.mixture_name or getattr(
      fields.mixture_or_task, 'name', None
    )
    if not mixture or not fields.split_name:
      return super().default_name(fields)
    return re.sub('[^a-zA-Z0-9.:_+-]', '_', f'{mixture}_{fields.split_name}')

  def __post_init__(self):
    super().__post_init__()
    field_checks.check_fields(self)
    self.feature_converter = converters.built(self.feature_converter)
    field_checks.check_lengths(self)
    self._provider = self.find_task()
    task_reading.set_folders(
      self._provider, self.tfds_data_dir, self.additional_cache_dirs
    )
    self._seed = self.input_random_seed
    if self._seed is None:
      self._seed = _DEFAULT_SEED
    self._source = self._make_source()
    self._source.check()
    field_checks.check_scores(self)
    self._sharing = host_rows.Sharing(
      batch_size=self.batch_size,
      num_hosts=self.num_infeed_hosts if self._is_global else 1,
      host=self.infeed_host_index if self._is_global else 0,
    )
    # Batches are fetched by another thread than the one that builds or closes.
    self._lock = threading.RLock()
    self._closed = False
    self._num_examples = None
    # By position: the batch (None at the end), the position after it, and the
    # digest of all examples read.
    self._cache = {}
    self._order_digest = None
    self._order = self._make_order()
    self._order.check()
    self._go_to(self._first_position())
    self._log_hosts()

  def find_task(self) -> Any:
    """Returns the SeqIO task or mixture. Subclasses may make one.

    Raises:
      UserError: there is none of this name.
    """
    return self.mixture_or_task or task_reading.find(self.mixture_name)

  def _make_source(self) -> task_reading.Source:
    return task_reading.Source(
      label=field_checks.label(self),
      provider=self._provider,
      split=self.split_name,
      use_cached=self.use_cached,
      trim=self.trim_output_features,
      try_in_mem_cache=self.try_in_mem_cache,
      passthrough=converters.passthrough_of(self.feature_converter),
      read_config=self.read_config,
      warm_start=self.warm_start,
    )

  def _make_order(self) -> global_order.Order:
    lengths = dict(self.task_feature_lengths)
    targets_lengths = dict(lengths)
    if self.eval_metrics_targets_length is not None:
      targets_lengths['targets'] = self.eval_metrics_targets_length
    return global_order.Order(
      source=self._source,
      converter=self.feature_converter,
      lengths=lengths,
      targets_lengths=targets_lengths,
      seed=self._seed,
      shuffles=self.should_shuffle,
      repeats=self.repeats,
      reshuffles=self.is_training,
      keeps_epochs=self._is_global,
      hosts=1 if self._is_global else self.num_infeed_hosts,
      host=0 if self._is_global else self.infeed_host_index,
      keeps_inputs=self.use_targets_from_input_ds,
    )

  def _log_hosts(self):
    if self.num_infeed_hosts == 1:
      return
    if self._is_global:
      reading = 'reads all examples, and keeps its part of each global batch'
    elif self._order.has_own_shards:
      reading = 'reads separate shards'
    else:
      reading = (
        'reads a part of the examples of every source, as some sources have'
        ' fewer shards than there are hosts'
      )
    logging.info(
      '%s: each of %d hosts %s',
      self._source.label,
      self.num_infeed_hosts,
      reading,
    )

  @property
  def repeats(self) -> bool:
    """Whether the data is repeated."""
    if self.repeat is None:
      return self.is_training or not self.reset_for_eval
    return self.repeat

  @property
  def pads_batches(self) -> bool:
    """Whether the last batches of the data are padded."""
    return self.eval_auto_pad and not self.is_training and not self.repeats

  @property
  def _is_global(self) -> bool:
    """Whether all hosts read one global order, and each keeps its rows.

    Also if training data ends, as all hosts have to end at the same batch.
    """
    return not self.is_training or self.deterministic_input or not self.repeats

  @property
  def state_fits_any_hosts(self) -> bool:
    """Whether the state fits any number of hosts."""
    return self._is_global

  @property
  def mixture_or_task_inst(self) -> Any:
    """The SeqIO task or mixture."""
    return self._provider

  @property
  def num_samples(self) -> int | None:
    """Examples in an epoch, of all hosts; None before the end of the first."""
    return self._num_examples

  def _first_position(self) -> host_rows.Position:
    skipped = (self.num_batches_to_skip or 0) * self._sharing.global_size
    return host_rows.Position(row=skipped, count=skipped)

  def _go_to(self, position: host_rows.Position):
    self._position = position
    self._shares = self._shares_at = None
    self._digest = host_rows.Digest()

  def get_next(self) -> NestedMap:
    """Returns the next batch: NumPy arrays with the batch axis first.

    Raises:
      StopIteration: at the end of the data.
    """
    with self._lock:
      if self._closed:
        raise RuntimeError(f'{self._source.label} is closed')
      cached = self._cache.get(self._position)
      batch, after, digest = cached or (*self._read(), self._digest.value)
      if self._caches:
        self._cache[self._position] = batch, after, digest
      self._order_digest = digest
      if batch is None:
        raise StopIteration
      self._position = after
      return NestedMap(batch)

  @property
  def _hosts_read_same(self) -> bool:
    return not self.is_training and self.num_infeed_hosts > 1

  def order_digest(self) -> bytes | None:
    """Returns an 8-byte digest; None if hosts read different examples."""
    return self._order_digest if self._hosts_read_same else None

  @classmethod
  def specs_of_config(cls, config: Any) -> NestedMap | None:
    """Returns the specs of a batch, without any data."""
    if config.feature_converter is None or not config.task_feature_lengths:
      return None
    converter = converters.built(config.feature_converter)
    if not isinstance(converter, converters.Converter):
      return None
    specs = converter.specs(config.task_feature_lengths)
    if specs is None or not config.batch_size:
      return None
    return _rows_of(specs, config.batch_size + config.batch_padding_size)

  def batch_specs(self) -> NestedMap | None:
    """Returns the specs of a batch, if all examples have the same shapes."""
    specs = self._order.specs()
    if specs is None:
      return None
    return _rows_of(specs, self.batch_size + self.batch_padding_size)

  @property
  def _caches(self) -> bool:
    """Whether batches are cached for the next evaluation."""
    resets = self.reset_for_eval and not self.is_training
    return resets and self.eval_enable_cache

  def _read(self) -> tuple[NestedMap | None, host_rows.Position]:
    """Returns the next batch, None at the end, and the position after it."""
    share = self._next_share()
    if share is None:
      self._record_end(self._position)
      return None, self._position
    is_short = share.size < self._sharing.global_size
    if is_short and not self.pads_batches and self.drop_remainder:
      self._record_end(share.next)
      logging.info(
        '%s: its last %d examples are dropped, as they do not fill a batch',
        self._source.label,
        share.size,
      )
      return None, self._position
    if self.is_training:
      rows = example_rows.num_rows(share.examples)
      return example_rows.with_example_weights(share.examples, rows), share.next
    if is_short and not self.pads_batches:
      return self._sharing.real(share), share.next
    blank = self.annotate_padding_fields
    return self._sharing.batch(share, blank_padding=blank), share.next

  def _next_share(self) -> host_rows.Share | None:
    if self._shares is None or self._shares_at != self._position:
      chunks = self._order.chunks(
        self._position, rows=self.batch_size, drops_text=self.is_training
      )
      if self._hosts_read_same:
        chunks = self._digest(chunks)
      self._shares = self._sharing.shares(chunks, self._position.count)
    read = self._position.count
    try:
      with self._source.user_errors(f'cannot be read after {read} examples'):
        share = next(self._shares, None)
    except BaseException:
      self._shares = None  # A failed generator would end silently.
      raise
    self._shares_at = share and share.next
    return share

  def _record_end(self, position: host_rows.Position):
    """Records the number of examples of an epoch."""
    if self.repeats and not position.count:
      raise errors.UserError(
        f'{self._source.label}: host {self.infeed_host_index} of'
        f' {self.num_infeed_hosts} has no example of split'
        f' {self.split_name!r} of {self._provider.name}; expected data, or'
        ' deterministic_input=True if there are more hosts than examples'
      )
    self._num_examples = position.count
    own = self._sharing.own_of(position.count)
    if self.eval_num_examples not in (None, own):
      logging.warning(
        '%s: eval_num_examples is %d, but this host has %d examples',
        self._source.label,
        self.eval_num_examples,
        own,
      )

  def reset(self):
    """Restarts at the first batch."""
    with self._lock:
      self._go_to(self._first_position())

  def close(self):
    """Frees the batches. The input cannot be used afterwards."""
    with self._lock:
      self._closed = True
      self._shares = None
      self._cache = {}

  def _get_state_internal(self) -> bytes:
    hosts = None
    if not self._is_global:
      hosts = [self.infeed_host_index, self.num_infeed_hosts]
    return json.dumps(
      {
        'data': [self._provider.name, self.split_name],
        'seed': self._seed,
        'host': hosts,
        'place': self._position,
      }
    ).encode()

  def _set_state_internal(self, state: bytes):
    with self._state_errors(state):
      read = json.loads(state)
      data, seed, host = read['data'], int(read['seed']), read['host']
      position = host_rows.Position(*map(int, read['place']))
    own = json.loads(self._get_state_internal())
    for what, theirs, ours in (
      ('task and split', data, own['data']),
      ('host and number of hosts', host, own['host']),
    ):
      field_checks.require(
        self,
        theirs == ours,
        f'a state is of the {what} {theirs}; expected {ours}',
      )
    with self._lock:
      self._reseed(seed)
      self._go_to(position)

  @contextlib.contextmanager
  def _state_errors(self, state: bytes) -> Iterator[None]:
    try:
      yield
    except (ValueError, KeyError, TypeError) as e:
      raise errors.UserError(
        f'{self._source.label}: {bytes(state)[:80]!r} is not a state of'
        f' a {type(self).__name__} ({e!r})'
      ) from e

  def _reseed(self, seed: int):
    if seed != self._seed:
      self._seed = seed
      self._cache = {}
      self._order = self._make_order()

  def resume_at(self, step: int):
    """Moves past `step` batches; logs the exact position.

    Args:
      step: number of batches consumed before; 0 for no change.
    """
    if step <= 0:
      return
    with self._lock:
      size = self._sharing.global_size
      skipped = self._first_position().count + step * size
      exact = self._is_global or not self._order.shuffles
      if exact:
        self._go_to(host_rows.Position(row=skipped, count=skipped))
        position = (
          f'it continues after {skipped} examples of its order, exactly if all'
          f' batches had {size} examples, on as many hosts as now'
        )
      else:
        self._reseed(task_reading.derive_seed(self._seed, 3, step))
        self._go_to(host_rows.Position())
        position = (
          f'it starts a new shuffle, of seed {self._seed}, so some examples are'
          ' repeated before others are read. deterministic_input=True continues'
          ' exactly on any number of hosts'
        )
    logging.info(
      '%s: no saved state fits; at batch %d %s',
      self._source.label,
      step,
      position,
    )

  def after_restart(self) -> str:
    """Describes where training continues without a state that fits."""
    if self._is_global or not self._order.shuffles:
      return 'it continues after as many batches as before'
    return 'it starts a new shuffle, with a seed that depends on the step'

  def is_host_field(self, path: str, leaf: Any) -> bool:
    """Returns whether a leaf stays on the host: strings and provenance."""
    return path in host_rows.PROVENANCE or super().is_host_field(path, leaf)

  def targets(self, first: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the task's examples before conversion, with their indices.

    The index of an example is the field `host_rows.INDEX` of batches. Ragged
    features are returned as [1, values].

    Args:
      first: index of the first one to yield.
    """
    numbered = self._order.targets(first)
    if not self.pads_batches and self.drop_remainder:
      numbered = _full_groups(numbered, self._sharing.global_size, first)
    wanted = self.eval_metrics_filter_targets_fields
    with self._source.user_errors('cannot be read'):
      for index, example in numbered:
        yield (
          index,
          task_reading.as_numpy(
            {
              name: value
              for name, value in example.items()
              if wanted is None or name in wanted
            }
          ),
        )

  def has_example_metrics(self, kind: str) -> bool:
    """Returns whether the task has metrics of a kind."""
    return task_metrics.has_metrics(self, kind)

  def example_metrics(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> dict[str, Any]:
    """Returns the task's metrics over all examples of an evaluation."""
    return task_metrics.compute(self, kind, examples)

  def example_lines(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> Iterable[dict[str, Any]]:
    """Returns the metrics' arguments, if `log_preprocessed_targets`."""
    if not self.log_preprocessed_targets:
      return ()
    return example_lines.lines(self, kind, examples)

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns B strings for token ids.

    Args:
      ids: [B, T], int.
      lengths: [B], int, number of tokens in each row.
      key: 'src' for the vocabulary of the task's inputs; None or 'tgt' for that
        of its targets.

    Raises:
      UserError: the vocabulary is missing.
    """
    vocabulary = self.overridden_vocab or token_texts.find(
      self._provider.output_features, key
    )
    return token_texts.decode(vocabulary, ids, lengths)

  def prompts(self, strings, key=None):
    """Returns the tokens of prompts, after the converter's `bos_id`."""
    vocabulary = self.overridden_vocab or token_texts.find(
      self._provider.output_features, key
    )
    bos_id = getattr(self.feature_converter, 'bos_id', 0)
    return token_texts.prompts(vocabulary, strings, bos_id)

  def tokenizers(self) -> dict[str, str]:
    """Returns descriptions of the vocabularies."""
    if self.overridden_vocab is not None:
      return {'': token_texts.describe(self.overridden_vocab)}
    return token_texts.descriptions(self._provider.output_features)


def _full_groups(
  numbered: Iterator[tuple[int, Any]], size: int, first: int
) -> Iterator[tuple[int, Any]]:
  """Yields the items of full groups of `size`, counted from index 0."""
  wanted = size - first % size
  while len(group := list(itertools.islice(numbered, wanted))) == wanted:
    yield from group
    wanted = size


def _rows_of(specs: Mapping[str, Any], rows: int) -> NestedMap:
  """Returns the specs of a batch from those of an example."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype),
    NestedMap(
      {example_rows.WEIGHTS: jax.ShapeDtypeStruct((), np.float32), **specs}
    ),
  )
