"""Optax transformations as optimizers."""

import numpy as np
import optax
import pytest

from pax_compat import config as config_lib
from pax_compat import errors, optimizers, schedules
from pax_compat.config import Config
from pax_compat.configs import config_text
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE


def _assert_same(config, transformation):
  history = stepping.run(config)
  for ours, want in zip(
    history, stepping.run_transformation(transformation), strict=True
  ):
    for key, value in want.items():
      np.testing.assert_allclose(ours[key], value, rtol=1e-6, err_msg=key)
  first = stepping.weights()
  assert all(np.max(np.abs(v - first[k])) > 1e-4 for k, v in ours.items())


@pytest.mark.parametrize(
  'grad_tx',
  [
    optax.adam(RATE),
    Config(optax.adam, learning_rate=RATE),
    [optax.scale_by_adam(), Config(optax.scale, step_size=-RATE)],
    (Config(optax.scale_by_adam), optax.scale_by_learning_rate(RATE)),
  ],
  ids=['transformation', 'config', 'list', 'tuple'],
)
def test_a_whole_transformation(grad_tx):
  """`learning_rate` is not applied to it."""
  _assert_same(
    optimizers.OptaxOptimizer.config(grad_tx=grad_tx, learning_rate=7.0),
    optax.adam(RATE),
  )


def test_a_direction():
  schedule = schedules.Linear.config(start=(0, 1.0), limit=(3, 0.1))
  config = optimizers.OptaxOptimizer.config(
    grad_tx=Config(optax.scale_by_adam, b1=0.5),
    scale_by_learning_rate=True,
    learning_rate=RATE,
    lr_schedule=schedule,
  )
  rate = optax.linear_schedule(RATE, 0.1 * RATE, 3)
  _assert_same(config, optax.adam(rate, b1=0.5))


def test_a_config_is_written_out():
  config = optimizers.OptaxOptimizer.config(
    grad_tx=Config(optax.lion, learning_rate=0.25)
  )
  assert 'grad_tx.learning_rate = 0.25\n' in config_text.to_text(config)


@pytest.mark.parametrize(
  'grad_tx', [3, optax.adam, [optax.adam(0.1), 'sgd'], Config(dict)]
)
def test_a_value_that_is_not_a_transformation(grad_tx):
  config = optimizers.OptaxOptimizer.config(grad_tx=grad_tx)
  with pytest.raises(errors.UserError, match='OptaxOptimizer: grad_tx has'):
    config.Instantiate()


def test_a_transformation_is_required():
  with pytest.raises(config_lib.RequiredError, match='grad_tx'):
    optimizers.OptaxOptimizer.config().Instantiate()
