"""Tests of transformations under Pax's names, and of what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import base_metrics, errors, learners, optimizers
from pax_compat.base_layer import WeightHParams


class Mine(optimizers.BaseOptimizer):
  """An optimizer as it is written for Pax."""

  def _get_raw_grad_transformation(self, lr):
    return optimizers.sharded_chain(
      optimizers.sharded_masked(optax.scale(2.0), {'w': True, 'b': False}),
      optax.trace(0.9),
      optax.scale_by_learning_rate(lr),
    )


def test_an_optimizer_of_pax_makes_steps():
  weights = {'w': jnp.ones([2, 3]), 'b': jnp.ones([3])}
  metas = {k: WeightHParams(x.shape) for k, x in weights.items()}
  learner = learners.Learner.config(
    optimizer=Mine.config(learning_rate=0.1)
  ).Instantiate()
  state = learner.init(weights, weight_metas=metas)
  for _ in range(2):
    weights, state, metrics, _ = learner.update(
      weights, state, jax.tree.map(jnp.ones_like, weights), weight_metas=metas
    )
  # 1 - 0.1 * 1 - 0.1 * 1.9, and twice that.
  np.testing.assert_allclose(weights['b'], np.full([3], 0.71), rtol=1e-6)
  np.testing.assert_allclose(weights['w'], np.full([2, 3], 0.42), rtol=1e-6)
  np.testing.assert_allclose(metrics['learning/lr'], 0.1)
  rate = Mine.config(learning_rate=0.1).Instantiate().get_learning_rate(3)
  np.testing.assert_allclose(rate, 0.1)


def test_states_that_do_not_fit_are_refused():
  chain = optimizers.sharded_chain(optax.scale(2.0))
  with pytest.raises(errors.UserError, match='2 states for 1 transf'):
    chain.update(jnp.ones(2), ((), ()))


@pytest.mark.parametrize(
  'base, name',
  [
    (learners.Learner, 'scale_gradients'),
    (learners.Learner, 'update_states'),
    (learners.MultiOptimizerLearner, 'get_masks'),
    (base_metrics.BaseMetrics, 'aggregate'),
    (base_metrics.MeanMetrics, 'summarize'),
  ],
)
def test_methods_that_are_never_called_are_refused(base, name):
  with pytest.raises(errors.UserError, match=f'Own.{name} would never be'):
    type('Own', (base,), {name: lambda self: None, '__qualname__': 'Own'})
