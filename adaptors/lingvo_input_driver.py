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
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import lingvo_input_sources, lingvo_runtime
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# The reader waits for ever where it drops every record; say so after a while.
_SECONDS_TO_FIRST_BATCH = 60.0

# How far a reader is read on at most before it is closed: seconds, not hours.
_BATCHES_TO_DRAIN = 10_000

# Reader ops of Lingvo, which tell whether their data comes to an end.
_READER_OPS = ('GenericInput', 'GenericInputV2Create')


class GeneratorDriver:
  """One live input generator; not thread-safe, but of no particular thread.

  Attributes:
    generator: the Lingvo object.
    dropped: paths of the leaves that never become arrays, such as strings.
    static_batch: the batch size that the generator promises for some leaf;
      None if it varies.
    finite: True or False where it is known whether the data ends, else None.
  """

  def __init__(
    self,
    *,
    params: Any,
    cluster_options: dict[str, Any],
    infeed_host_index: int = 0,
    num_infeed_hosts: int = 1,
    tells_source: bool = False,
  ):
    """Builds the generator and fetches its first batch.

    Args:
      params: Lingvo Params of the generator; it may change them.
      cluster_options: arguments of `lingvo_runtime.cluster`.
      infeed_host_index: what the generator is told about this host.
      num_infeed_hosts: what it is told about the number of hosts.
      tells_source: whether batches say which data source they come from, if
        sources train different variables.

    Raises:
      UserError: the generator works in neither way.
    """
    self._tf = lingvo_runtime.module('tensorflow')
    self._options = cluster_options
    self._infeed = (infeed_host_index, num_infeed_hosts)
    self._tells_source = tells_source
    self._first = None
    self._session = self.generator = None
    self._must_be_drained = False
    self._call: Callable[[], list[np.ndarray]] | None = None
    self._decode: dict[str | None, Callable[..., list[bytes]]] = {}
    self._build(params)
    _live.add(self)

  def _build(self, params):
    ways = [
      ('session', self._build_session),
      ('function', self._build_function),
    ]
    if is_tf_data(params):
      ways.reverse()
    name, failures = params.cls.__name__, []
    for way, build in ways:
      try:
        # Each way gets Params of its own: generators change theirs.
        build(params.Copy())
        self._first = [self._first_batch(name)]
        logging.info('%s is driven by a TensorFlow %s', name, way)
        return
      except Exception as e:  # noqa: BLE001 (anything can fail in user code)
        logging.info('%s: no %s: %s', name, way, _one_line(e))
        failures.append((way, e))
        self.close()
    told = '\n'.join(f'  {way}: {_one_line(e)}' for way, e in failures)
    raise errors.UserError(
      f'{name} cannot be driven, neither by a TensorFlow session nor by a'
      f' tf.function:\n{told}'
    ) from failures[0][1]

  def _build_session(self, params):
    tf = self._tf
    graph = tf.Graph()
    with graph.as_default(), self._lingvo_context(), tf.device('/cpu:0'):
      self.generator = params.Instantiate()
      fetches = self._note_structure(self._symbolic_batch())
      self._session = tf.compat.v1.Session(graph=graph)
      self._session.run(
        [
          tf.compat.v1.global_variables_initializer(),
          tf.compat.v1.local_variables_initializer(),
          tf.compat.v1.tables_initializer(),
        ]
      )
      self.generator.Initialize(self._session)
      self._call = self._session.make_callable(fetches)
    self._note_end(graph)

  def _build_function(self, params):
    tf = self._tf
    with self._lingvo_context(), tf.device('/cpu:0'):
      self.generator = params.Instantiate()

      def next_batch():
        return self._note_structure(self._symbolic_batch())

      traced = tf.function(next_batch, autograph=False).get_concrete_function()
    self._call = lambda: [x.numpy() for x in traced()]
    self._note_end(traced.graph)

  def _symbolic_batch(self) -> Any:
    batch = self.generator.GetPreprocessedInputBatch()
    told = self._tells_source and isinstance(batch, dict)
    if not told or not lingvo_input_sources.are_told_apart(self.generator):
      return batch
    if self._infeed[1] > 1:
      raise errors.UserError(
        f'the input has bprop_variable_filters, and {self._infeed[1]} hosts'
        ' would each draw a batch from another source; expected one infeed host'
      )
    return lingvo_input_sources.with_source(self.generator, batch)

  def _lingvo_context(self):
    return _lingvo_context(self._options, self._infeed)

  def _note_structure(self, batch) -> list[Any]:
    """Notes the structure of a symbolic batch; returns its tensors."""
    if not isinstance(batch, dict):
      raise errors.UserError(
        f'{type(self.generator).__name__} gives a {type(batch).__name__} of'
        ' batches, one for each core; only one NestedMap is supported'
      )
    self.dropped = []
    tensors, self._treedef = jax.tree.flatten(
      _numeric_leaves(self._tf, batch, '', self.dropped)
    )
    sizes = [t.shape[0] for t in tensors if t.shape.rank]
    self.static_batch = max((n for n in sizes if n), default=None)
    return tensors

  def _note_end(self, graph):
    """Notes whether the data ends: by the reader ops, or by the tf.data set."""
    repeats = _repeat_counts(graph)
    if repeats:
      self.finite = all(count > 0 for count in repeats)
    else:
      self.finite = _dataset_is_finite(self.generator)
    self._must_be_drained = any(count > 0 for count in repeats)

  def _first_batch(self, name) -> list[np.ndarray] | None:
    """Returns the leaves of the first batch, None at the end of the data."""
    watchdog = threading.Timer(
      _SECONDS_TO_FIRST_BATCH,
      logging.warning,
      (
        '%s has given no batch for %d seconds. If every record is longer than'
        ' its largest bucket_upper_bound, it will wait for ever',
        name,
        _SECONDS_TO_FIRST_BATCH,
      ),
    )
    watchdog.daemon = True
    watchdog.start()
    try:
      return self._leaves()
    finally:
      watchdog.cancel()
      watchdog.join()

  def _leaves(self) -> list[np.ndarray] | None:
    try:
      return self._call()
    except self._tf.errors.OutOfRangeError:
      return None

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

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns the texts of `ids` [B, T], whose first `lengths` [B] count.

    Raises:
      UserError: the generator has no tokenizer, or none called `key`.
    """
    if not hasattr(self.generator, 'IdsToStrings'):
      raise errors.UserError(
        f'{type(self.generator).__name__} has no IdsToStrings, so its ids'
        ' cannot be turned into text'
      )
    if key not in self._decode:
      with self._lingvo_context():
        self._decode[key] = self._build_decode(self._decoder(key))
    ids = np.asarray(ids, np.int32)
    texts = self._decode[key](ids, np.asarray(lengths, np.int32))
    return [t.decode('utf-8', errors='replace') for t in texts]

  def _decoder(self, key: str | None):
    """Returns the generator's own function, with the tokenizer chosen."""
    if key is None:
      return self.generator.IdsToStrings

    def decode(ids, lengths):
      try:
        return self.generator.IdsToStrings(ids, lengths, key=key)
      except KeyError:
        known = getattr(self.generator, 'tokenizer_dict', {})
        raise errors.UserError(
          f'{type(self.generator).__name__} has no tokenizer {key!r}'
          + errors.did_you_mean(key, known)
        ) from None

    return decode

  def _build_decode(self, ids_to_strings):
    """Returns ids [B, T] and lengths [B] -> list of bytes."""
    tf = self._tf
    if self._session is None:
      decode = tf.function(ids_to_strings, autograph=False)
      traced = decode.get_concrete_function(
        tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
      )
      return lambda ids, lengths: traced(
        tf.constant(ids), tf.constant(lengths)
      ).numpy()
    with self._session.graph.as_default(), tf.device('/cpu:0'):
      ids = tf.compat.v1.placeholder(tf.int32, [None, None])
      lengths = tf.compat.v1.placeholder(tf.int32, [None])
      texts = ids_to_strings(ids, lengths)
      self._session.run(tf.compat.v1.tables_initializer())
      return self._session.make_callable(texts, feed_list=[ids, lengths])

  def close(self):
    """Frees the generator and its threads."""
    if self._must_be_drained and self._call is not None:
      self._drain()
    if self._session is not None:
      self._session.close()
    self._session = self._call = self.generator = None
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


