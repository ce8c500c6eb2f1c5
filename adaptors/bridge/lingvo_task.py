"""The Lingvo task of a bridged model, built when it is needed."""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import decoding
from adaptors.bridge.functional.functional_task import FunctionalTask, Trace
from adaptors.bridge.ops import bounded_loops
from adaptors.stand_ins import renames
from pax_compat import errors

# Devices of Lingvo's cluster that graphs are built for. With 'tpu' shapes are
# static, as XLA needs them; some layers do not support it.
_DEVICES = ('tpu', 'cpu')


class LingvoTask:
  """A Lingvo task; copying returns the same object.

  Attributes:
    params: of the task, with its input.
    loss_of: losses of variables by theta path, where it is not the first of
      `trace` and of calls; see `FunctionalTask`.
  """

  def __init__(
    self,
    params: Any,
    xla_device: str | None = None,
    build: Callable[[Any], Any] | None = None,
  ):
    """The task is built when first used.

    Args:
      params: of the task, with its input.
      xla_device: 'tpu' for static shapes, or 'cpu'; None for the first of them
        for which the task can be built and traced, without a lower precision
        than its Params require.
      build: builds the task by its Params; None to instantiate them.
    """
    self._build = build
    self.params = params.Copy()
    self.loss_of: dict[str, str] = {}
    self._devices = [xla_device] if xla_device else list(_DEVICES)
    self._logged: collections.Counter[str] = collections.Counter()
    self._tasks: dict[tuple[str, bool], FunctionalTask] = {}

  def __repr__(self):
    cls = self.params.cls
    return f'LingvoTask({cls.__module__}.{cls.__qualname__})'

  def __deepcopy__(self, memo):
    return self

  @property
  def xla_device(self) -> str:
    """The device type that Lingvo builds the task for."""
    return self._devices[0]

  @property
  def at_training(self) -> FunctionalTask:
    """The task in training mode."""
    return self._first_that(lambda: self._built(False))

  @property
  def at_evaluation(self) -> FunctionalTask:
    """The task in evaluation mode."""
    return self._built(True)

  @functools.cached_property
  def decoder(self) -> decoding.Decoder:
    """Decodes with the task.

    Raises:
      UserError: the task cannot decode.
    """
    return decoding.Decoder(self.params, self._build)

  def trace(self, losses: Sequence[str], batch: Any) -> Trace:
    """Traces the task in training mode, which decides on `xla_device`.

    Args:
      losses: names of the metrics to differentiate.
      batch: nested dicts and lists of arrays or their specs.

    Raises:
      UserError: it cannot be built or traced.
    """

    def trace():
      found = self._built(False).trace(losses, batch)
      if found.has_bfloat16 and not self._wants_bfloat16():
        self._refuse_lower_precision()
      return found

    found = self._first_that(trace)
    self._log_replacements()
    return found

  def _log_replacements(self):
    counts = collections.Counter(
      r.function for r in self.at_training.replacements
    )
    if counts and counts != self._logged:
      self._logged = counts
      logging.info(
        '%s: replaced, so that XLA compiles it and random numbers follow from'
        " the run's own seed: %s",
        self.params.name,
        ', '.join(f'{name} ({n})' for name, n in sorted(counts.items())),
      )

  def _first_that(self, function):
    """Calls a function, with the next device after each failure."""
    failures = {}
    while True:
      device = self.xla_device
      try:
        return function()
      except Exception as error:
        failures[device] = error
        is_final = isinstance(error, bounded_loops.UnboundedLoopError)
        is_final |= lingvo_runtime.is_wrong_name(error)
        if len(self._devices) == 1 or is_final:
          raise self._refusal(failures) from next(iter(failures.values()))
        self._devices.pop(0)
        logging.info(
          '%s is built for xla_device=%s, because %s fails: %s',
          self.params.name,
          self.xla_device,
          device,
          ' '.join(_describe(error).split())[:300],
        )

  def _refuse_lower_precision(self):
    """Raises if another device is left to try; else logs a warning."""
    message = 'it computes in bfloat16, which its Params do not ask for'
    if len(self._devices) > 1:
      raise LowerPrecisionError(message)
    logging.warning('%s: %s', self.params.name, message)

  def _wants_bfloat16(self) -> bool:
    return 'bfloat16' in self.params.ToText()

  def _built(self, do_eval: bool) -> FunctionalTask:
    key = self.xla_device, do_eval
    if key not in self._tasks:
      self._tasks[key] = FunctionalTask(
        self.params,
        do_eval=do_eval,
        xla_device=self.xla_device,
        build=self._build,
      )
      self._tasks[key].loss_of = self.loss_of
    return self._tasks[key]

  def _refusal(self, failures: dict[str, Exception]) -> errors.UserError:
    """Returns the error with the reasons of all devices."""
    first = next(iter(failures.values()))
    texts = {device: _describe(error) for device, error in failures.items()}
    if len(set(texts.values())) == 1:
      if isinstance(first, errors.UserError):
        return first
      texts = {'': texts.popitem()[1]}
    reasons = '; '.join(
      f'for xla_device={device}: {text}' if device else text
      for device, text in texts.items()
    )
    return errors.UserError(
      f'{self.params.name} cannot be run as a function: {reasons}'
    )


def _describe(error: Exception) -> str:
  if isinstance(error, errors.UserError):
    return str(error)
  return errors.with_location(error) + renames.of_error(error)


class LowerPrecisionError(Exception):
  """A task computes in a lower precision than its Params require."""
