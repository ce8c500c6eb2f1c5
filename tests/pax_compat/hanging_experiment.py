"""The counting experiment with functions that hang as long as a file exists.

The environment variable `HANGING` has a JSON object: the `path` of the file,
`where` it hangs and at which `call`, counted from 1 on since the process
started; or how many `seconds` each call takes.
"""

import json
import os
import pathlib
import time

import jax

from pax_compat import experiment_registry
from pax_compat.layers import models
from tests.pax_compat import counting_experiment

# A function in the train step, one in the eval step, one between steps.
IN_STEP, IN_EVALUATION, BETWEEN_STEPS = 'step', 'evaluation', 'between'
_calls = {IN_STEP: 0, IN_EVALUATION: 0, BETWEEN_STEPS: 0}


def _settings() -> dict:
  return json.loads(os.environ['HANGING'])


def wait_for_the_end_of_time(where: str):
  """Returns at once, but for one call while the file exists."""
  settings = _settings()
  if where != settings['where']:
    return
  _calls[where] += 1
  time.sleep(settings.get('seconds', 0))
  while _calls[where] == settings.get('call'):
    if not pathlib.Path(settings['path']).exists():
      return
    time.sleep(0.01)


class HangingModel(models.LanguageModel):
  """Calls Python in each step, on the host."""

  def compute_loss(self, predictions, input_batch):
    where = IN_EVALUATION if self.do_eval else IN_STEP
    if _settings()['where'] == where:
      jax.debug.callback(lambda: wait_for_the_end_of_time(where))
    return super().compute_loss(predictions, input_batch)

  def after_step(self):
    return lambda step, metrics: wait_for_the_end_of_time(BETWEEN_STEPS)


@experiment_registry.register
class Hanging(counting_experiment.Counting):
  """Counts up, and hangs."""

  MODEL = HangingModel