# What is still open when the process ends; see `GeneratorDriver._drain`.
_live: weakref.WeakSet[GeneratorDriver] = weakref.WeakSet()


@atexit.register
def _close_all():
  for driver in list(_live):
    driver.close()


@contextlib.contextmanager
def _lingvo_context(cluster_options: dict[str, Any], infeed: tuple[int, int]):
  """Enters cluster and infeed context, with Lingvo's eager flag off."""
  cluster = lingvo_runtime.module('lingvo.core.cluster')
  with (
    lingvo_runtime.eager_flag(False),
    lingvo_runtime.cluster(**cluster_options),
    cluster.InfeedContextScope(
      infeed_host_index=infeed[0], num_infeed_hosts=infeed[1]
    ),
  ):
    yield


def is_tf_data(params) -> bool:
  """Returns whether a generator reads through `tf.data`."""
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  sources = lingvo_runtime.module('lingvo.core.datasource')
  source = getattr(params, 'file_datasource', None)
  return issubclass(
    params.cls,
    (
      generators.TFDataSequenceInputGenerator,
      generators.BaseDataExampleInputGenerator,
    ),
  ) or (source is not None and issubclass(source.cls, sources.TFDatasetSource))


def _repeat_counts(graph) -> list[int]:
  """Returns the `repeat_count` of each of Lingvo's reader ops in a graph."""
  graph_def = graph.as_graph_def()
  nodes = list(graph_def.node)
  for function in graph_def.library.function:
    nodes.extend(function.node_def)
  return [n.attr['repeat_count'].i for n in nodes if n.op in _READER_OPS]


