"""Feeds a Lingvo input generator to JAX."""

import hashlib
import threading
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import (
  lingvo_input_checks,
  lingvo_input_driver,
  lingvo_input_hosts,
  lingvo_input_shapes,
)
from pax_compat import base_input, config, errors
from pax_compat.nested_map import NestedMap


def derive_seed(seed: int, host: int, step: int) -> int:
  """Returns a seed of 1 to 2^31 - 2, another one for each host and step."""
  told = f'{seed}:{host}:{step}'.encode()
  number = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), 'big')
  return 1 + number % (2**31 - 2)


class LingvoInputAdaptor(base_input.BaseInput):
  """Gives the batches of a Lingvo input generator as numpy arrays.

  The generator decides on the batch size, so `batch_size` stays None. Batches
  are NestedMaps of the generator's leaves, less strings and other things that
  no device takes, plus `eval_sample_weights` [B] where it supplies none, and
  in training `source_selected` [B, sources] where the generator's data sources
  train different variables.

  Attributes:
    input: Lingvo Params of the generator. They are copied, never changed.
    num_batches: how many batches to give before StopIteration; None for all.
    allow_fixed_file_random_seed: whether training may use a `file_random_seed`
      other than 0.
    cluster_do_eval: whether the generator of an eval input finds `do_eval` set
      in Lingvo's cluster.
    xla_device: what Lingvo's cluster says: 'cpu', or 'tpu' for static shapes
      where a generator makes a difference.
    pad_to_bucket_bounds: whether batches of an input with several buckets are
      cut or extended to the bound of their bucket.
    split_files: whether each of several hosts reads files of its own, where a
      pattern matches as many files as there are hosts. For generators of
      records that see to it themselves it is to be False.

  Raises:
    UserError: the fields do not go together, or the input's files are missing,
      empty, or hold nothing that fits into its buckets.
  """

  input: Any = config.REQUIRED
  num_batches: int | None = None
  allow_fixed_file_random_seed: bool = False
  cluster_do_eval: bool = False
  xla_device: str = 'cpu'
  pad_to_bucket_bounds: bool = True
  split_files: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._check_fields()
    self._params = self._own_params()
    self._seed = getattr(self._params, 'file_random_seed', 0)
    if self._seed and self.num_infeed_hosts > 1 and self._hosts_differ():
      self._params.file_random_seed = self._host_seed(step=0)
    lingvo_input_checks.check_input(self._told_name(), self._params)
    if self.split_files and self.num_infeed_hosts > 1 and self._hosts_differ():
      lingvo_input_hosts.split_files(
        self._told_name(),
        self._params,
        self.num_infeed_hosts,
        self.infeed_host_index,
      )
    self._buckets = self._make_buckets()
    # Batches are fetched by another thread than the one that builds or closes.
    self._lock = threading.RLock()
    self._driver = None
    self._closed = False
    self._produced = 0
    self._told = set()

  def _make_buckets(self) -> lingvo_input_shapes.Buckets:
    # Hosts draw from different buckets, yet form one global batch.
    several = len(getattr(self._params, 'bucket_upper_bound', ())) > 1
    one_shape = self.num_infeed_hosts > 1 and self._hosts_differ()
    if one_shape and several:
      logging.info(
        '%s: with %d hosts all buckets share the shape of the largest',
        self._told_name(),
        self.num_infeed_hosts,
      )
    return lingvo_input_shapes.Buckets(
      self._params,
      fit_lengths=self.pad_to_bucket_bounds,
      one_shape=one_shape,
    )

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
    if not 0 <= self.infeed_host_index < self.num_infeed_hosts:
      raise errors.UserError(
        f'{self._told_name()}: infeed_host_index is {self.infeed_host_index}'
        f' of {self.num_infeed_hosts} hosts'
      )
    self._check_batch_size()
    seed = getattr(self.input, 'file_random_seed', 0)
    if self.is_training and seed and not self.allow_fixed_file_random_seed:
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
    return True

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
      'require_sequential_input_order': finite,
      'xla_device': self.xla_device,
    }

  def _infeed_context(self) -> dict[str, int]:
    """Returns what the generator is told about hosts."""
    return {
      'infeed_host_index': self.infeed_host_index,
      'num_infeed_hosts': self.num_infeed_hosts,
    }

  def _log_once(self, text: str, *args):
    if text not in self._told:
      self._told.add(text)
      logging.info('%s: ' + text, self._told_name(), *args)

  def _build(self) -> lingvo_input_driver.GeneratorDriver:
    return lingvo_input_driver.GeneratorDriver(
      params=self._params.Copy(),
      cluster_options=self._cluster_options(),
      tells_source=self.is_training,
      **self._infeed_context(),
    )

  def _live_driver(self) -> lingvo_input_driver.GeneratorDriver:
    """Returns the driver, built at the first need."""
    if self._closed:
      raise RuntimeError(f'{self._told_name()} is closed')
    if self._driver is None:
      self._driver = self._build()
      if self._driver.dropped:
        self._log_once(
          'dropped from batches, as no device takes them: %s',
          ', '.join(self._driver.dropped),
        )
    return self._driver

  def get_next(self) -> NestedMap:
    """Returns the next batch: numpy arrays with the batch axis first.

    Raises:
      StopIteration: the data is at its end, or `num_batches` were given.
    """
    with self._lock:
      if self.num_batches is not None and self._produced >= self.num_batches:
        raise StopIteration
      batch = self._next_batch()
      self._produced += 1
      return batch

  def _next_batch(self) -> NestedMap:
    """Returns the next batch, of the shape of its bucket."""
    batch = self._read()
    rows = lingvo_input_shapes.batch_rows(batch)
    batch = self._buckets.fit(batch)
    added = (lingvo_input_shapes.batch_rows(batch) or 0) - (rows or 0)
    if added:
      self._log_once(
        'a batch came short, of %d examples, and got %d rows of weight 0; so'
        ' will others',
        rows,
        added,
      )
    return batch

  def _read(self) -> NestedMap:
    """Returns the generator's next batch with `eval_sample_weights`."""
    batch = self._live_driver().next()
    if 'eval_sample_weights' not in batch:
      # Leaves may disagree where some are not by example: the first decides.
      sizes = [x.shape[0] for x in jax.tree.leaves(batch) if x.ndim]
      batch.eval_sample_weights = np.ones(sizes[:1] or [1], np.float32)
    return batch

  def reset(self):
    """Starts again with a new generator; the order is a new one, too, if the
    generator shuffles at random."""
    with self._lock:
      self._free()
      self._produced = 0

  def close(self):
    """Frees the generator: its session and its threads."""
    with self._lock:
      self._closed = True
      self._free()

  def _free(self):
    if self._driver is not None:
      self._driver.close()
      self._driver = None

  def resume_at(self, step: int):
    """Reads in another order after a restart; see the log for what it does.

    Lingvo's readers cannot be positioned, so exact continuation is impossible.

    Args:
      step: how many batches were consumed before; 0 changes nothing.
    """
    if step <= 0:
      return
    name = self.input.cls.__name__
    with self._lock:
      if self._seed:
        self._params.file_random_seed = self._host_seed(step)
        self._free()
      sequential = getattr(self._params, 'repeat_count', -1) != -1
    if sequential:
      told = 'it reads its files from the start, in order'
    elif self._seed:
      told = (
        f'it reads a fresh shuffle, of file_random_seed'
        f' {self._params.file_random_seed} (from {self._seed}, step {step} and'
        f' host {self.infeed_host_index})'
      )
    else:
      told = 'it reads a fresh random order, as file_random_seed is 0'
    logging.info(
      '%s cannot be positioned at batch %d: after this restart %s',
      name,
      step,
      told,
    )

  def shapes(self) -> list[tuple[int, int | None]]:
    """Returns the (batch, time) of each bucket, as far as they are known."""
    return self._buckets.shapes()

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
