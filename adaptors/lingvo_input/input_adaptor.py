"""Lingvo input generators as inputs for JAX.

What a batch goes through, from the file to `get_next`:

    record files          host_files: this host's files, or copies of records
    Lingvo's generator    drivers: built in a TensorFlow session or function
    Generator.next        generator: checks of records and ids, example weights
    BucketBatches         generator: padded to the bound of its bucket
    order of the hosts    AgreedShapes, ReplayOrder or EvalOrder
"""

import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
from absl import logging

from adaptors.lingvo_input import generator as generators
from adaptors.lingvo_input.checks import params_checks
from adaptors.lingvo_input.drivers import backends, end_of_data
from adaptors.lingvo_input.replay import replay_order, replay_params
from adaptors.lingvo_input.shapes import (
  agreed_shapes,
  bucket_shapes,
  given_lengths,
)
from pax_compat import base_input, config, errors
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.nested_map import NestedMap
from pax_compat.processes import process_channel

# How long `close` waits for the batch that another thread reads.
_SECONDS_TO_CLOSE = 60.0


# Seeds are 1 to N. This step has no common divisor with N, so it reaches all
# seeds before it reaches one again.
_SEEDS = 2**31 - 2
_SEED_STEP = 1_000_003


def derive_seed(seed: int, host: int, step: int) -> int:
  """Returns a seed from 1 to 2^31 - 2; hosts have different ones."""
  text = f'{seed}:{step}'.encode()
  first = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), 'big')
  return 1 + (first + host * _SEED_STEP) % _SEEDS


class Order(Protocol):
  """The batches of one host, in the order in which it returns them."""

  def next(self) -> NestedMap:
    """Returns the next batch; StopIteration at the end."""


