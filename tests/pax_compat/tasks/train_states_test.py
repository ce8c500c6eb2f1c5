"""States of loops of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers
from pax_compat.base_layer import WeightHParams
from pax_compat.tasks import train_states
from tests.pax_compat.trainer import lines


def _state(**fields):
  optimizer = optimizers.Sgd.config(learning_rate=1.0, **fields)
  learner = learners.Learner.config(
    optimizer=optimizer, bprop_variable_exclusion='params/fixed'
  ).Instantiate()
  weights = {'w': jnp.ones([2]), 'fixed': jnp.zeros([3])}
  metas = {'w': WeightHParams([2]), 'fixed': WeightHParams([3])}
  state = learner.init(weights, weight_metas=metas)
  params, state, _, _ = learner.update(
    weights, state, weights, weight_metas=metas
  )
  params, state, _, _ = learner.update(
    params, state, weights, weight_metas=metas
  )
  mdl_vars = {'params': params, 'non_trainable': {'mean': jnp.ones([])}}
  return train_states.TrainState(jnp.array(2), mdl_vars, [state])


def test_moving_averages_in_place_of_weights():
  state = _state(ema_decay=0.9)
  found = train_states.extract_ema(state)
  # Weights 1 and 0: 1, then 1 - (1 - 2 / 11) * (1 - 0).
  params = found.mdl_vars['params']
  np.testing.assert_allclose(params['w'], 2 / 11, rtol=1e-6)
  np.testing.assert_array_equal(state.mdl_vars['params']['w'], -1)
  np.testing.assert_array_equal(params['fixed'], 0)
  assert found.mdl_vars['non_trainable'] == {'mean': 1}
  assert found.opt_states == [] and int(found.step) == 2


def test_what_has_no_averages():
  for state in (_state(), _state(ema_decay=0.9).to_eval_state()):
    with pytest.raises(errors.UserError, match='has no moving average'):
      train_states.extract_ema(state)
  with pytest.raises(errors.UserError, match='False.* is not supported'):
    train_states.extract_ema(_state(ema_decay=0.9), False)


@pytest.mark.parametrize('decay', [0.0, 0.9])
def test_whether_a_task_has_averages(decay):
  task = lines.task()
  task.train.learner.optimizer = optimizers.Sgd.config(
    learning_rate=1.0, ema_decay=decay
  )
  assert train_states.has_ema(task.Instantiate()) == bool(decay)


def test_a_provenance_has_the_structure_of_the_state():
  state = _state()
  found = train_states.build_train_state_provenance(state)
  assert jax.tree.structure(found.mdl_vars) == jax.tree.structure(
    state.mdl_vars
  )
