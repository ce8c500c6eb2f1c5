"""How a Lingvo input generator is driven: built once, then one call a batch.

Whoever drives does not notice in which of the two `backends` it was built.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import generator_kinds, record_trial
from adaptors.lingvo_input.drivers import (
  backends,
  batch_leaves,
  detokenizing,
  endless,
  source_masks,
)
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# After this time without a first batch it is found out, where that can be,
# whether all of the data is dropped, for ever; after that, a warning is given.
_SECONDS_TO_TRIAL = 5.0
_SECONDS_TO_WARNING = 60.0


class GeneratorDriver:
  """One live input generator; not thread-safe, but of no particular thread.

  Attributes:
    graph: the TensorFlow graph in which it makes batches.
    dropped: paths of the leaves that never become arrays.
    fixed_lengths: of each leaf the size of its second axis, the structure being
      that of the batches; None if it varies.
    static_batch: the batch size that the generator promises for some leaf;
      None if it varies.
    finite: True or False where it is known whether the data ends, else None.
    uses_step: whether batches depend on the training step, such as those of a
      curriculum.
    steps_per_batch: training steps that a batch is for.
    refused_records: how many records the generator refuses, as far as they
      were tried.
  """

  def __init__(
    self,
    *,
    params: Any,
    cluster_options: dict[str, Any],
    infeed_host_index: int = 0,
    num_infeed_hosts: int = 1,
    tells_source: bool = False,
    seed: int | None = None,
    keeps_texts: bool = False,
    first_step: int = 0,
    skips_bad_records: bool = False,
    trial: record_trial.RecordTrial | None = None,
  ):
    """Builds the generator and fetches its first batch.

    Args:
      params: Lingvo Params of the generator; it may change them.
      cluster_options: arguments of `lingvo_runtime.cluster`.
      infeed_host_index: what the generator is told about this host.
      num_infeed_hosts: what it is told about the number of hosts.
      tells_source: whether batches say which data source they come from, if
        sources train different variables.
      seed: of what TensorFlow draws at random; None for no seed.
      keeps_texts: whether leaves of strings stay in batches, as arrays of
        bytes.
      first_step: the training step that the first batch is for.
      skips_bad_records: whether records that the generator refuses are left
        out, and counted, rather than errors.
      trial: tries the records of its readers; None for one that has tried
        nothing yet.

    Raises:
      UserError: the generator works in neither way, or would end the process
        or wait for ever.
    """
    self._tf = lingvo_runtime.module('tensorflow')
    self._settings = backends.Settings(
      name=params.cls.__name__,
      cluster_options=cluster_options,
      infeed_host_index=infeed_host_index,
      num_infeed_hosts=num_infeed_hosts,
      seed=seed,
      skips_bad_records=skips_bad_records,
      trial=trial or record_trial.RecordTrial(),
    )
    self._tells_source = tells_source
    self._keeps_texts = keeps_texts
    self._step = first_step
    self.steps_per_batch = 1
    self._decode: dict[str | None, Callable[..., list[str]]] = {}
    self._way = self._build(params)
    # It does not depend on this object to be closed, in whatever order the
    # process ends.
    weakref.finalize(self, self._way.close_soon).atexit = False
    self.graph = self._way.graph
    self.uses_step = self._way.uses_step
    self.refused_records = self._way.refused_records

  def _build(self, params) -> backends.Way:
    """Returns the first way that gives a batch, which is kept."""
    kinds = [backends.SessionWay, backends.FunctionWay]
    if generator_kinds.is_tf_data(params):
      kinds.reverse()
    name, failures = self._settings.name, []
    for kind in kinds:
      way = kind(self._settings)
      try:
        # Each way gets Params of its own: generators change theirs.
        way.build(params.Copy(), self._tensors)
        self.finite = endless.ends(self._tf, way.graph, way.generator)
        self._first = [self._first_batch(way, params)]
        if failures and self._first == [None]:
          raise errors.UserError('it has no data at all')
        logging.info('%s is driven by a TensorFlow %s', name, way.NAME)
        return way
      except backends.MistakeError as e:
        way.close()
        raise errors.UserError(str(e)) from e.__cause__
      except Exception as e:  # noqa: BLE001 (anything can fail in user code)
        way.close()
        told = errors.one_line(e)
        if lingvo_runtime.is_wrong_name(e):
          place = errors.location_of(e)
          raise errors.UserError(
            f'{name} cannot be built: {told} ({place})'
          ) from e
        logging.info('%s: no %s: %s', name, way.NAME, told)
        failures.append((f'  {way.NAME}: {told}', e))
    told = '\n'.join(line for line, _ in failures)
    raise errors.UserError(
      f'{name} cannot be driven, neither by a TensorFlow session nor by a'
      f' tf.function:\n{told}'
    ) from failures[0][1]

  def _tensors(self, generator: Any, step: Any) -> list[Any]:
    """Returns the tensors of a symbolic batch, and notes its structure."""
    global_step = lingvo_runtime.module(
      'lingvo.core.py_utils'
    ).GlobalStepContext
    with global_step(step):
      batch = generator.GetPreprocessedInputBatch()
    if not isinstance(batch, dict):
      raise errors.UserError(
        f'{type(generator).__name__} gives a {type(batch).__name__} of'
        ' batches, one for each core; only one NestedMap is supported'
      )
    if self._tells_source and source_masks.are_told_apart(generator):
      batch = self._with_source(generator, batch)
    kept, self.dropped = batch_leaves.kept_leaves(
      self._tf, batch, keeps_texts=self._keeps_texts
    )
    tensors, structure = jax.tree.flatten(kept)
    self._places = jax.tree.unflatten(structure, range(len(tensors)))
    self.fixed_lengths = jax.tree.unflatten(
      structure,
      [t.shape[1] if (t.shape.rank or 0) > 1 else None for t in tensors],
    )
    self._has_texts = any(t.dtype == self._tf.string for t in tensors)
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

  def _first_batch(self, way: backends.Way, params) -> list[np.ndarray] | None:
    """Returns the leaves of the first batch, None at the end of the data."""
    # Of a daemon: the process can end though this waits in vain.
    first = futures.Future()
    thread = threading.Thread(
      target=_fulfil,
      args=(first, functools.partial(self._leaves, way)),
      name='first batch',
      daemon=True,
    )
    thread.start()
    try:
      return self._awaited(first, way, params)
    finally:
      thread.join()

  def _awaited(self, first: futures.Future, way: backends.Way, params):
    """Waits for the first batch; finds out, if it can, that none comes."""
    name = self._settings.name
    try:
      return first.result(_SECONDS_TO_TRIAL)
    except futures.TimeoutError:
      if way.cancel and self._has_nothing(params, until=first):
        way.cancel()
        raise backends.MistakeError(
          f'{name} drops all of its data, and would wait for ever: read once,'
          ' in order, it gave no batch; expected some that fits into the'
          ' largest bucket_upper_bound'
        ) from None
    try:
      return first.result(_SECONDS_TO_WARNING)
    except futures.TimeoutError:
      logging.warning(
        '%s has given no batch for more than %d seconds. If it drops all of'
        ' its data, such as what is longer than the largest'
        ' bucket_upper_bound, it will wait for ever',
        name,
        _SECONDS_TO_WARNING,
      )
    return first.result()

  def _has_nothing(self, params, *, until: futures.Future) -> bool:
    """Whether the data, read once and in order, has not one batch.

    False where that cannot be told, or not before `until` is done.
    """
    # Some sources repeat unless in order, others unless in an evaluation.
    ending = {'require_sequential_input_order': True, 'do_eval': True}
    options = {**self._settings.cluster_options, **ending}
    if self.finite or options == self._settings.cluster_options:
      return False
    try:
      once = _OnceDriver(params.Copy(), options, until, self._settings.trial)
    except errors.UserError as e:
      logging.info('cannot be read once and in order: %s', e)
      return False
    once.close()
    return once.is_empty

  def _leaves(self, way: backends.Way) -> list[np.ndarray] | None:
    leaves = way.leaves(self._step)
    if leaves is None:
      return None
    self._step += self.steps_per_batch
    if self._has_texts:
      leaves = [batch_leaves.as_array(x) for x in leaves]
    return leaves

  def next(self) -> NestedMap:
    """Returns the next batch as numpy arrays.

    Raises:
      StopIteration: the data is at its end.
    """
    leaves = self._first.pop() if self._first else self._leaves(self._way)
    if leaves is None:
      self._first = [None]  # The end stays the end.
      raise StopIteration
    return batch_leaves.placed(self._places, leaves)

  def skip(self, count: int) -> int:
    """Reads so many batches on; returns how many there were."""
    for skipped in range(count):
      try:
        self.next()
      except StopIteration:
        return skipped
    return count

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns the texts of `ids` [B, T], whose first `lengths` [B] count.

    Raises:
      UserError: the generator has no tokenizer, or none called `key`.
    """
    if key not in self._decode:
      with self._settings.context():
        self._decode[key] = detokenizing.function(
          self._tf, self._way.generator, self._way.session, key
        )
    return self._decode[key](ids, lengths)

  def close(self):
    """Frees the generator and its threads."""
    self.graph = None
    self._decode = {}
    self._way.close()


def _fulfil(promise: futures.Future, function: Callable[[], Any]):
  try:
    promise.set_result(function())
  except BaseException as e:  # noqa: BLE001 (raised where it is awaited)
    promise.set_exception(e)


class _OnceDriver(GeneratorDriver):
  """Reads data that has an end up to its first batch.

  Attributes:
    is_empty: whether there is none; False where the data has no end.
  """

  def __init__(
    self,
    params: Any,
    options: dict,
    until: futures.Future,
    trial: record_trial.RecordTrial,
  ):
    """Reads.

    Args:
      params: Lingvo Params of the generator; it may change them.
      options: arguments of `lingvo_runtime.cluster`.
      until: what it does not go on after.
      trial: as of a `GeneratorDriver`.

    Raises:
      UserError: as for a `GeneratorDriver`.
    """
    self._until = until
    super().__init__(params=params, cluster_options=options, trial=trial)

  def _first_batch(self, way, params):
    self.is_empty = False
    if not self.finite or not way.cancel:
      return []
    cancel = way.cancel
    self._until.add_done_callback(lambda _: cancel())
    try:
      first = self._leaves(way)
    except self._tf.errors.CancelledError:
      return []
    self.is_empty = first is None
    return first
