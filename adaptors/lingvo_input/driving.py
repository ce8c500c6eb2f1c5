"""How a Lingvo input generator is driven: built once, then one call a batch.

Most generators refuse TensorFlow's eager mode, so a generator is built with
Lingvo's own eager flag off (TensorFlow's stays as it is) in one of two ways:

  * session: in a graph of its own, with one session, for what reads records;
  * function: as a traced `tf.function`, for `tf.data` sources, and where the
    first way fails.

Whoever drives does not notice which it is.
"""

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import (
  lingvo_runtime,
  record_copies,
)
from adaptors.lingvo_input import (
  batch_leaves,
  detokenizing,
  endless,
  generator_kinds,
  reader_params,
  record_probe,
  record_trial,
  repairs,
  source_masks,
)
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# What has no batch after this time may drop all of its data, for ever.
_SECONDS_TO_FIRST_BATCH = 60.0

# How far a reader is read on at most before it is closed: seconds, not hours.
_BATCHES_TO_DRAIN = 10_000


class GeneratorDriver:
  """One live input generator; not thread-safe, but of no particular thread.

  Attributes:
    generator: the Lingvo object.
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

    Raises:
      UserError: the generator works in neither way, or would end the process
        or wait for ever.
    """
    self._tf = lingvo_runtime.module('tensorflow')
    self._options = cluster_options
    self._infeed = (infeed_host_index, num_infeed_hosts)
    self._tells_source = tells_source
    self._seed = seed
    self._keeps_texts = keeps_texts
    self._step = first_step
    self._skips_bad_records = skips_bad_records
    self.steps_per_batch = 1
    self._first = None
    self._session = self.generator = self.graph = None
    self._must_be_drained = self._comes_to_an_end = False
    self._cancel: Callable[[], None] | None = None
    self._call_after_first: Callable[[int], list[np.ndarray]] | None = None
    self._call: Callable[[int], list[np.ndarray]] | None = None
    self._decode: dict[str | None, Callable[..., list[str]]] = {}
    self._build(params)
    _live.add(self)

  def _build(self, params):
    ways = [
      ('session', self._build_session),
      ('function', self._build_function),
    ]
    if generator_kinds.is_tf_data(params):
      ways.reverse()
    name, failures = params.cls.__name__, []
    for way, build in ways:
      try:
        # Each way gets Params of its own: generators change theirs.
        build(params.Copy(), name)
        self._first = [self._first_batch(name, params)]
        self._call = self._call_after_first or self._call
        if failures and self._first == [None]:
          raise errors.UserError('it has no data at all')
        logging.info('%s is driven by a TensorFlow %s', name, way)
        return
      except _MistakeError as e:
        self.close()
        raise errors.UserError(str(e)) from e.__cause__
      except Exception as e:  # noqa: BLE001 (anything can fail in user code)
        logging.info('%s: no %s: %s', name, way, errors.one_line(e))
        failures.append((way, e))
        self.close()
    told = '\n'.join(f'  {way}: {errors.one_line(e)}' for way, e in failures)
    raise errors.UserError(
      f'{name} cannot be driven, neither by a TensorFlow session nor by a'
      f' tf.function:\n{told}'
    ) from failures[0][1]

  def _build_session(self, params, name):
    tf = self._tf
    graph = tf.Graph()
    with graph.as_default(), self._lingvo_context(), tf.device('/cpu:0'):
      self._set_seed()
      self.generator = params.Instantiate()
      step = tf.compat.v1.placeholder(tf.int64, [])
      fetches = self._note_structure(self._symbolic_batch(step))
      self.uses_step = bool(step.consumers())
      probes = self._probes(name, graph)
      self._session = tf.compat.v1.Session(graph=graph)
      self._session.run(
        [
          tf.compat.v1.global_variables_initializer(),
          tf.compat.v1.local_variables_initializer(),
          tf.compat.v1.tables_initializer(),
        ]
      )
      self.generator.Initialize(self._session)
      if self.uses_step:
        self._call = self._session.make_callable(fetches, feed_list=[step])
      else:
        fetch = self._session.make_callable(fetches)
        self._call = lambda step: fetch()
    self._note_end(graph)
    with _mistake():
      for probe in probes:
        probe.run(self._session)
        record_trial.check(
          name,
          probe.reader,
          functools.partial(probe.processed, self._session),
          skip=self._skips_bad_records,
        )

  def _probes(self, name, graph) -> list[record_probe.Probe]:
    """Checks the readers of a graph, and returns what tries their records."""
    with _mistake():
      return [
        record_probe.Probe(tf=self._tf, name=name, reader=reader)
        for reader in self._checked_readers(name, graph)
      ]

  def _checked_readers(self, name, graph) -> list[reader_params.Reader]:
    with _mistake():
      readers = reader_params.readers(self._tf, graph.as_graph_def())
      for reader in readers:
        reader_params.check_reader(name, reader)
    return readers

  def _build_function(self, params, name):
    tf = self._tf
    with self._lingvo_context(), tf.device('/cpu:0'):
      self.generator = params.Instantiate()
      number = tf.Variable(0, dtype=tf.int64, trainable=False)

      def next_batch():
        step = number.read_value()
        self._set_seed()
        tensors = self._note_structure(self._symbolic_batch(step))
        self.uses_step = bool(step.consumers())
        return tensors

      traced = tf.function(next_batch, autograph=False).get_concrete_function()
    self._checked_readers(name, traced.graph)

    def leaves(function, step):
      if self.uses_step:
        number.assign(step)
      return [x.numpy() for x in function()]

    cancellation = lingvo_runtime.module('tensorflow.python.eager.cancellation')
    manager = cancellation.CancellationManager()
    self._cancel = manager.start_cancel
    # Only the first batch may be waited for in vain; the others are called in
    # the way that costs less.
    first = manager.get_cancelable_function(traced)
    self._call = functools.partial(leaves, first)
    self._call_after_first = functools.partial(leaves, traced)
    self._note_end(traced.graph)

  def _set_seed(self):
    if self._seed is not None:
      self._tf.compat.v1.set_random_seed(self._seed)

  def _symbolic_batch(self, step) -> Any:
    with lingvo_runtime.module('lingvo.core.py_utils').GlobalStepContext(step):
      batch = self.generator.GetPreprocessedInputBatch()
    told = self._tells_source and isinstance(batch, dict)
    if not told or not source_masks.are_told_apart(self.generator):
      return batch
    if self._infeed[1] > 1:
      raise errors.UserError(
        f'the input has bprop_variable_filters, and {self._infeed[1]} hosts'
        ' would each draw a batch from another source; expected one infeed host'
      )
    return source_masks.with_source(self.generator, batch)

  def _lingvo_context(self):
    return _lingvo_context(self._options, self._infeed)

  def _note_structure(self, batch) -> list[Any]:
    """Notes the structure of a symbolic batch; returns its tensors."""
    if not isinstance(batch, dict):
      raise errors.UserError(
        f'{type(self.generator).__name__} gives a {type(batch).__name__} of'
        ' batches, one for each core; only one NestedMap is supported'
      )
    kept, self.dropped = batch_leaves.kept_leaves(
      self._tf, batch, keeps_texts=self._keeps_texts
    )
    tensors, self._treedef = jax.tree.flatten(kept)
    self.fixed_lengths = jax.tree.unflatten(
      self._treedef,
      [t.shape[1] if (t.shape.rank or 0) > 1 else None for t in tensors],
    )
    sizes = [t.shape[0] for t in tensors if t.shape.rank]
    self.static_batch = max((n for n in sizes if n), default=None)
    return tensors

  def _note_end(self, graph):
    """Notes whether the data ends."""
    self.graph = graph
    self.finite = endless.ends(self._tf, graph, self.generator)
    readers = reader_params.readers(self._tf, graph.as_graph_def())
    self._comes_to_an_end = any(reader.ends() for reader in readers)

  def _first_batch(self, name, params) -> list[np.ndarray] | None:
    """Returns the leaves of the first batch, None at the end of the data."""
    with futures.ThreadPoolExecutor(1) as pool:
      first = pool.submit(self._leaves)
      try:
        return first.result(_SECONDS_TO_FIRST_BATCH)
      except futures.TimeoutError:
        logging.warning(
          '%s has given no batch for %d seconds. If it drops all of its data,'
          ' such as what is longer than the largest bucket_upper_bound, it will'
          ' wait for ever',
          name,
          _SECONDS_TO_FIRST_BATCH,
        )
        if self._cancel and self._has_nothing(params):
          self._cancel()
          raise _MistakeError(
            f'{name} drops all of its data, and would wait for ever: read once,'
            ' in order, it gave no batch; expected some that fits into the'
            ' largest bucket_upper_bound'
          ) from None
        return first.result()

  def _has_nothing(self, params) -> bool:
    """Whether the data, read once and in order, has not one batch.

    False where that cannot be told.
    """
    # Some sources repeat unless in order, others unless in an evaluation.
    ending = {'require_sequential_input_order': True, 'do_eval': True}
    options = {**self._options, **ending}
    if self.finite or options == self._options:
      return False
    try:
      once = _OnceDriver(params=params.Copy(), cluster_options=options)
    except errors.UserError as e:
      logging.info('cannot be read once and in order: %s', e)
      return False
    once.close()
    return once.is_empty

  def _leaves(self) -> list[np.ndarray] | None:
    self._must_be_drained = self._comes_to_an_end  # Now it starts.
    try:
      leaves = self._call(self._step)
    except self._tf.errors.OutOfRangeError:
      return None
    self._step += self.steps_per_batch
    return [batch_leaves.as_array(x) for x in leaves]

  def next(self) -> NestedMap:
    """Returns the next batch as numpy arrays.

    Raises:
      StopIteration: the data is at its end.
    """
    leaves = self._first.pop() if self._first else self._leaves()
    if leaves is None:
      self._first = [None]  # The end stays the end.
      raise StopIteration
    return jax.tree.unflatten(self._treedef, leaves)

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
      with self._lingvo_context():
        self._decode[key] = detokenizing.function(
          self._tf, self.generator, self._session, key
        )
    return self._decode[key](ids, lengths)

  def close(self):
    """Frees the generator and its threads."""
    if self._must_be_drained and self._call is not None:
      self._drain()
    if self._session is not None:
      self._session.close()
    self._session = self._call = self.generator = self.graph = None
    self._cancel = self._call_after_first = None
    self._decode = {}
    _live.discard(self)

  def __del__(self):
    self.close()

  def _drain(self):
    """Reads on to the end of the data.

    A reader that has met the end of its data, with batches that nobody took,
    never returns from its destruction.
    """
    if self._first == [None]:
      return
    self._must_be_drained = False
    for _ in range(_BATCHES_TO_DRAIN):
      # What is read is thrown away, and so are its errors.
      with contextlib.suppress(Exception):
        if self._leaves() is None:
          return
    logging.info(
      'closing after %d more batches, before the end of the data',
      _BATCHES_TO_DRAIN,
    )


