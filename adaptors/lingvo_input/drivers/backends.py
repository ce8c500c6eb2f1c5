"""The two ways in which a Lingvo input generator is built and called.

Most generators refuse TensorFlow's eager mode, so a generator is built with
Lingvo's own eager flag off (TensorFlow's stays as it is) in one of two ways:

  * session: in a graph of its own, with one session, for what reads records;
  * function: as a traced `tf.function`, for `tf.data` sources, and where the
    first way fails.
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
)
from adaptors.lingvo_input.drivers import closing, lingvo_patches
from adaptors.records import record_copies
from pax_compat import errors

# How long a reader is read on at most before it is closed.
_SECONDS_TO_DRAIN = 10.0

# Of a generator and the training step, a scalar tensor: the tensors of a batch.
TensorsOf = Callable[[Any, Any], list[Any]]


class MistakeError(Exception):
  """A user's mistake that no other way would mend."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a generator finds while it is built.

  Attributes:
    name: how messages call it.
    cluster_options: arguments of `lingvo_runtime.cluster`.
    infeed_host_index: what it is told about this host.
    num_infeed_hosts: what it is told about the number of hosts.
    seed: of what TensorFlow draws at random; None for no seed.
    skips_bad_records: whether records that it refuses are left out, and
      counted, rather than errors.
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
      lingvo_runtime.eager_flag(False),
      lingvo_runtime.cluster(**self.cluster_options),
      lingvo_patches.repaired(),
      cluster.InfeedContextScope(
        infeed_host_index=self.infeed_host_index,
        num_infeed_hosts=self.num_infeed_hosts,
      ),
    ):
      yield


class Way:
  """A generator that was built in some way; to be closed.

  Attributes:
    generator: the Lingvo object.
    graph: the TensorFlow graph in which it makes batches.
    session: that runs it; None for a function.
    uses_step: whether batches depend on the training step.
    refused_records: how many records it refuses, as far as they were tried.
    cancel: ends the first call of `leaves`, from another thread; None where
      that cannot be.
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
    self._comes_to_an_end = self._must_be_drained = False
    closing.prepare()
    _open.add(self)

  def build(self, params: Any, tensors_of: TensorsOf):
    """Builds the generator.

    Args:
      params: its Lingvo Params; it may change them.
      tensors_of: says what is fetched of it.

    Raises:
      MistakeError: it would end the process or wait for ever.
      Exception: whatever it raises.
    """
    raise NotImplementedError(type(self).__name__)

  def _call(self, step: int) -> list[Any]:
    """Returns the leaves of the next batch."""
    raise NotImplementedError(type(self).__name__)

  def leaves(self, step: int) -> list[Any] | None:
    """Returns the leaves of the next batch, None at the end of the data.

    Args:
      step: the training step that it is for.
    """
    self._step = step
    self._must_be_drained = self._comes_to_an_end  # Now it starts.
    try:
      return self._call(step)
    except self._tf.errors.OutOfRangeError:
      self._must_be_drained = False
      return None

  def _set_seed(self):
    if self._settings.seed is not None:
      self._tf.compat.v1.set_random_seed(self._settings.seed)

  def _checked_readers(self, graph: Any) -> list[reader_params.Reader]:
    """Returns the readers of a graph.

    Raises:
      MistakeError: one would end the process or wait for ever.
    """
    readers = reader_params.readers(self._tf, graph.as_graph_def())
    self._comes_to_an_end = any(reader.ends() for reader in readers)
    with _mistake():
      for reader in readers:
        reader_params.check_reader(self._settings.name, reader)
    return readers

  def close(self):
    """Frees the generator and its threads, if that takes no eternity."""
    if self in _open:
      _open.discard(self)
      closing.in_time(self._settings.name, self._close)

  def close_soon(self):
    """Has them freed; called by the garbage collector."""
    if self in _open:
      _open.discard(self)
      closing.soon(self._close)

  def _close(self):
    if self._must_be_drained:
      self._drain()
    self.generator = self.graph = self.cancel = None

  def _drain(self):
    """Reads on to the end of the data.

    A reader that has met the end of its data, with batches that nobody took,
    never returns from its destruction.
    """
    start = time.monotonic()
    while time.monotonic() - start < _SECONDS_TO_DRAIN:
      # What is read is thrown away, and so are its errors.
      with contextlib.suppress(Exception):
        if self.leaves(self._step) is None:
          return
    self._must_be_drained = False
    logging.info(
      'closing after %d more seconds, before the end of the data',
      _SECONDS_TO_DRAIN,
    )


class SessionWay(Way):
  """Runs a generator in a graph and a session of its own."""

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
      # Even without any feed, a list of feeds is the way that takes longer.
      feeds = [step] if self.uses_step else None
      self._fetch = self.session.make_callable(fetches, feed_list=feeds)
    with _mistake():
      for probe in probes:
        self._try_records(probe)

  def _probes(self) -> list[record_probe.Probe]:
    """Checks the readers of the graph; returns what tries their records."""
    name, readers = self._settings.name, self._checked_readers(self.graph)
    with _mistake():
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


class FunctionWay(Way):
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
    # Only the first batch may be waited for in vain; the others are called in
    # the way that costs less.
    self._function = manager.get_cancelable_function(traced)
    self._after_first = traced

  def _call(self, step):
    if self.uses_step:
      self._number.assign(step)
    function, self._function = self._function, self._after_first
    return [x.numpy() for x in function()]

  def _close(self):
    """Frees the generator and its threads.

    They end with the iterators of `tf.data`, which are held by objects that
    refer to each other: these are taken apart, as Python's garbage may lie
    about for long.
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
def _mistake():
  try:
    yield
  except errors.UserError as e:
    raise MistakeError(*e.args) from e


# What is still open when the process ends; see `Way._drain`.
_open: set[Way] = set()


@atexit.register
def _close_all():
  for way in list(_open):
    way.close()
  record_copies.remove_all()
