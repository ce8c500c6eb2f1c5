"""Feeds a SeqIO task or mixture to JAX."""

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

from adaptors.seqio_input import converters, field_checks
from adaptors.seqio_input.metrics import (
  example_lines,
  task_metrics,
  token_texts,
)
from adaptors.seqio_input.reading import global_order, host_rows, task_reading
from pax_compat import base_input, errors
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap

# What shuffles where no seed is given: hosts have to agree on it.
_DEFAULT_SEED = 42


class SeqIOInput(base_input.BaseInput):
  """Gives the batches of a SeqIO task or mixture as numpy arrays.

  Batches have what the feature converter makes, and `eval_sample_weights` [B].

  Training data is shuffled and repeated, and each host reads a part of it. Eval
  data is read once, by every host the whole of it in the same order: of each
  B * H successive examples host h takes the h-th B, so each counts once on any
  number of hosts. Eval batches say where an example comes from (the names are
  in `host_rows`); texts are kept in them, for the host.

  Everything is reproducible, for a given seed. The state is a place in the
  order, and reading starts there by going through what lies before. With
  `deterministic_input`, and in evaluation, it holds for any number of hosts.

  Attributes:
    mixture_name: the name of a registered task or mixture. The module that
      registers it has to be imported.
    mixture_or_task: the task or mixture itself, in place of its name.
    split_name: such as 'train'; required.
    deterministic_input: whether training data has one order, whatever the
      number of hosts. Each host then reads all of it, and each epoch of a task
      has each example once. (SeqIO's own shuffling mixes epochs.)
    task_feature_lengths: how long each of the task's features is at most, such
      as {'inputs': 64, 'targets': 64}; required.
    feature_converter: makes a model's fields of the task's features; one of
      `converters`, or of SeqIO, or a config of one; required.
    shuffle: None for training only.
    repeat: None for training, and for an evaluation of the next batches each
      time.
    use_cached: whether to read what was cached offline, of tasks that can be.
    eval_auto_pad: whether the last batches of eval data are filled up, with
      copies of an example that weigh nothing.
    drop_remainder: whether a last batch that comes short, and is not filled up,
      is left out.
    num_batches_to_skip: batches that are left out at the start of training.
    trim_output_features: whether features are cut to their lengths.
    try_in_mem_cache: whether the sources of small data are kept in memory.
    eval_metrics_targets_length: length of the targets that metrics get; None
      for that of `task_feature_lengths`.
    eval_metrics_filter_targets_fields: which features metrics get; None for
      all.
    annotate_padding_fields: whether in rows that fill up a batch all positions
      are padding without weight, too.
    overridden_vocab: makes texts of tokens, in place of the task's vocabulary.
    enable_symbolic_checkpointing: must be True.
    experimental_enable_index_shuffle: must be True.
    deterministic_input_start_index: must be None.
    log_preprocessed_targets: whether what the task's metrics got of each
      example is written, to `decode_out_<step>_metrics.jsonl` beside what the
      model makes of it, or `eval_out_<step>_metrics.jsonl` where
      `write_per_example_out` has that written.
    eval_enable_cache: whether the batches of an evaluation are kept in memory
      for the next.
    eval_num_examples: how many examples of an evaluation this host is to have;
      None if unknown. Other counts are logged.
    warm_start: whether reading begins before the first batch is asked for.
    read_config: a `tfds.ReadConfig` for sources of TFDS.
    use_targets_from_input_ds: whether metrics get targets from the very reading
      that made the batches, for sources that differ each time; they are kept
      in memory. For one host only.

  Raises:
    UserError: the fields do not go together, there is no such task, split or
      feature, or SeqIO cannot read it.
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
  use_targets_from_input_ds: bool = False

  @classmethod
  def default_name(cls, fields) -> str:
    """Returns `<mixture>_<split>`, of characters that names may have."""
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
    self._provider = self.mixture_or_task or task_reading.find(
      self.mixture_name
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
    # Batches, None for the end, with the places after them and the digests of
    # what was read, by their places.
    self._kept = {}
    self._order_digest = None
    self._order = self._make_order()
    self._order.check()
    self._go_to(self._first_place())
    self._tell_of_hosts()

  def _make_source(self) -> task_reading.Source:
    return task_reading.Source(
      label=field_checks.told_name(self),
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
    shuffles = self.is_training if self.shuffle is None else self.shuffle
    return global_order.Order(
      source=self._source,
      converter=self.feature_converter,
      lengths=lengths,
      targets_lengths=targets_lengths,
      seed=self._seed,
      shuffles=shuffles,
      repeats=self.repeats,
      reshuffles=self.is_training,
      keeps_epochs=self._is_global,
      hosts=1 if self._is_global else self.num_infeed_hosts,
      host=0 if self._is_global else self.infeed_host_index,
      keeps_inputs=self.use_targets_from_input_ds,
    )

  def _tell_of_hosts(self):
    if self.num_infeed_hosts == 1:
      return
    if self._is_global:
      told = 'reads all examples, and keeps its share of each global batch'
    elif self._order.has_own_shards:
      told = 'reads shards of its own'
    else:
      told = (
        'reads its share of the examples of all sources, as some have fewer'
        ' shards than there are hosts'
      )
    logging.info(
      '%s: each of %d hosts %s',
      self._source.label,
      self.num_infeed_hosts,
      told,
    )

  @property
  def repeats(self) -> bool:
    """Whether the data begins again at its end."""
    if self.repeat is None:
      return self.is_training or not self.reset_for_eval
    return self.repeat

  @property
  def fills_up(self) -> bool:
    """Whether the last batches of the data are filled up."""
    return self.eval_auto_pad and not self.is_training and not self.repeats

  @property
  def _is_global(self) -> bool:
    """Whether there is one order, of which each host takes its part.

    So it is, too, where training ends, as all hosts have to end together.
    """
    return not self.is_training or self.deterministic_input or not self.repeats

  @property
  def state_fits_any_hosts(self) -> bool:
    """Whether the state is good for any number of hosts."""
    return self._is_global

  @property
  def mixture_or_task_inst(self) -> Any:
    """The SeqIO task or mixture."""
    return self._provider

  @property
  def num_samples(self) -> int | None:
    """Examples of all hosts in an epoch; None before the first one ended."""
    return self._num_examples

  def _first_place(self) -> host_rows.Place:
    skipped = (self.num_batches_to_skip or 0) * self._sharing.global_size
    return host_rows.Place(row=skipped, count=skipped)

  def _go_to(self, place: host_rows.Place):
    self._place = place
    self._shares = self._shares_at = None
    self._digest = host_rows.Digest()

  def get_next(self) -> NestedMap:
    """Returns the next batch: numpy arrays with the batch axis first.

    Raises:
      StopIteration: the data is at its end.
    """
    with self._lock:
      if self._closed:
        raise RuntimeError(f'{self._source.label} is closed')
      kept = self._kept.get(self._place)
      batch, after, digest = kept or (*self._read(), self._digest.value)
      if self._keeps:
        self._kept[self._place] = batch, after, digest
      self._order_digest = digest
      if batch is None:
        raise StopIteration
      self._place = after
      return NestedMap(batch)

  @property
  def _hosts_read_alike(self) -> bool:
    return not self.is_training and self.num_infeed_hosts > 1

  def order_digest(self) -> bytes | None:
    """Returns 8 bytes that say what was read; None where hosts read apart."""
    return self._order_digest if self._hosts_read_alike else None

  def batch_specs(self) -> NestedMap | None:
    """Returns what a batch is like, if all examples have the same shapes."""
    specs = self._order.specs()
    if specs is None:
      return None
    rows = self.batch_size + self.batch_padding_size
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype),
      NestedMap(
        {example_rows.WEIGHTS: jax.ShapeDtypeStruct((), np.float32), **specs}
      ),
    )

  @property
  def _keeps(self) -> bool:
    """Whether batches are kept for the next evaluation."""
    resets = self.reset_for_eval and not self.is_training
    return resets and self.eval_enable_cache

  def _read(self) -> tuple[NestedMap | None, host_rows.Place]:
    """Returns the next batch, None at the end, and the place after it."""
    share = self._next_share()
    if share is None:
      self._note_end(self._place)
      return None, self._place
    is_short = share.size < self._sharing.global_size
    if is_short and not self.fills_up and self.drop_remainder:
      self._note_end(share.next)
      logging.info(
        '%s: its last %d examples make no batch, and are left out',
        self._source.label,
        share.size,
      )
      return None, self._place
    if self.is_training:
      rows = example_rows.num_rows(share.examples)
      return example_rows.weighed(share.examples, rows), share.next
    if is_short and not self.fills_up:
      return self._sharing.real(share), share.next
    blank = self.annotate_padding_fields
    return self._sharing.batch(share, blank_fillers=blank), share.next

  def _next_share(self) -> host_rows.Share | None:
    if self._shares is None or self._shares_at != self._place:
      chunks = self._order.chunks(
        self._place, rows=self.batch_size, drops_text=self.is_training
      )
      if self._hosts_read_alike:
        chunks = self._digest(chunks)
      self._shares = self._sharing.shares(chunks, self._place.count)
    read = self._place.count
    try:
      with self._source.errors_told(f'cannot be read after {read} examples'):
        share = next(self._shares, None)
    except BaseException:
      self._shares = None  # It would end in silence.
      raise
    self._shares_at = share and share.next
    return share

  def _note_end(self, place: host_rows.Place):
    """Takes note of how many examples there are."""
    if self.repeats and not place.count:
      raise errors.UserError(
        f'{self._source.label}: host {self.infeed_host_index} of'
        f' {self.num_infeed_hosts} has no example of split'
        f' {self.split_name!r} of {self._provider.name}; expected data, or'
        ' deterministic_input=True where hosts outnumber the examples'
      )
    self._num_examples = place.count
    own = self._sharing.own_of(place.count)
    if self.eval_num_examples not in (None, own):
      logging.warning(
        '%s: eval_num_examples is %d, but this host has %d examples',
        self._source.label,
        self.eval_num_examples,
        own,
      )

  def reset(self):
    """Starts again at the first batch."""
    with self._lock:
      self._go_to(self._first_place())

  def close(self):
    """Frees what was read. The input cannot be used afterwards."""
    with self._lock:
      self._closed = True
      self._shares = None
      self._kept = {}

  def _get_state_internal(self) -> bytes:
    hosts = None
    if not self._is_global:
      hosts = [self.infeed_host_index, self.num_infeed_hosts]
    return json.dumps(
      {
        'data': [self._provider.name, self.split_name],
        'seed': self._seed,
        'host': hosts,
        'place': self._place,
      }
    ).encode()

  def _set_state_internal(self, state: bytes):
    with self._state_told(state):
      read = json.loads(state)
      data, seed, host = read['data'], int(read['seed']), read['host']
      place = host_rows.Place(*map(int, read['place']))
    own = json.loads(self._get_state_internal())
    for what, theirs, ours in (
      ('task and split', data, own['data']),
      ('host and number of hosts', host, own['host']),
    ):
      field_checks.require(
        self,
        theirs == ours,
        f'a state says of {what} {theirs}, and not {ours}',
      )
    with self._lock:
      self._reseed(seed)
      self._go_to(place)

  @contextlib.contextmanager
  def _state_told(self, state: bytes) -> Iterator[None]:
    try:
      yield
    except (ValueError, KeyError, TypeError) as e:
      raise errors.UserError(
        f'{self._source.label}: {bytes(state)[:80]!r} is no state of a'
        f' {type(self).__name__} ({e!r})'
      ) from e

  def _reseed(self, seed: int):
    if seed != self._seed:
      self._seed = seed
      self._kept = {}
      self._order = self._make_order()

  def resume_at(self, step: int):
    """Goes on after `step` batches; see the log for where that is.

    Args:
      step: how many batches were consumed before; 0 changes nothing.
    """
    if step <= 0:
      return
    with self._lock:
      size = self._sharing.global_size
      skipped = self._first_place().count + step * size
      exact = self._is_global or not self._order.shuffles
      if exact:
        self._go_to(host_rows.Place(row=skipped, count=skipped))
        told = (
          f'it goes on after {skipped} examples of its order, which is exact if'
          f' batches always had {size}, of as many hosts as now'
        )
      else:
        self._reseed(task_reading.derive_seed(self._seed, 3, step))
        self._go_to(host_rows.Place())
        told = (
          f'it begins a fresh shuffle, of seed {self._seed}, so some examples'
          ' come again before others come first. deterministic_input=True'
          ' continues exactly on any number of hosts'
        )
    logging.info(
      '%s: without a saved state that fits, at batch %d %s',
      self._source.label,
      step,
      told,
    )

  def after_restart(self) -> str:
    """Says where training goes on whose state does not fit."""
    if self._is_global or not self._order.shuffles:
      return 'it goes on after as many batches as were given before'
    return 'it begins a fresh shuffle, of a seed that the step gives'

  def is_host_field(self, path: str, leaf: Any) -> bool:
    """Returns whether a leaf stays on the host: texts, and provenance."""
    return path in host_rows.PROVENANCE or super().is_host_field(path, leaf)

  def targets(self, first: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the task's examples before conversion, with their numbers.

    The number of an example is the one that batches have under
    `host_rows.INDEX`. Ragged features come as [1, values].

    Args:
      first: the number of the first one to yield.
    """
    numbered = self._order.targets(first)
    if not self.fills_up and self.drop_remainder:
      numbered = _full_groups(numbered, self._sharing.global_size, first)
    wanted = self.eval_metrics_filter_targets_fields
    with self._source.errors_told('cannot be read'):
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
    """Returns whether the task has metrics of that kind."""
    return task_metrics.has_metrics(self, kind)

  def example_metrics(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> dict[str, Any]:
    """Returns the task's metrics of all examples of an evaluation."""
    return task_metrics.compute(self, kind, examples)

  def example_lines(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> Iterable[dict[str, Any]]:
    """Returns what metrics got of each example, where that is asked for."""
    if not self.log_preprocessed_targets:
      return ()
    return example_lines.lines(self, kind, examples)

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns the texts of `ids` [B, T], whose first `lengths` [B] count.

    Args:
      ids: [B, T], int.
      lengths: [B], int.
      key: 'src' for the vocabulary of the task's inputs; None or 'tgt' for that
        of its targets.

    Raises:
      UserError: there is no such vocabulary.
    """
    vocabulary = self.overridden_vocab or token_texts.find(
      self._provider.output_features, key
    )
    return token_texts.texts(vocabulary, ids, lengths)

  def tokenizers(self) -> dict[str, str]:
    """Returns descriptions of the vocabularies."""
    if self.overridden_vocab is not None:
      return {'': token_texts.described(self.overridden_vocab)}
    return token_texts.descriptions(self._provider.output_features)


def _full_groups(
  numbered: Iterator[tuple[int, Any]], size: int, first: int
) -> Iterator[tuple[int, Any]]:
  """Yields what is in full groups of `size`, counted from number 0."""
  wanted = size - first % size
  while len(group := list(itertools.islice(numbered, wanted))) == wanted:
    yield from group
    wanted = size