class _OnceDriver(GeneratorDriver):
  """Reads data that has an end up to its first batch.

  Attributes:
    is_empty: whether there is none; False where the data has no end.
  """

  def _first_batch(self, name, params):
    first = self._leaves() if self.finite else []
    self.is_empty = first is None
    return first


# What is still open when the process ends; see `GeneratorDriver._drain`.
_live: weakref.WeakSet[GeneratorDriver] = weakref.WeakSet()


@atexit.register
def _close_all():
  for driver in list(_live):
    driver.close()
  record_copies.remove_all()


@contextlib.contextmanager
def _lingvo_context(cluster_options: dict[str, Any], infeed: tuple[int, int]):
  """Enters cluster and infeed context, with Lingvo's eager flag off."""
  cluster = lingvo_runtime.module('lingvo.core.cluster')
  with (
    lingvo_runtime.eager_flag(False),
    lingvo_runtime.cluster(**cluster_options),
    repairs.repaired(),
    cluster.InfeedContextScope(
      infeed_host_index=infeed[0], num_infeed_hosts=infeed[1]
    ),
  ):
    yield


class _MistakeError(Exception):
  """A user's mistake that no other way of driving would mend."""


@contextlib.contextmanager
def _mistake():
  try:
    yield
  except errors.UserError as e:
    raise _MistakeError(*e.args) from e
