"""Optimizers with their regularization as one transformation."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, optimizers

WEIGHTS = {'w': jnp.array([[2.0, -1.0]]), 'b': jnp.array([3.0])}
GRADS = {'w': jnp.array([[1.0, 1.0]]), 'b': jnp.array([1.0])}
SKIPS = base_layer.WeightHParamsCollection.SKIP_LP_REGULARIZATION


def _update(metas=None, **fields):
  optimizer = optimizers.Sgd.config(learning_rate=0.5, **fields).Instantiate()
  made = optimizer.get_grad_transformation(metas)
  updates, state = made.update(GRADS, made.init(WEIGHTS), WEIGHTS)
  return updates, made.update(GRADS, state, WEIGHTS)[0]


@pytest.mark.parametrize(
  ('fields', 'w', 'b'),
  [
    ({}, [-0.5, -0.5], -0.5),
    ({'l2_regularizer_weight': 0.1}, [-0.6, -0.45], -0.65),
    ({'l1_regularizer_weight': 0.1}, [-0.55, -0.45], -0.55),
    (
      {'l2_regularizer_weight': 0.1, 'skip_lp_1d_vectors': True},
      [-0.6, -0.45],
      -0.5,
    ),
    ({'decoupled_weight_decay': 0.1}, [-0.6, -0.45], -0.65),
  ],
)
def test_regularization(fields, w, b):
  for updates in _update(**fields):
    np.testing.assert_allclose(updates['w'], [w], rtol=1e-6)
    np.testing.assert_allclose(updates['b'], [b], rtol=1e-6)


@pytest.mark.parametrize(
  'field', ['l2_regularizer_weight', 'decoupled_weight_decay']
)
def test_weights_that_skip_it(field):
  metas = {
    'w': base_layer.WeightHParams([1, 2]),
    'b': base_layer.WeightHParams([1], collections=(SKIPS,)),
  }
  updates, _ = _update(metas, **{field: 0.1})
  np.testing.assert_allclose(updates['w'], [[-0.6, -0.45]], rtol=1e-6)
  np.testing.assert_allclose(updates['b'], [-0.5], rtol=1e-6)


def test_the_average_is_the_learners():
  with pytest.raises(errors.UserError, match='kept by the learner'):
    _update(ema_decay=0.9)
