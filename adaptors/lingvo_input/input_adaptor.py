"""Feeds a Lingvo input generator to JAX."""

import functools
import hashlib
import threading
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors.lingvo_input import host_files
from adaptors.lingvo_input.checks import (
  generator_kinds,
  id_checks,
  params_checks,
  record_trial,
)
from adaptors.lingvo_input.drivers import (
  backends,
  endless,
  file_types,
  generator_driver,
  randomness,
)
from adaptors.lingvo_input.replay import replay_params, replaying
from adaptors.lingvo_input.shapes import agreed_shapes, bucket_shapes
from pax_compat import base_input, config, errors
from pax_compat.nested_map import NestedMap
from pax_compat.processes import process_channel

# How long it is waited for the batch that another thread reads.
_SECONDS_TO_CLOSE = 60.0


# Seeds are 1 to so many. A step of this length, which has no divisor in common
# with it, comes by all of them before it comes to one again.
_SEEDS = 2**31 - 2
_SEED_STEP = 1_000_003


def derive_seed(seed: int, host: int, step: int) -> int:
  """Returns a seed of 1 to 2^31 - 2, another one for each host."""
  told = f'{seed}:{step}'.encode()
  first = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), 'big')
  return 1 + (first + host * _SEED_STEP) % _SEEDS


