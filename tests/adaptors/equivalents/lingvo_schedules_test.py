"""Schedules of Lingvo alone; their values are tested with their translators."""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors.equivalents import lingvo_schedules
from pax_compat import errors, schedules


def test_a_schedule_at_lingvos_steps():
  line = schedules.Linear.config(start=(0, 0.0), limit=(100, 100.0))
  schedule = lingvo_schedules.AtLingvoSteps(
    schedule=line, steps_per_update=5, first=3
  )
  values = [schedule.value_at(jnp.int32(update)) for update in range(4)]
  np.testing.assert_allclose(values, [3, 8, 13, 18], rtol=1e-6)


def test_the_minimum_of_schedules():
  schedule = lingvo_schedules.Minimum(
    schedules=[
      schedules.Linear.config(start=(0, 0.0), limit=(10, 10.0)),
      schedules.Constant.config(value=4.5),
    ]
  )
  values = [schedule.value_at(jnp.int32(step)) for step in (0, 4, 5, 20)]
  np.testing.assert_allclose(values, [0, 4, 4.5, 4.5], rtol=1e-6)


@pytest.mark.parametrize(
  'cls,fields,message',
  [
    ('Minimum', {'schedules': []}, 'schedules is empty'),
    ('StepwiseExponential', {'num_steps_per_decay': 0}, 'num_steps_per_decay'),
    ('TransformerMlPerf', {'warmup_steps': 0}, 'warmup_steps is 0'),
    ('SqrtDecayToZero', {'final_steps': 10.0}, 'final_steps 10.0'),
    ('InverseSigmoid', {'k': 0.5}, 'k is 0.5'),
  ],
)
def test_values_that_are_wrong(cls, fields, message):
  with pytest.raises(errors.UserError, match=message):
    getattr(lingvo_schedules, cls)(**fields)
