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
    (base_metrics.BaseMetrics, 'summarize'),
    (base_metrics.MeanMetrics, 'summarize'),
  ],
)
def test_methods_that_are_never_called_are_refused(base, name):
  with pytest.raises(errors.UserError, match=f'Own.{name} would never be'):
    type('Own', (base,), {name: lambda self: None, '__qualname__': 'Own'})


def test_metadata_of_a_state_is_that_of_the_weights():
  transformation = optimizers.Adam.config(
    learning_rate=0.1, ewc_regularizer_weight=0.1
  )
  made = optimizers.sharded_masked(
    transformation.Instantiate().get_grad_transformation(),
    {'w': True, 'b': False},
  )
  state = made.init({'w': jnp.ones([2, 3]), 'b': jnp.ones([3])})
  metas = {
    'w': WeightHParams([2, 3], tensor_split_dims_mapping=[0, None]),
    'b': WeightHParams([3]),
  }
  found = optimizers.partition_params(made, metas, state)
  leaves = jax.tree.leaves(
    found, is_leaf=lambda x: isinstance(x, WeightHParams)
  )
  leaves = [x for x in leaves if isinstance(x, WeightHParams)]
  # The start, two moments, and two counts.
  assert sum(x is metas['w'] for x in leaves) == 3
  assert [list(x.shape) for x in leaves].count([]) == 2
