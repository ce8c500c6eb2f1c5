"""The two backends that build and call a Lingvo input generator.

Most generators refuse TensorFlow's eager mode. So a generator is built with
Lingvo's own eager flag off (TensorFlow's stays as it is), by a backend:

  * session: in a separate graph with one session, for what reads records;
  * function: as a traced `tf.function`, for `tf.data` sources, and if the
    session backend fails.
"""

import atexit
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import (
  reader_params,
  record_probe,
  record_trial,
  token_vocabularies,
)
from adaptors.lingvo_input.drivers import closing, lingvo_patches
from adaptors.records import record_copies
from pax_compat import errors

# How long a reader is drained at most before it is closed.
_SECONDS_TO_DRAIN = 10.0

# Takes a generator and the training step, a scalar tensor; returns the tensors
# of a batch.
TensorsOf = Callable[[Any, Any], list[Any]]


class NotRetriable(Exception):  # noqa: N818 (a signal)
  """An error of the user's data or Params; no other backend would help."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a generator finds while it is built.

  Attributes:
    name: of the input, in messages.
    cluster_options: arguments of `lingvo_runtime.cluster`.
    infeed_host_index: index of this host that the generator finds.
    num_infeed_hosts: number of hosts that the generator finds.
    seed: TensorFlow's random seed; None for none.
    skips_bad_records: whether records that the generator refuses are left out
      and counted; if not, they are errors.
    trial: tries the records of its readers.
  """

  name: str
  cluster_options: dict[str, Any]
  infeed_host_index: int = 0
  num_infeed_hosts: int = 1
  seed: int | None = None
  skips_bad_records: bool = False
  trial: record_trial.RecordTrial = dataclasses.field(
    default_factory=record_trial.RecordTrial
  )

  @contextlib.contextmanager
  def context(self):
    """Enters cluster and infeed context, with Lingvo's eager flag off."""
    cluster = lingvo_runtime.module('lingvo.core.cluster')
    with (
      lingvo_runtime.building_input(),
      lingvo_runtime.eager_flag(False),
      lingvo_runtime.cluster(**self.cluster_options),
      lingvo_patches.repaired(),
      cluster.InfeedContextScope(
        infeed_host_index=self.infeed_host_index,
        num_infeed_hosts=self.num_infeed_hosts,
      ),
    ):
      yield


class Backend:
  """Builds a generator and calls it; to be closed.

  Attributes:
    generator: the Lingvo object.
    graph: the TensorFlow graph of its batches.
    session: of that graph; None for a function.
    uses_step: whether batches depend on the training step.
    refused_records: number of records that it refuses, of those tried.
    cancel: ends the first call of `leaves`, from another thread; None if that
      is impossible.
    end: TensorFlow's message at the end of the data.
  """

  NAME: str
  session = None
  cancel: Callable[[], None] | None = None

  def __init__(self, settings: Settings):
    """Builds nothing yet."""
    self._tf = lingvo_runtime.module('tensorflow')
    self._settings = settings
    self.generator = self.graph = None
    self.uses_step = False
    self.refused_records = 0
    self._step = 0
    self.end = ''
    self._is_finite = self._must_be_drained = False
    closing.prepare()
    _open.add(self)

  def build(self, params: Any, tensors_of: TensorsOf):
    """Builds the generator.

    Args:
      params: its Lingvo Params; it may change them.
      tensors_of: returns the tensors to fetch.

    Raises:
      NotRetriable: it would end the process or wait forever.
      Exception: whatever the generator raises.
    """
    raise NotImplementedError(type(self).__name__)

  def _call(self, step: int) -> list[Any]:
    """Returns the leaves of the next batch."""
    raise NotImplementedError(type(self).__name__)

  def leaves(self, step: int) -> list[Any] | None:
    """Returns the leaves of the next batch, None at the end of the data.

    Args:
      step: the training step of the batch.
    """
    self._step = step
    self._must_be_drained = self._is_finite  # Now it starts.
    try:
      return self._call(step)
    except self._tf.errors.OutOfRangeError as e:
      self.end = e.message
      self._must_be_drained = False
      return None

  def _set_seed(self):
    if self._settings.seed is not None:
      self._tf.compat.v1.set_random_seed(self._settings.seed)

  def _checked_readers(self, graph: Any) -> list[reader_params.Reader]:
    """Returns the readers of a graph.

    Raises:
      NotRetriable: one would end the process or wait forever, or what splits
        text would end it.
    """
    graph_def = graph.as_graph_def()
    readers = reader_params.readers(self._tf, graph_def)
    self._is_finite = any(reader.ends() for reader in readers)
    with _not_retriable():
      token_vocabularies.check_ops(
        self._settings.name, reader_params.nodes_of(graph_def)
      )
      for reader in readers:
        reader_params.check_reader(self._settings.name, reader)
    return readers

  def close(self):
    """Frees the generator and its threads, within limited time."""
    if self in _open:
      _open.discard(self)
      closing.in_time(self._settings.name, self._close)

  def close_soon(self):
    """Schedules `close`; called by the garbage collector."""
    if self in _open:
      _open.discard(self)
      closing.soon(self._close)

  def _close(self):
    if self._must_be_drained:
      self._drain()
    self.generator = self.graph = self.cancel = None

  def _drain(self):
    """Reads on to the end of the data.

    The destructor of a reader that has reached the end of its data, with
    batches that nobody took, never returns.
    """
    start = time.monotonic()
    while time.monotonic() - start < _SECONDS_TO_DRAIN:
      # The batches and their errors are dropped.
      with contextlib.suppress(Exception):
        if self.leaves(self._step) is None:
          return
    self._must_be_drained = False
    logging.info(
      'closing after %d more seconds, before the end of the data',
      _SECONDS_TO_DRAIN,
    )