class LingvoInputAdaptor(base_input.BaseInput):
  """Returns the batches of a Lingvo input generator as numpy arrays.

  The generator decides on the batch size, so `batch_size` stays None. Batches
  are NestedMaps of the generator's leaves, without sparse and ragged ones, plus
  `eval_sample_weights` [B] if there is none. Strings are arrays of bytes, which
  stay on the host; in training they are left out. In training a batch has
  `source_selected` [B, sources] as well, if the generator's data sources train
  different variables.

  Several hosts read different orders, hence at a step from different buckets.
  So that they return one shape, each reads up to 32 batches (or 1 GiB) ahead,
  and they agree on the shape that most of them have; see `agreed_shapes`.
  `input/weightless_batches` counts the batches of weight 0 of a host that had
  none.

  With `replay` the records come in the order of the files, in one thread and
  without shuffling, and every host reads all of them: shuffle the data
  beforehand. H successive batches of one bucket make a step of H hosts, so
  buckets keep their shapes. After a restart the consumed batches are read again
  and skipped. The random seed is `input.file_random_seed`, or derived from
  `input_random_seed` if that is 0.

  Attributes:
    input: Lingvo Params of the generator. They are copied, never changed.
    num_batches: number of batches before StopIteration; None for all.
    allow_fixed_file_random_seed: whether training may use a `file_random_seed`
      other than 0.
    cluster_do_eval: whether the generator of an eval input finds `do_eval` set
      in Lingvo's cluster.
    xla_device: that of Lingvo's cluster: 'cpu', or 'tpu' for static shapes
      where a generator makes a difference.
    pad_to_bucket_bounds: whether batches of an input with buckets are padded,
      or truncated, to the bound of their bucket: a step is compiled for each
      shape of a batch. Padding has paddings of 1 and weight 0; it changes only
      the results of layers that stride over time, such as an utterance's
      convolutions, by where a batch ends. With False a generator that pads to
      the longest example of each batch has a new shape for nearly each of them.
    pad_to_lengths: for inputs without buckets, the lengths of fields [B, T,
      ...] by dotted path, such as `{'frames': (400, 800), 'tgt': (64,)}`: T is
      padded to the smallest one that fits, so that few shapes are compiled. A
      map of fields stands for all with the T of its `paddings`, and '' for the
      whole batch. Paddings get 1, other fields 0: give it only where the model
      knows by paddings, weights or lengths what is real. Longer batches stay as
      they are.
    split_files: whether each of several hosts reads files of its own, where a
      pattern matches at least as many files as there are hosts. Set it to False
      for generators of records that split them by host themselves.
    split_records: whether hosts share the records of a pattern that matches
      fewer files than there are hosts: each copies its own to a temporary
      folder (set by TMPDIR) and reads these. With False all hosts read all
      records, in different orders. It needs `split_files`.
    skip_bad_records: whether damaged records are left out and counted; if not,
      they are errors. Files with such records are copied without them.
    bytes_to_check: number of bytes of files that are checked for damaged
      records before they are read; None for all. The others are checked in the
      background while they are read.
    replay: whether the order of the batches is reproducible, so that a run
      resumes exactly, also with another number of hosts. See above.

  Raises:
    UserError: the fields do not go together, or the input's files are missing,
      empty, or hold nothing that fits into its buckets; or `replay` is set and
      the generator's order is not reproducible.
  """

  input: Any = config.REQUIRED
  num_batches: int | None = None
  allow_fixed_file_random_seed: bool = False
  cluster_do_eval: bool = False
  xla_device: str = 'cpu'
  pad_to_bucket_bounds: bool = True
  pad_to_lengths: Mapping[str, Sequence[int]] | None = None
  split_files: bool = True
  split_records: bool = True
  skip_bad_records: bool = False
  bytes_to_check: int | None = 2**30
  replay: bool = False

  def __post_init__(self):
    super().__post_init__()
    self._check_input()
    self._check_batch_size()
    self._check_seed()
    self._seed = getattr(self.input, 'file_random_seed', 0)
    if self.replay and not self._seed:
      self._seed = derive_seed(self.input_random_seed or 0, 0, 0)
    self._generator = generators.Generator(self._settings())
    self._prepare_shapes()
    # One thread fetches batches, another one builds or closes.
    self._lock = threading.RLock()
    self._produced = 0
    self._order: Order | None = None

  @classmethod
  def check_files(cls, params: config.Config):
    """Checks the input's files; see `BaseInput`."""
    if hasattr(params.input, 'cls'):
      params_checks.check_input(_label(cls, params), params.input)

  @property
  def state_fits_any_hosts(self) -> bool:
    """Whether the state is the same on all hosts: with `replay`."""
    return self.replay

  @property
  def _label(self) -> str:
    """The input's name in messages."""
    return _label(type(self), self)

  def _check_input(self):
    if self.input is config.REQUIRED or self.input is None:
      raise errors.UserError(f'{type(self).__name__}.input is required')
    if not hasattr(self.input, 'Copy') or not hasattr(self.input, 'cls'):
      raise errors.UserError(
        f'{type(self).__name__}.input is a {type(self.input).__name__};'
        ' expected the Params of a Lingvo input generator'
      )

  def _check_batch_size(self):
    if self.batch_size is not None:
      raise errors.UserError(
        f'{self._label}: batch_size is {self.batch_size}, but the'
        ' generator decides on it; leave it None and set'
        ' input.bucket_batch_limit (or input.batch_size)'
      )

  def _check_seed(self):
    seed = getattr(self.input, 'file_random_seed', 0)
    allowed = self.allow_fixed_file_random_seed or self.replay
    if self.is_training and seed and not allowed:
      raise errors.UserError(
        f'{self._label}: input.file_random_seed is {seed}. A training job'
        ' that is preempted and starts again would see the same data again;'
        ' set it to 0, or set allow_fixed_file_random_seed=True if that is'
        ' what you want'
      )

  def _settings(self) -> generators.Settings:
    """Returns how the generator is read: in training, or with `replay`."""
    params = self.input.Copy()
    if self.replay:
      replay_params.prepare(
        self._label, params, seed=self._seed, num_hosts=self.num_infeed_hosts
      )
    elif self._seed and self.num_infeed_hosts > 1:
      params.file_random_seed = self._host_seed(step=0)
    finite = getattr(params, 'repeat_count', -1) != -1
    return generators.Settings(
      label=self._label,
      params=params,
      backend=backends.Settings(
        name=params.cls.__name__,
        cluster_options={
          'do_eval': self.cluster_do_eval and not self.is_training,
          'require_sequential_input_order': finite or self.replay,
          'xla_device': self.xla_device,
        },
        infeed_host_index=0 if self.replay else self.infeed_host_index,
        num_infeed_hosts=1 if self.replay else self.num_infeed_hosts,
        seed=self._seed if self.replay else None,
        skips_bad_records=self.skip_bad_records,
      ),
      is_training=self.is_training,
      # An evaluation without a number of batches reads up to the end.
      must_end=not self.is_training
      and self.reset_for_eval
      and self.eval_loop_num_batches is None
      and self.num_batches is None,
      short_batches=False,
      split_files=self.split_files,
      split_records=self.split_records,
      bytes_to_check=self.bytes_to_check,
      known_ids=self.known_ids,
    )

  def _host_seed(self, step: int) -> int:
    return derive_seed(self._seed, self.infeed_host_index, step)

  def _prepare_shapes(self):
    """Finds out whether the hosts have to agree on the shape of each step."""
    self._channel = self._check_shape = None
    differ = self._generator.settings.backend.num_infeed_hosts > 1
    if differ and jax.process_count() > 1:
      # In a single process the hosts are simulated.
      self._channel = process_channel.Channel(self.name)
    self._buckets = bucket_shapes.Buckets(
      self._generator.params,
      fit_lengths=self.pad_to_bucket_bounds,
      is_so_everywhere=self._channel and self._channel.all,
    )
    self._lengths = given_lengths.GivenLengths(self._label, self.pad_to_lengths)
    count = max(len(self._buckets.shapes()), self._lengths.count)
    self._watch = given_lengths.ShapeWatch(self._label, planned=count)
    if differ and count < 2:
      self._channel = None
      self._check_shape = bucket_shapes.OneShape(self._label)

  def _batches(self) -> generators.BucketBatches:
    """Returns the generator's batches, padded to the bounds of buckets."""
    return generators.BucketBatches(
      self._generator,
      self._buckets,
      self._lengths,
      self._watch,
      self._check_shape,
    )

  def _make_order(self) -> Order:
    batches = self._batches()
    if self.replay:
      return replay_order.ReplayOrder(
        name=self._label,
        next_batch=batches.next,
        skip=batches.skip,
        num_hosts=self.num_infeed_hosts,
        host=self.infeed_host_index,
      )
    if self._channel is not None:
      return agreed_shapes.AgreedShapes(
        name=self._label, next_batch=batches.next, channel=self._channel
      )
    return batches

  def _current_order(self) -> Order:
    """Returns the order of this epoch, made on first use."""
    if self._order is None:
      self._order = self._make_order()
    return self._order

  @classmethod
  def default_name(cls, fields) -> str:
    """Returns the name of the generator."""
    return getattr(fields.input, 'name', '') or super().default_name(fields)

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns the number of examples of one process in a batch.

    If there are several buckets, that of the first.
    """
    for field in ('bucket_batch_limit', 'batch_size'):
      size = getattr(params.input, field, None)
      if size:
        return size[0] if isinstance(size, list | tuple) else size
    raise errors.UserError(
      f'{params.name}: input has neither bucket_batch_limit nor batch_size;'
      ' expected the number of examples in a batch'
    )

  def get_next(self) -> NestedMap:
    """Returns the next batch: numpy arrays with the batch axis first.

    Raises:
      StopIteration: the data is at its end, or `num_batches` were returned. It
        is an OutOfRangeError of TensorFlow, too.
    """
    with self._lock:
      if self.num_batches is not None and self._produced >= self.num_batches:
        raise end_of_data.error(f'num_batches exceeding {self.num_batches}')
      try:
        batch = self._current_order().next()
      except StopIteration as e:
        raise end_of_data.of(e) from None
      self._produced += 1
      return batch

  def _get_state_internal(self) -> bytes:
    if not self.replay:
      return super()._get_state_internal()
    with self._lock:
      state = {'given': self._produced, **self._current_order().state()}
      return replay_order.pack_state(
        type(self).__name__, self._replay_metadata, state
      )

  def _set_state_internal(self, state: bytes):
    if not self.replay:
      super()._set_state_internal(state)
    with self._lock:
      found = replay_order.unpack_state(
        self._label, type(self).__name__, self._replay_metadata, state
      )
      self._free()
      self._current_order().go_to(found['read'], found['waiting'])
      self._produced = found['given']

  @functools.cached_property
  def _replay_metadata(self) -> dict[str, Any]:
    found = replay_params.metadata(
      self._label, self._generator.params, seed=self._seed
    )
    return {**found, 'skip_bad_records': self.skip_bad_records}

  def reset(self):
    """Starts again with a new generator, in a new order if it shuffles."""
    with self._lock:
      self._free()
      self._produced = 0

  def _free(self):
    self._order = None
    self._generator.restart()

  def close(self):
    """Frees the generator: its session and its threads."""
    self._generator.is_closed = True
    # A reader may wait forever after a damaged record.
    is_stuck = self._generator.records.check.has_found
    if not self._lock.acquire(timeout=1 if is_stuck else _SECONDS_TO_CLOSE):
      logging.warning(
        '%s cannot be closed while another thread waits for its next batch',
        self._label,
      )
      return
    try:
      self._order = None
      self._generator.close()
    finally:
      self._lock.release()

  def raise_if_broken(self):
    self._generator.records.check.raise_if_damaged()

  def interrupt(self):
    if self._channel is not None:
      self._channel.leave()

  def resume_at(self, step: int):
    """Reads another order after a restart, and logs it.

    Lingvo's readers cannot be positioned, so an exact continuation is
    impossible, except with `replay` if the number of hosts was always the same.

    Args:
      step: number of batches that were consumed; 0 changes nothing.
    """
    if step <= 0:
      return
    if self.replay:
      with self._lock:
        self._current_order().after_steps(step)
        self._produced = step
      return
    name, params = self.input.cls.__name__, self._generator.params
    with self._lock:
      self._generator.first_step = step
      if self._seed:
        params.file_random_seed = self._host_seed(step)
        self._free()
    logging.info(
      '%s cannot be positioned at batch %d: after this restart %s%s',
      name,
      step,
      self.after_restart(),
      f', which make {params.file_random_seed}' if self._seed else '',
    )

  def after_restart(self) -> str:
    """Returns in words where this input resumes after a restart."""
    if self.replay:
      return 'it reads again what was consumed, and goes on after it'
    if getattr(self._generator.params, 'repeat_count', -1) != -1:
      return 'it reads its files from the start, in order'
    if self._seed:
      return (
        f'it reads a fresh shuffle, of file_random_seed {self._seed}, the step'
        ' and the host'
      )
    return 'it reads a fresh random order, as file_random_seed is 0'

  def shapes(self) -> list[tuple[int, int | None]]:
    """Returns the (batch, time) of each bucket, as far as they are known."""
    return self._buckets.shapes()

  def input_metrics(self) -> dict[str, float]:
    """Returns counts of what this host leaves out, or adds.

    `input/weightless_batches` are the batches of weight 0 that this host
    returned for lack of one of the agreed shape. `input/skipped_records`, with
    `skip_bad_records`, are the damaged records of the files that it reads,
    perhaps together with other hosts, and those of its own records that the
    generator refuses. A file that cannot be read after some record counts once.
    """
    metrics = {}
    damaged = self._generator.records.num_damaged
    if damaged is not None:
      skipped = damaged + self._generator.refused_records
      metrics['input/skipped_records'] = float(skipped)
    if isinstance(self._order, agreed_shapes.AgreedShapes):
      metrics['input/weightless_batches'] = float(self._order.num_weightless)
    return metrics

  def tokenizers(self) -> dict[str, str]:
    """Returns the Params of the generator's tokenizers by their names."""
    params = self._generator.params
    named = getattr(params, 'tokenizer_dict', None) or {}
    if getattr(params, 'tokenizer', None) is not None:
      named = {'': params.tokenizer, **named}
    return {
      key: tokenizer.ToText()
      for key, tokenizer in named.items()
      if tokenizer is not None
    }

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns the strings of `ids` [B, T]; `lengths` [B] of them are real.

    The tokenizer is the generator's one of the name `key`.

    Raises:
      UserError: the tokenizer is unknown.
    """
    with self._lock:
      return self._generator.driver().ids_to_strings(ids, lengths, key)

  def prompts(
    self, strings: Sequence[str], key: str | None = None
  ) -> prompts_lib.Prompts:
    """Returns the tokens of prompts, by the generator's `StringsToIds`.

    Raises:
      UserError: the tokenizer is unknown.
    """
    with self._lock:
      return self._generator.driver().prompts(strings, key)


def _label(cls: type, params: Any) -> str:
  """Returns the name of an input, or of its config, in messages."""
  return f'{cls.__name__} {params.name!r} ({params.input.cls.__name__})'