def _dataset_is_finite(generator) -> bool | None:
  """Returns whether the tf.data sets of a generator end; None if unknown."""
  sets = getattr(getattr(generator, 'datasource', None), '_dataset', None) or {}
  sizes = [s.cardinality() for s in sets.values()]
  if not sizes or not all(hasattr(s, 'numpy') for s in sizes):
    return None
  sizes = [int(s.numpy()) for s in sizes]
  if any(s == -1 for s in sizes):  # tf.data.INFINITE_CARDINALITY
    return False
  return True if all(s >= 0 for s in sizes) else None


def _numeric_leaves(tf, node, path: str, dropped: list[str]):
  """Returns a symbolic batch as our maps, without what is no plain number.

  Args:
    tf: TensorFlow.
    node: a map, a list or a tensor of the batch.
    path: the path of `node`, empty for the batch itself.
    dropped: receives the paths of string, sparse and ragged leaves.
  """
  if isinstance(node, dict):
    kept = {
      k: _numeric_leaves(tf, v, f'{path}.{k}' if path else k, dropped)
      for k, v in node.items()
    }
    return NestedMap({k: v for k, v in kept.items() if v is not None})
  if isinstance(node, (list, tuple)):
    kept = [
      _numeric_leaves(tf, v, f'{path}[{i}]', dropped)
      for i, v in enumerate(node)
    ]
    return [v for v in kept if v is not None]
  if node is None:
    return None
  if not isinstance(node, (tf.Tensor, tf.Variable)) or node.dtype == tf.string:
    dropped.append(path)
    return None
  return node


def _one_line(error: Exception) -> str:
  """Returns an error's type and the start of its message."""
  text = ' '.join(str(error).split())
  return f'{type(error).__name__}: {text[:300]}'
