"""The parts of a step make the same step as `Learner.update`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, learners, optimizers
from pax_compat.base_layer import WeightHParams, WeightInit

RNG = np.random.default_rng(0)
METAS = {
  'emb': WeightHParams([4, 3], init=WeightInit.Gaussian(0.5)),
  'layers': {'w': WeightHParams([3, 2], repeat_prefix=[2])},
  'list': [WeightHParams([2]), WeightHParams([3])],
}


def _is_meta(x) -> bool:
  return isinstance(x, WeightHParams)


def _arrays():
  return jax.tree.map(
    lambda meta: jnp.asarray(
      RNG.normal(size=[*meta.repeat_prefix, *meta.shape]), jnp.float32
    ),
    METAS,
    is_leaf=_is_meta,
  )


def _by_path(tree):
  return learners.by_path(tree, is_leaf=_is_meta)


def _learner(cls=learners.Learner, **fields):
  optimizer = optimizers.Adam.config(
    learning_rate=0.1,
    clip_gradient_norm_to_value=0.5,
    decoupled_weight_decay=0.1,
    ema_decay=0.9,
  )
  return cls.config(optimizer=optimizer, **fields).Instantiate()


SEVERAL = dict(
  cls=learners.MultiOptimizerLearner,
  auxiliary_optimizers=[optimizers.Sgd.config(learning_rate=0.5)],
  auxiliary_regex=['.*emb'],
  auxiliary_names=['emb'],
)


def _close(one, other):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7),
    one,
    other,
  )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'bprop_variable_exclusion': '.*/list/.*'},
    {'grad_norm_tracker': learners.GradNormTracker.config()},
    SEVERAL,
  ],
  ids=['one', 'excluded', 'tracked', 'several'],
)
def test_a_step_is_that_of_the_learner(fields):
  learner, metas = _learner(**fields), _by_path(METAS)
  variables = expected = _arrays()
  tx = learner.get_grad_tx(METAS)
  state = expected_state = tx.init(variables)
  for _ in range(2):
    gradients = _arrays()
    expected, expected_state, metrics, norms = learner.update(
      expected, expected_state, gradients, weight_metas=metas
    )
    with base_layer.JaxContext.new_context():
      updates, state = learner.update_states(gradients, state, variables, METAS)
      variables = learner.apply_gradient(variables, updates, METAS)
      found = dict(base_layer.all_global_summaries())
    _close(variables, expected)
    _close(state, expected_state)
    _close(
      {k.removesuffix('_scalar'): x for k, x in found.items()}
      | {'learning/var_norm': 0.0},
      {**metrics, **norms} | {'learning/var_norm': 0.0},
    )


def test_a_transformation_does_not_clip():
  learner = learners.Learner.config(
    optimizer=optimizers.Sgd.config(
      learning_rate=0.1, clip_gradient_norm_to_value=1e-3
    )
  ).Instantiate()
  weights, gradients = _arrays(), _arrays()
  tx = learner.get_grad_tx(METAS)
  updates, _ = tx.update(gradients, tx.init(weights), weights)
  _close(updates, jax.tree.map(lambda g: -0.1 * g, gradients))
  with pytest.raises(errors.UserError, match='the variables as its third'):
    tx.update(gradients, tx.init(weights))


def test_an_invalid_step_changes_nothing():
  learner, weights = _learner(), _arrays()
  state = learner.get_grad_tx(METAS).init(weights)
  gradients = jax.tree.map(lambda x: x * jnp.nan, weights)
  with base_layer.JaxContext.new_context():
    updates, new = learner.update_states(gradients, state, weights, METAS)
  _close(updates, jax.tree.map(jnp.zeros_like, weights))
  _close(new, state)


def test_variables_by_collection():
  learner, weights, gradients = _learner(), _arrays(), _arrays()
  state = {'mean': jnp.ones([2])}
  metas = {'params': METAS, 'non_trainable': {'mean': WeightHParams([2])}}
  variables = {'params': weights, 'non_trainable': state}
  others = {'params': gradients, 'non_trainable': state}
  with base_layer.JaxContext.new_context():
    alone = learner.update_states(
      gradients, learner.get_grad_tx(METAS).init(weights), weights, METAS
    )
    both = learner.update_states(
      others, learner.get_grad_tx(metas).init(variables), variables, metas
    )
    new = learner.apply_gradient(variables, both[0], metas)
  _close(both[0]['params'], alone[0])
  _close(both[1], alone[1])
  _close(new['non_trainable'], state)


@pytest.mark.parametrize(
  ('fields', 'factors'),
  [
    ({}, [1, 1]),
    ({'clip_gradient_norm_to_value': 1.0}, [1 / 13, 1 / 13]),
    ({'clip_gradient_single_norm_to_value': 1.0}, [1 / 5, 1 / 12]),
  ],
)
def test_gradients_are_scaled(fields, factors):
  gradients = {'a': jnp.array([3.0, 4.0]), 'b': jnp.array([12.0])}
  by_field = learners.Learner.config(
    optimizer=optimizers.Sgd.config(learning_rate=1.0, **fields)
  ).Instantiate()
  by_argument = learners.Learner.config(
    optimizer=optimizers.Sgd.config(learning_rate=1.0)
  ).Instantiate()
  with base_layer.JaxContext.new_context():
    one, valid = by_field.scale_gradients(gradients)
    other, _ = by_argument.scale_gradients(gradients, 'mine', **fields)
    found = base_layer.all_global_summaries()
  assert valid
  _close(
    one,
    {k: g * f for (k, g), f in zip(gradients.items(), factors, strict=True)},
  )
  _close(other, one)
  assert found['learning/raw_grad_norm_scalar'] == 13
  assert found['learning/mine/raw_grad_norm_scalar'] == 13


def test_too_large_gradients_are_invalid():
  learner = _learner(skip_step_gradient_norm_value=1.0)
  with base_layer.JaxContext.new_context():
    _, valid = learner.scale_gradients({'a': jnp.array([3.0])})
  assert not valid


def test_updates_are_scaled_when_they_are_applied():
  learner = _learner(scale_update_by_var_norm=True)
  metas, weights = {'emb': METAS['emb']}, {'emb': jnp.ones([4, 3])}
  with base_layer.JaxContext.new_context():
    new = learner.apply_gradient(weights, {'emb': jnp.ones([4, 3])}, metas)
  _close(new, {'emb': jnp.full([4, 3], 1.5)})


def test_learning_rates_are_summaries():
  with base_layer.JaxContext.new_context():
    _learner(**SEVERAL).plot_learning_rate(3)
    found = dict(base_layer.all_global_summaries())
  _close(found, {'learning/lr_main_scalar': 0.1, 'learning/lr_emb_scalar': 0.5})


def test_two_optimizers_of_a_weight():
  learner = _learner(**{**SEVERAL, 'auxiliary_regex': ['.*list']})
  learner.get_grad_tx(METAS)
  both = dict(
    SEVERAL,
    auxiliary_optimizers=SEVERAL['auxiliary_optimizers'] * 2,
    auxiliary_regex=['.*emb', '.*emb$'],
    auxiliary_names=['a', 'b'],
  )
  with pytest.raises(ValueError, match='expected one optimizer for each'):
    _learner(**both).get_grad_tx(METAS)


def test_weights_that_are_overwritten_with_their_gradients():
  group = base_layer.WeightHParamsCollection.OVERWRITE_WITH_GRADIENT
  metas = {
    'scale': WeightHParams([1], collections=[group], dtype=jnp.bfloat16),
    'w': WeightHParams([3]),
  }
  learner, weights = _learner(), {'w': jnp.ones([3])}
  weights['scale'] = jnp.ones([1], jnp.bfloat16)
  gradients = {'scale': jnp.array([7.0]), 'w': jnp.array([0.0, 3.0, 4.0])}
  state = learner.get_grad_tx(metas).init(weights)
  assert set(state.average.ema) == {'w'}
  new, _, metrics, _ = learner.update(
    weights, state, gradients, weight_metas=metas
  )
  with base_layer.JaxContext.new_context():
    updates, _ = learner.update_states(gradients, state, weights, metas)
    again = learner.apply_gradient(weights, updates, metas)
  assert new['scale'] == 7 and new['scale'].dtype == jnp.bfloat16
  assert metrics['learning/raw_grad_norm'] == 5
  _close(again, new)