class SessionBackend(Backend):
  """Runs a generator in a separate graph and session."""

  NAME = 'session'

  def build(self, params: Any, tensors_of: TensorsOf):
    """Builds the generator, and tries its records."""
    tf = self._tf
    self.graph = tf.Graph()
    with self.graph.as_default(), self._settings.context(), tf.device('/cpu:0'):
      self._set_seed()
      self.generator = params.Instantiate()
      step = tf.compat.v1.placeholder(tf.int64, [])
      fetches = tensors_of(self.generator, step)
      self.uses_step = bool(step.consumers())
      probes = self._probes()
      self.session = tf.compat.v1.Session(graph=self.graph)
      self.session.run(
        [
          tf.compat.v1.global_variables_initializer(),
          tf.compat.v1.local_variables_initializer(),
          tf.compat.v1.tables_initializer(),
        ]
      )
      self.generator.Initialize(self.session)
      # A call with a list of feeds takes longer, even with an empty one.
      feeds = [step] if self.uses_step else None
      self._fetch = self.session.make_callable(fetches, feed_list=feeds)
    with _not_retriable():
      for probe in probes:
        self._try_records(probe)

  def _probes(self) -> list[record_probe.Probe]:
    """Checks the readers of the graph; returns a probe of each."""
    name, readers = self._settings.name, self._checked_readers(self.graph)
    with _not_retriable():
      return [
        record_probe.Probe(tf=self._tf, name=name, reader=reader)
        for reader in readers
      ]

  def _try_records(self, probe: record_probe.Probe):
    probe.run(self.session)
    self.refused_records += self._settings.trial.check(
      self._settings.name,
      probe.reader,
      functools.partial(probe.processed, self.session),
      skip=self._settings.skips_bad_records,
    )

  def _call(self, step):
    return self._fetch(step) if self.uses_step else self._fetch()

  def _close(self):
    super()._close()
    if self.session is not None:
      self.session.close()
    self.session = self._fetch = None


class FunctionBackend(Backend):
  """Runs a generator as a traced function."""

  NAME = 'function'

  def build(self, params: Any, tensors_of: TensorsOf):
    """Builds the generator."""
    tf = self._tf
    with self._settings.context(), tf.device('/cpu:0'):
      self.generator = params.Instantiate()
      self._number = tf.Variable(0, dtype=tf.int64, trainable=False)

      def next_batch():
        step = self._number.read_value()
        self._set_seed()
        tensors = tensors_of(self.generator, step)
        self.uses_step = bool(step.consumers())
        return tensors

      traced = tf.function(next_batch, autograph=False).get_concrete_function()
    self.graph = traced.graph
    self._checked_readers(self.graph)
    cancellation = lingvo_runtime.module('tensorflow.python.eager.cancellation')
    manager = cancellation.CancellationManager()
    self.cancel = manager.start_cancel
    # Only the first batch may never come; a plain call costs less.
    self._function = manager.get_cancelable_function(traced)
    self._after_first = traced

  def _call(self, step):
    if self.uses_step:
      self._number.assign(step)
    function, self._function = self._function, self._after_first
    return [x.numpy() for x in function()]

  def _close(self):
    """Frees the generator and its threads.

    They end with the iterators of `tf.data`, which belong to objects that refer
    to each other: these are taken apart, as Python may collect them late.
    """
    generator, graph = self.generator, self.graph
    super()._close()
    self._function = self._after_first = None
    if generator is not None:
      for layer in list(_layers(generator)):
        vars(layer).clear()
    if graph is not None:
      graphs = lingvo_runtime.module('tensorflow.python.framework.func_graph')
      graphs.dismantle_func_graph(graph)
      graph.captures.clear()  # A copy of what was cleared.


def _layers(layer: Any) -> Iterator[Any]:
  """Yields a Lingvo layer and all those in it."""
  yield layer
  for child in layer.children.Flatten():
    yield from _layers(child)


@contextlib.contextmanager
def _not_retriable():
  try:
    yield
  except errors.UserError as e:
    raise NotRetriable(*e.args) from e


# Backends that are open; closed at exit, see `Backend._drain`.
_open: set[Backend] = set()


@atexit.register
def _close_all():
  for backend in list(_open):
    backend.close()
  record_copies.remove_all()
