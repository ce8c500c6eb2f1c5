"""A live Lingvo input generator: built once, then one call for each batch.

It hides which of the two `backends` the generator uses.
"""

import functools
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import generator_kinds
from adaptors.lingvo_input.drivers import (
  backends,
  batch_leaves,
  detokenizing,
  end_of_data,
  endless,
  source_masks,
  tokenizing,
)
from pax_compat import errors
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.nested_map import NestedMap

# Without a first batch after the first time, the data is read once and in order
# to see if all of it is dropped. After the second time a warning is logged.
_SECONDS_TO_TRIAL = 5.0
_SECONDS_TO_WARNING = 60.0

# The line of an error of TensorFlow that names it.
_MISSING_FILE = re.compile(r'.*(?:No such file|any matching files).*')


class GeneratorDriver:
  """A live input generator; any thread may use it, one at a time.

  Attributes:
    graph: the TensorFlow graph of its batches.
    dropped: paths of the leaves that do not become arrays.
    fixed_lengths: the size of the second axis of each leaf, in the structure of
      a batch; None if it varies.
    static_batch: the static batch size of some leaf; None if it varies.
    finite: whether the data ends; None if unknown.
    uses_step: whether batches depend on the training step, such as those of a
      curriculum.
    steps_per_batch: number of training steps that use a batch.
    refused_records: number of records that the generator refuses, of those
      that were tried.
  """

  def __init__(
    self,
    *,
    params: Any,
    settings: backends.Settings,
    adds_source: bool = False,
    keeps_strings: bool = False,
    first_step: int = 0,
  ):
    """Builds the generator and fetches its first batch.

    Args:
      params: Lingvo Params of the generator; it may change them.
      settings: what it finds while it is built.
      adds_source: whether batches get `source_selected`, if data sources train
        different variables.
      keeps_strings: whether string leaves stay in batches, as arrays of bytes.
      first_step: the training step of the first batch.

    Raises:
      UserError: both backends fail, or the generator would end the process or
        wait forever.
    """
    self._tf = lingvo_runtime.module('tensorflow')
    self._settings = settings
    self._adds_source = adds_source
    self._keeps_strings = keeps_strings
    self._step = first_step
    self.steps_per_batch = 1
    self._decode: dict[str | None, Callable[..., list[str]]] = {}
    self._backend = self._build(params)
    # The backend closes itself at exit, in any order of destruction.
    weakref.finalize(self, self._backend.close_soon).atexit = False
    self.graph = self._backend.graph
    self.uses_step = self._backend.uses_step
    self.refused_records = self._backend.refused_records

  def _build(self, params) -> backends.Backend:
    """Returns the first backend that returns a batch, which is kept."""
    kinds = [backends.SessionBackend, backends.FunctionBackend]
    if generator_kinds.is_tf_data(params):
      kinds.reverse()
    name, failures = self._settings.name, []
    for kind in kinds:
      backend = kind(self._settings)
      try:
        # Each backend gets a copy of the Params: generators change theirs.
        backend.build(params.Copy(), self._tensors)
        self.finite = endless.ends(self._tf, backend.graph, backend.generator)
        self._first = [self._first_batch(backend, params)]
        if failures and self._first == [None]:
          raise errors.UserError('it has no data')
        # Most are driven by sessions.
        is_usual = backend.NAME == backends.SessionBackend.NAME
        level = logging.DEBUG if is_usual else logging.INFO
        logging.log(
          level, '%s is driven by a TensorFlow %s', name, backend.NAME
        )
        return backend
      except backends.NotRetriable as e:
        backend.close()
        raise errors.UserError(str(e)) from e.__cause__
      except Exception as e:  # noqa: BLE001 (anything can fail in user code)
        backend.close()
        reason = errors.one_line(e)
        if lingvo_runtime.is_wrong_name(e):
          place = errors.location_of(e)
          raise errors.UserError(
            f'{name} cannot be built: {reason} ({place})'
          ) from e
        if missing := self._missing_file(e):
          raise errors.UserError(f'{name} lacks a file: {missing}') from e
        logging.info('%s: no %s: %s', name, backend.NAME, reason)
        failures.append((f'  {backend.NAME}: {reason}', e))
    reasons = '\n'.join(line for line, _ in failures)
    raise errors.UserError(
      f'{name} cannot be driven, neither by a TensorFlow session nor by a'
      f' tf.function:\n{reasons}'
    ) from failures[0][1]

  def _missing_file(self, error: Exception) -> str:
    """Returns the line that says which file is missing; '' if none is."""
    if not isinstance(error, self._tf.errors.NotFoundError):
      return ''
    found = _MISSING_FILE.search(str(error))
    return found.group().strip() if found else ''

  def _tensors(self, generator: Any, step: Any) -> list[Any]:
    """Returns the tensors of a symbolic batch, and keeps its structure."""
    global_step = lingvo_runtime.module(
      'lingvo.core.py_utils'
    ).GlobalStepContext
    with global_step(step):
      batch = generator.GetPreprocessedInputBatch()
    if not isinstance(batch, dict):
      raise errors.UserError(
        f'{type(generator).__name__} returns a {type(batch).__name__} of'
        ' batches, one for each core; only one NestedMap is supported'
      )
    if self._adds_source and source_masks.are_needed(generator):
      batch = self._with_source(generator, batch)
    kept, self.dropped = batch_leaves.kept_leaves(
      self._tf, batch, keeps_strings=self._keeps_strings
    )
    tensors, structure = jax.tree.flatten(kept)
    self._structure = jax.tree.unflatten(structure, range(len(tensors)))
    self.fixed_lengths = jax.tree.unflatten(
      structure,
      [t.shape[1] if (t.shape.rank or 0) > 1 else None for t in tensors],
    )
    self._has_strings = any(t.dtype == self._tf.string for t in tensors)
    sizes = [t.shape[0] for t in tensors if t.shape.rank]
    self.static_batch = max((n for n in sizes if n), default=None)
    return tensors

  def _with_source(self, generator, batch):
    hosts = self._settings.num_infeed_hosts
    if hosts > 1:
      raise errors.UserError(
        f'the input has bprop_variable_filters, and {hosts} hosts would each'
        ' draw a batch from another source; expected one infeed host'
      )
    return source_masks.with_source(generator, batch)

  def _first_batch(
    self, backend: backends.Backend, params
  ) -> list[np.ndarray] | None:
    """Returns the leaves of the first batch, None at the end of the data."""
    # A daemon thread: the process can exit while it waits.
    first = futures.Future()
    thread = threading.Thread(
      target=_fulfil,
      args=(first, functools.partial(self._leaves, backend)),
      name='first batch',
      daemon=True,
    )
    thread.start()
    try:
      return self._awaited(first, backend, params)
    finally:
      thread.join()

  def _awaited(self, first: futures.Future, backend: backends.Backend, params):
    """Waits for the first batch; raises if it is known never to come."""
    name = self._settings.name
    try:
      return first.result(_SECONDS_TO_TRIAL)
    except futures.TimeoutError:
      if backend.cancel and self._has_nothing(params, until=first):
        backend.cancel()
        raise backends.NotRetriable(
          f'{name} drops all of its data, and would wait forever: read once,'
          ' in order, it returned no batch; expected examples that fit into the'
          ' largest bucket_upper_bound'
        ) from None
    try:
      return first.result(_SECONDS_TO_WARNING)
    except futures.TimeoutError:
      logging.warning(
        '%s has returned no batch for more than %d seconds. If it drops all of'
        ' its data, such as examples longer than the largest'
        ' bucket_upper_bound, it will wait forever',
        name,
        _SECONDS_TO_WARNING,
      )
    return first.result()

  def _has_nothing(self, params, *, until: futures.Future) -> bool:
    """Whether the data, read once and in order, has no batch.

    False if unknown, or if `until` is done first.
    """
    # Some sources repeat unless in order, others unless in an evaluation.
    ending = {'require_sequential_input_order': True, 'do_eval': True}
    options = {**self._settings.cluster_options, **ending}
    if self.finite or options == self._settings.cluster_options:
      return False
    settings = backends.Settings(
      self._settings.name, options, trial=self._settings.trial
    )
    try:
      once = _OnceDriver(params.Copy(), settings, until)
    except errors.UserError as e:
      logging.info('cannot be read once and in order: %s', e)
      return False
    once.close()
    return once.is_empty

  def _leaves(self, backend: backends.Backend) -> list[np.ndarray] | None:
    leaves = backend.leaves(self._step)
    if leaves is None:
      return None
    self._step += self.steps_per_batch
    if self._has_strings:
      leaves = [batch_leaves.as_array(x) for x in leaves]
    return leaves

  def next(self) -> NestedMap:
    """Returns the next batch as numpy arrays.

    Raises:
      StopIteration: the data is at its end.
    """
    leaves = self._first.pop() if self._first else self._leaves(self._backend)
    if leaves is None:
      self._first = [None]  # The end stays the end.
      raise end_of_data.error(self._backend.end)
    return batch_leaves.unflatten(self._structure, leaves)

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns the strings of `ids` [B, T]; `lengths` [B] of them are real.

    Raises:
      UserError: the generator has no tokenizer, or none called `key`.
    """
    if key not in self._decode:
      with self._settings.context():
        self._decode[key] = detokenizing.function(
          self._tf, self._backend.generator, self._backend.session, key
        )
    return self._decode[key](ids, lengths)

  def prompts(
    self, strings: Sequence[str], key: str | None = None
  ) -> prompts_lib.Prompts:
    """Returns the tokens of prompts; see `BaseInput.prompts`.

    Raises:
      UserError: the generator has no tokenizer, or none called `key`.
    """
    with self._settings.context():
      return tokenizing.prompts(
        self._tf, self._backend.generator, self._backend.session, strings, key
      )

  def close(self):
    """Frees the generator and its threads."""
    self.graph = None
    self._decode = {}
    self._backend.close()


def _fulfil(promise: futures.Future, function: Callable[[], Any]):
  try:
    promise.set_result(function())
  except BaseException as e:  # noqa: BLE001 (raised where it is awaited)
    promise.set_exception(e)


class _OnceDriver(GeneratorDriver):
  """Reads finite data up to its first batch.

  Attributes:
    is_empty: whether it has no batch; False if the data is endless.
  """

  def __init__(
    self, params: Any, settings: backends.Settings, until: futures.Future
  ):
    """Reads.

    Args:
      params: Lingvo Params of the generator; it may change them.
      settings: what it finds while it is built.
      until: reading is cancelled when this is done.

    Raises:
      UserError: as for a `GeneratorDriver`.
    """
    self._until = until
    super().__init__(params=params, settings=settings)

  def _first_batch(self, backend, params):
    self.is_empty = False
    if not self.finite or not backend.cancel:
      return []
    cancel = backend.cancel
    self._until.add_done_callback(lambda _: cancel())
    try:
      first = self._leaves(backend)
    except self._tf.errors.CancelledError:
      return []
    self.is_empty = first is None
    return first