class LingvoInputAdaptor(base_input.BaseInput):
  """Gives the batches of a Lingvo input generator as numpy arrays.

  The generator decides on the batch size, so `batch_size` stays None. Batches
  are NestedMaps of the generator's leaves, less sparse and ragged ones, plus
  `eval_sample_weights` [B] where it supplies none. Texts are arrays of bytes,
  which stay on the host; in training they are left out. In training there is
  `source_selected` [B, sources], too, where the generator's data sources train
  different variables.

  Several hosts read in orders of their own, hence at a step from different
  buckets. So that they feed one shape, each holds up to 32 batches (or 1 GiB)
  ready, and they agree on the shape that most of them have; see
  `agreed_shapes`. `input/weightless_batches` counts those of a host that had
  none.

  With `replay` the records come in the order of the files, in one thread and
  without shuffling, and every host reads all of them: shuffle the data
  beforehand. H successive batches of one bucket make up a step of H hosts, so
  buckets keep their shapes. After a restart what was consumed is read again,
  and thrown away. What is drawn at random has the seed `input.file_random_seed`
  or, where that is 0, one made of `input_random_seed`.

  Attributes:
    input: Lingvo Params of the generator. They are copied, never changed.
    num_batches: how many batches to give before StopIteration; None for all.
    allow_fixed_file_random_seed: whether training may use a `file_random_seed`
      other than 0.
    cluster_do_eval: whether the generator of an eval input finds `do_eval` set
      in Lingvo's cluster.
    xla_device: what Lingvo's cluster says: 'cpu', or 'tpu' for static shapes
      where a generator makes a difference.
    pad_to_bucket_bounds: whether batches of an input with buckets are cut or
      extended to the bound of their bucket: a step is compiled for each shape
      of a batch. What is added is 1 in paddings and weighs nothing; it changes
      no number but those of layers that stride over time, such as an
      utterance's convolutions, by where a batch ends. With False a generator
      that pads to the longest example of each batch has a new shape for nearly
      each of them.
    split_files: whether each of several hosts reads files of its own, where a
      pattern matches as many files as there are hosts. For generators of
      records that see to it themselves it is to be False.
    split_records: whether hosts share the records of a pattern that matches
      fewer files than there are hosts: each copies its own to a temporary
      folder (TMPDIR says where) and reads these. With False all hosts read all
      records, in orders of their own. It needs `split_files`.
    skip_bad_records: whether records that are damaged are left out and counted,
      where they would be errors. Files with such records are copied without.
    bytes_to_check: how many bytes of files are checked for damaged records
      before they are read; None for all. The others are checked in the
      background while they are read.
    replay: whether the order of the batches is reproducible, so that a run
      goes on exactly where it stopped, also with another number of hosts. See
      below.

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
  split_files: bool = True
  split_records: bool = True
  skip_bad_records: bool = False
  bytes_to_check: int | None = 2**30
  replay: bool = False

  def __post_init__(self):
    super().__post_init__()
    self._check_fields()
    self._params = self._own_params()
    self._seed = getattr(self._params, 'file_random_seed', 0)
    if self.replay:
      self._prepare_replay()
    if self._seed and self.num_infeed_hosts > 1 and self._hosts_differ():
      self._params.file_random_seed = self._host_seed(step=0)
    self._told = set()
    params_checks.check_input(self._told_name(), self._params)
    self._records = self._make_records()
    self._trial = record_trial.RecordTrial(self._records.copies.origin)
    self._check_ids = id_checks.IdCheck(
      self._told_name(), self._params, self.known_ids
    )
    self._tell_fillers = generator_kinds.telling_fillers(self._params)
    self._prepare_shapes()
    # Batches are fetched by another thread than the one that builds or closes.
    self._lock = threading.RLock()
    self._driver = None
    self._closed = False
    self._produced = 0
    self._first_step = 0
    self._order = self._end_guard = None
    self._count = self._refused = 0
    self._last_ones = np.ones(0, np.float32)

  @property
  def state_fits_any_hosts(self) -> bool:
    """Whether the state is the same on all hosts: with `replay`."""
    return self.replay

  def _prepare_replay(self):
    self._seed = self._seed or derive_seed(self.input_random_seed or 0, 0, 0)
    replay_params.prepare(
      self._told_name(),
      self._params,
      seed=self._seed,
      num_hosts=self.num_infeed_hosts,
    )

  def _make_records(self) -> host_files.HostRecords:
    shares = self.split_files and self._hosts_differ()
    return host_files.HostRecords(
      self._told_name(),
      self._params,
      hosts=self.num_infeed_hosts if shares else 1,
      host=self.infeed_host_index if shares else 0,
      split_records=self.split_records,
      skip_bad_records=self.skip_bad_records,
      bytes_to_check=self.bytes_to_check,
      file_types=self._file_types,
    )

  def _file_types(self) -> dict[str, str]:
    settings = backends.Settings(
      name=self._told_name(),
      cluster_options=self._cluster_options(),
      **self._infeed_context(),
    )
    return file_types.in_graph(settings, self._params)

  def _prepare_shapes(self):
    """Sees to it that hosts feed one shape at each step."""
    self._channel = self._shape_check = None
    differ = self.num_infeed_hosts > 1 and self._hosts_differ()
    if differ and jax.process_count() > 1:  # If not, hosts are only played.
      self._channel = process_channel.Channel(self.name)
    self._buckets = bucket_shapes.Buckets(
      self._params,
      fit_lengths=self.pad_to_bucket_bounds,
      is_so_everywhere=self._channel and self._channel.all,
    )
    if differ and len(self._buckets.shapes()) < 2:
      self._channel = None
      self._shape_check = bucket_shapes.OneShape(self._told_name())

  def _told_name(self) -> str:
    return f'{type(self).__name__} {self.name!r} ({self.input.cls.__name__})'

  def _check_fields(self):
    if self.input is config.REQUIRED or self.input is None:
      raise errors.UserError(f'{type(self).__name__}.input is required')
    if not hasattr(self.input, 'Copy') or not hasattr(self.input, 'cls'):
      raise errors.UserError(
        f'{type(self).__name__}.input is a {type(self.input).__name__};'
        ' expected the Params of a Lingvo input generator'
      )
    self._check_batch_size()
    seed = getattr(self.input, 'file_random_seed', 0)
    allowed = self.allow_fixed_file_random_seed or self.replay
    if self.is_training and seed and not allowed:
      raise errors.UserError(
        f'{self._told_name()}: input.file_random_seed is {seed}. A training job'
        ' that is preempted and starts again would see the same data again;'
        ' set it to 0, or set allow_fixed_file_random_seed=True if that is'
        ' what you want'
      )

  def _check_batch_size(self):
    if self.batch_size is not None:
      raise errors.UserError(
        f'{self._told_name()}: batch_size is {self.batch_size}, but the'
        ' generator decides on it; leave it None and set'
        ' input.bucket_batch_limit (or input.batch_size)'
      )

  @classmethod
  def default_name(cls, fields) -> str:
    """Returns the name of the generator."""
    return getattr(fields.input, 'name', '') or super().default_name(fields)

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns how many examples of one process a batch has, as far as known.

    Of several buckets that of the first.
    """
    for field in ('bucket_batch_limit', 'batch_size'):
      size = getattr(params.input, field, None)
      if size:
        return size[0] if isinstance(size, list | tuple) else size
    raise errors.UserError(
      f'{params.name}: input has neither bucket_batch_limit nor batch_size;'
      ' expected the number of examples in a batch'
    )

  def _own_params(self):
    """Returns a copy of the generator's Params to work on."""
    return self.input.Copy()

  def _hosts_differ(self) -> bool:
    """Returns whether each host reads an order of its own."""
    return not self.replay

  def _host_seed(self, step: int) -> int:
    return derive_seed(self._seed, self.infeed_host_index, step)

  def _cluster_options(self) -> dict[str, Any]:
    finite = getattr(self._params, 'repeat_count', -1) != -1
    if finite:
      self._log_once(
        'repeat_count is %d: the files are read in order, without shuffling',
        self._params.repeat_count,
      )
    return {
      'do_eval': self.cluster_do_eval and not self.is_training,
      'require_sequential_input_order': finite or self.replay,
      'xla_device': self.xla_device,
    }

  def _infeed_context(self) -> dict[str, int]:
    """Returns what the generator is told about hosts."""
    if not self._hosts_differ():
      return {'infeed_host_index': 0, 'num_infeed_hosts': 1}
    return {
      'infeed_host_index': self.infeed_host_index,
      'num_infeed_hosts': self.num_infeed_hosts,
    }

  def _log_once(self, text: str, *args):
    if text not in self._told:
      self._told.add(text)
      logging.info('%s: ' + text, self._told_name(), *args)

  def _build(self) -> generator_driver.GeneratorDriver:
    driver = generator_driver.GeneratorDriver(
      params=self._records.prepare(self._params.Copy()),
      skips_bad_records=self.skip_bad_records,
      trial=self._trial,
      cluster_options=self._cluster_options(),
      tells_source=self.is_training,
      seed=self._seed if self.replay else None,
      keeps_texts=not self.is_training,
      first_step=self._first_step,
      **self._infeed_context(),
    )
    if self.replay:
      try:
        randomness.check(self._told_name(), driver.graph)
      except errors.UserError:
        driver.close()
        raise
    return driver

  def _live_driver(self) -> generator_driver.GeneratorDriver:
    """Returns the driver, built at the first need."""
    if self._closed:
      raise RuntimeError(f'{self._told_name()} is closed')
    if self._driver is None:
      self._records.check.start()
      driver = self._build()
      try:
        self._check_driver(driver)
      except errors.UserError:
        driver.close()
        raise
      self._driver = driver
      self._refused = driver.refused_records
      if self._driver.dropped:
        self._log_once(
          'dropped from batches, as no device takes them: %s',
          ', '.join(self._driver.dropped),
        )
    return self._driver

  def _check_driver(self, driver: generator_driver.GeneratorDriver):
    if self._reads_all() and driver.finite is False:
      raise errors.UserError(
        f'{self._told_name()} never ends: {self._how_to_end()}'
      )
    if driver.uses_step and not self.is_training:
      raise errors.UserError(
        f'{self._told_name()}: its batches depend on the training step, as'
        ' those of a CurriculumDataSource do; expected an evaluation of the'
        ' data of one stage'
      )

  def _reads_all(self) -> bool:
    """Whether an evaluation reads up to the end of the data."""
    return (
      not self.is_training
      and self.reset_for_eval
      and self.eval_loop_num_batches is None
      and self.num_batches is None
    )

  def _how_to_end(self) -> str:
    return (
      'an evaluation needs one epoch. Switch its repetition off'
      ' (cluster_do_eval=True does it for many tf.data inputs), or set'
      ' num_batches'
    )

  def _guard(self) -> endless.Guard:
    """Returns what raises where one epoch seems never to end."""
    if not self._reads_all():
      return endless.no_guard
    return endless.guard(
      self._told_name(),
      self._how_to_end(),
      ends=self._live_driver().finite,
      num_samples=getattr(self._params, 'num_samples', 0),
    )

  def get_next(self) -> NestedMap:
    """Returns the next batch: numpy arrays with the batch axis first.

    Raises:
      StopIteration: the data is at its end, or `num_batches` were given.
    """
    with self._lock:
      if self.num_batches is not None and self._produced >= self.num_batches:
        raise StopIteration
      if self.replay or self._channel is not None:
        batch = self._ordered().next()
      else:
        batch = self._next_batch()
      self._produced += 1
      return batch

  def _ordered(self) -> replaying.Replay | agreed_shapes.AgreedShapes:
    """Returns what orders the batches of hosts, made at the first need."""
    if self._order is None:
      common = dict(name=self._told_name(), next_batch=self._next_batch)
      if self.replay:
        self._order = replaying.Replay(
          **common,
          skip=self._skip,
          num_hosts=self.num_infeed_hosts,
          host=self.infeed_host_index,
        )
      else:
        self._order = agreed_shapes.AgreedShapes(
          **common, channel=self._channel
        )
    return self._order

  def _skip(self, count: int) -> int:
    """Reads so many batches on; returns how many there were."""
    return self._live_driver().skip(count)

  def _get_state_internal(self) -> bytes:
    if not self.replay:
      return super()._get_state_internal()
    with self._lock:
      state = {'given': self._produced, **self._ordered().state()}
      return replaying.pack_state(
        type(self).__name__, self._replay_facts, state
      )

  def _set_state_internal(self, state: bytes):
    if not self.replay:
      super()._set_state_internal(state)
    with self._lock:
      told = replaying.unpack_state(
        self._told_name(), type(self).__name__, self._replay_facts, state
      )
      self._free()
      self._ordered().go_to(told['read'], told['waiting'])
      self._produced = told['given']

  @functools.cached_property
  def _replay_facts(self) -> dict[str, Any]:
    told = replay_params.facts(self._told_name(), self._params, seed=self._seed)
    return {**told, 'skip_bad_records': self.skip_bad_records}

  def _next_batch(self) -> NestedMap:
    """Returns the next batch, of the shape of its bucket."""
    batch = self._read()
    rows = bucket_shapes.batch_rows(batch)
    if rows:
      self._count += rows
      self._end_guard = self._end_guard or self._guard()
      self._end_guard(batch, self._count)
    batch = self._buckets.fit(batch, rows, self._live_driver().fixed_lengths)
    added = batch['eval_sample_weights'].shape[0] - rows if rows else 0
    if added:
      self._log_once(
        'a batch came short, of %d examples, and got %d rows of weight 0; so'
        ' will others',
        rows,
        added,
      )
    if self._shape_check is not None:
      self._shape_check(batch)
    return batch

  def _read(self) -> NestedMap:
    """Returns the generator's next batch with `eval_sample_weights`."""
    self._records.check.raise_if_damaged()
    try:
      batch = self._live_driver().next()
    except StopIteration:
      self._records.check.finish()  # The end may be a damage, too.
      raise
    except Exception as e:
      told = self._records.explain(e)
      if told is None:
        raise
      raise told from e
    self._check_ids(batch)
    if 'eval_sample_weights' not in batch:
      batch = self._tell_fillers(batch)
    if 'eval_sample_weights' not in batch:
      batch['eval_sample_weights'] = self._ones(bucket_shapes.first_rows(batch))
    return batch

  def _ones(self, rows: int) -> np.ndarray:
    if self._last_ones.shape[0] != rows:
      self._last_ones = np.ones(rows, np.float32)
    return self._last_ones.copy()  # In a quarter of the time of np.ones.

  def reset(self):
    """Starts again with a new generator; the order is a new one, too, if the
    generator shuffles at random."""
    with self._lock:
      self._free()
      self._produced = 0

  def close(self):
    """Frees the generator: its session and its threads."""
    self._closed = True
    # A reader may wait for ever behind a damaged record.
    is_stuck = self._records.check.has_found
    if not self._lock.acquire(timeout=1 if is_stuck else _SECONDS_TO_CLOSE):
      logging.warning(
        '%s cannot be closed while another thread waits for its next batch',
        self._told_name(),
      )
      return
    try:
      self._free()
      self._records.close()
    finally:
      self._lock.release()

  def raise_if_broken(self):
    self._records.check.raise_if_damaged()

  def interrupt(self):
    if self._channel is not None:
      self._channel.leave()

  def _free(self):
    self._order = self._end_guard = None
    self._count = 0
    if self._driver is not None:
      self._driver.close()
      self._driver = None

  def resume_at(self, step: int):
    """Reads in another order after a restart, and says so in the log.

    Lingvo's readers cannot be positioned, so exact continuation is impossible,
    except with `replay`, and if the number of hosts has always been the same.

    Args:
      step: how many batches were consumed before; 0 changes nothing.
    """
    if step <= 0:
      return
    if self.replay:
      with self._lock:
        self._ordered().after_steps(step)
        self._produced = step
      return
    name = self.input.cls.__name__
    with self._lock:
      self._first_step = step
      if self._seed:
        self._params.file_random_seed = self._host_seed(step)
        self._free()
    logging.info(
      '%s cannot be positioned at batch %d: after this restart %s%s',
      name,
      step,
      self.after_restart(),
      f', which make {self._params.file_random_seed}' if self._seed else '',
    )

  def after_restart(self) -> str:
    """Says in words where this input goes on after a restart."""
    if self.replay:
      return 'it reads again what was consumed, and goes on after it'
    if getattr(self._params, 'repeat_count', -1) != -1:
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

    `input/weightless_batches` are those that this host gave for want of one of
    the shape that hosts agreed on. `input/skipped_records` are the damaged ones
    of the files that it reads, perhaps with others, and those of its own
    records that the generator refuses, with `skip_bad_records`. A file of which
    nothing can be read any more from some record on counts as one.
    """
    metrics = {}
    damaged = self._records.num_damaged
    if damaged is not None:
      metrics['input/skipped_records'] = float(damaged + self._refused)
    if isinstance(self._order, agreed_shapes.AgreedShapes):
      metrics['input/weightless_batches'] = float(self._order.num_weightless)
    return metrics

  def tokenizers(self) -> dict[str, str]:
    """Returns the Params of the generator's tokenizers by their names."""
    named = getattr(self._params, 'tokenizer_dict', None) or {}
    if getattr(self._params, 'tokenizer', None) is not None:
      named = {'': self._params.tokenizer, **named}
    return {
      key: params.ToText()
      for key, params in named.items()
      if params is not None
    }

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns the texts of `ids` [B, T], whose first `lengths` [B] count.

    The tokenizer is the one that the generator has by the name `key`.

    Raises:
      UserError: the generator has no such tokenizer.
    """
    with self._lock:
      return self._live_driver().ids_to_strings(ids, lengths, key)
