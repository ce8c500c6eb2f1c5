"""Tests that optimizers make the steps of Pax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, learners, optimizers, schedules
from tests import source_tree
from tests.pax import optimizer_cases

_RECORDED = np.load(source_tree.ROOT / 'testdata/pax/optimizers.npz')


@pytest.mark.parametrize('name', optimizer_cases.CASES)
def test_steps_are_those_of_pax(name):
  config = optimizer_cases.config(optimizers, schedules, name)
  learner = learners.Learner.config(optimizer=config).Instantiate()
  weights = jax.tree.map(jnp.asarray, optimizer_cases.weights())
  metas = {k: base_layer.WeightHParams(x.shape) for k, x in weights.items()}
  state = learner.init(weights, weight_metas=metas)

  @jax.jit
  def step(weights, state, gradients):
    return learner.update(weights, state, gradients, weight_metas=metas)[:2]

  for i in range(optimizer_cases.STEPS):
    weights, state = step(weights, state, optimizer_cases.gradients(i))
  # Pax's Adam stores moments after bias correction: 1 - beta2 ** t is rounded.
  atol = 5e-6 if name.startswith('adam') else 1e-6
  # Roots of matrices of rank 5 of 6, in float32; some weights are above 10.
  atol = 1e-5 if 'shampoo' in name else atol
  for key, weight in weights.items():
    expected = _RECORDED[f'{name}/{key}']
    np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=atol)


def test_consolidation_of_accumulated_gradients_is_refused():
  config = optimizer_cases.config(optimizers, schedules, 'accumulator')
  with pytest.raises(errors.UserError, match='that accumulate gradients'):
    config.Instantiate(ewc_regularizer_weight=0.1)
