"""Tests of updates that depend on the weights after a step."""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_model
from pax_compat.base_layer import (
  BEFORE_STEP,
  NON_TRAINABLE,
  PARAMS,
  WeightHParams,
)
from pax_compat.layers.models import multi_task_model
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import updates_after


class Moving(base_model.BaseModel):
  """Adds the change of its weight to a variable."""

  def setup(self):
    self.create_variable('w', WeightHParams([2]))
    self.create_variable('moved', WeightHParams([2]), trainable=False)

  def after_update(self, input_batch):
    before = self.get_variable(f'{PARAMS}{BEFORE_STEP}', 'w')
    moved = self.theta.w - before + input_batch.x
    self.update_var('moved', moved)


def _values(number):
  return jnp.full([2], number)


def _update(model, batch, wrap=lambda tree: tree):
  before = {
    PARAMS: wrap({'w': _values(1.0)}),
    NON_TRAINABLE: wrap({'moved': _values(2.0)}),
  }
  updated = before | {PARAMS: wrap({'w': _values(5.0)})}
  return updates_after.update(model, before, updated, batch, jax.random.key(0))


def test_a_model_sees_both_weights():
  model = Moving.config(name='m').Instantiate()
  found = _update(model, NestedMap(x=jnp.float32(0.5)))
  assert list(found) == [NON_TRAINABLE]
  np.testing.assert_array_equal(found[NON_TRAINABLE]['moved'], [4.5, 4.5])


def test_the_model_of_the_task_of_a_batch_is_updated():
  tasks = {name: Moving.config(name=name) for name in 'ab'}
  model = multi_task_model.MultiTaskModel.config(
    name='m', tasks=tasks
  ).Instantiate()
  batch = NestedMap(b=NestedMap(x=jnp.float32(0.0)))
  both = lambda tree: {'task_a': tree, 'task_b': tree}  # noqa: E731
  found = _update(model, batch, both)[NON_TRAINABLE]
  np.testing.assert_array_equal(found['task_b']['moved'], [4.0, 4.0])
  np.testing.assert_array_equal(found['task_a']['moved'], [2.0, 2.0])


def test_others_are_as_they_are():
  model = base_model.BaseModel.config(name='m').Instantiate()
  found = _update(model, NestedMap())
  np.testing.assert_array_equal(found[NON_TRAINABLE]['moved'], [2.0, 2.0])
