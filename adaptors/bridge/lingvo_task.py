"""Which Lingvo task a model runs, built when it is needed."""

import collections
import functools
from collections.abc import Sequence
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import decoding
from adaptors.bridge.functional.functional_task import FunctionalTask, Trace
from pax_compat import errors

# What Lingvo's cluster says of the device that graphs are built for. Under
# 'tpu' shapes are static, as XLA needs them. Some layers refuse that.
_DEVICES = ('tpu', 'cpu')


class LingvoTask:
  """A Lingvo task; copies of it are the same one.

  Attributes:
    params: of the task, with its input.
  """

  def __init__(self, params: Any, xla_device: str | None = None):
    """Builds nothing yet.

    Args:
      params: of the task, with its input.
      xla_device: 'tpu' for static shapes, or 'cpu'; None for the first of them
        for which the task can be built and traced, and computes in no lower
        precision than its Params say.
    """
    self.params = params.Copy()
    self._devices = [xla_device] if xla_device else list(_DEVICES)
    self._told: collections.Counter[str] = collections.Counter()
    self._tasks: dict[tuple[str, bool], FunctionalTask] = {}

  def __repr__(self):
    cls = self.params.cls
    return f'LingvoTask({cls.__module__}.{cls.__qualname__})'

  def __deepcopy__(self, memo):
    return self

  @property
  def xla_device(self) -> str:
    """The device that Lingvo believes the task to be built for."""
    return self._devices[0]

  @property
  def at_training(self) -> FunctionalTask:
    """The task as it is trained."""
    return self._first_that(lambda: self._built(False))

  @property
  def at_evaluation(self) -> FunctionalTask:
    """The task as it is evaluated."""
    return self._built(True)

  @functools.cached_property
  def decoder(self) -> decoding.Decoder:
    """The task as it decodes.

    Raises:
      UserError: it cannot.
    """
    return decoding.Decoder(self.params)

  def trace(self, losses: Sequence[str], batch: Any) -> Trace:
    """Traces the task as it is trained, and decides on `xla_device` by it.

    Args:
      losses: names of the metrics whose gradients are wanted.
      batch: nested dicts and lists of what has a shape and a dtype.

    Raises:
      UserError: it cannot be built or traced.
    """

    def trace():
      found = self._built(False).trace(losses, batch)
      if found.has_bfloat16 and not self._wants_bfloat16():
        self._refuse_if_there_is_another()
      return found

    found = self._first_that(trace)
    self._tell_of_replacements()
    return found

  def _tell_of_replacements(self):
    told = collections.Counter(r.function for r in self.at_training.told)
    if told and told != self._told:
      self._told = told
      logging.info(
        '%s: replaced, so that XLA compiles it and random numbers follow from'
        " the run's own seed: %s",
        self.params.name,
        ', '.join(f'{name} ({n})' for name, n in sorted(told.items())),
      )

  def _first_that(self, function):
    """Returns what a function returns, for the first device that it takes."""
    failures = {}
    while True:
      device = self.xla_device
      try:
        return function()
      except Exception as error:
        failures[device] = error
        if len(self._devices) == 1 or lingvo_runtime.is_wrong_name(error):
          raise self._refusal(failures) from next(iter(failures.values()))
        self._devices.pop(0)
        logging.info(
          '%s is built for xla_device=%s, since for %s: %s',
          self.params.name,
          self.xla_device,
          device,
          ' '.join(_described(error).split())[:300],
        )

  def _refuse_if_there_is_another(self):
    told = 'it computes in bfloat16, of which its Params say nothing'
    if len(self._devices) > 1:
      raise LowerPrecisionError(told)
    logging.warning('%s: %s', self.params.name, told)

  def _wants_bfloat16(self) -> bool:
    return 'bfloat16' in self.params.ToText()

  def _built(self, do_eval: bool) -> FunctionalTask:
    key = self.xla_device, do_eval
    if key not in self._tasks:
      self._tasks[key] = FunctionalTask(
        self.params, do_eval=do_eval, xla_device=self.xla_device
      )
    return self._tasks[key]

  def _refusal(self, failures: dict[str, Exception]) -> errors.UserError:
    """Returns the error that says why each device does not do."""
    first = next(iter(failures.values()))
    texts = {device: _described(error) for device, error in failures.items()}
    if len(set(texts.values())) == 1:
      if isinstance(first, errors.UserError):
        return first
      texts = {'': texts.popitem()[1]}
    told = '; '.join(
      f'for xla_device={device}: {text}' if device else text
      for device, text in texts.items()
    )
    return errors.UserError(
      f'{self.params.name} cannot be run as a function: {told}'
    )


def _described(error: Exception) -> str:
  if isinstance(error, errors.UserError):
    return str(error)
  return f'{type(error).__name__}: {error} ({errors.location_of(error)})'


class LowerPrecisionError(Exception):
  """A task computes in a lower precision than its Params say."""
