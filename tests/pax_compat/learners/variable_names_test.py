"""Weights that are not trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers
from pax_compat.base_layer import NON_TRAINABLE
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import RATE, learner

PARAMS = {
  'emb': np.array([3.0, 4.0], np.float32),
  'lm': {
    'w': np.array([1.0, 2.0], np.float32),
    'b': np.array([-1.0], np.float32),
  },
}
GRADIENTS = jax.tree.map(np.ones_like, PARAMS)


def _adam(**fields):
  return optimizers.Adam.config(learning_rate=RATE, **fields)


@pytest.mark.parametrize(
  ('fields', 'trained'),
  [
    ({'bprop_variable_exclusion': 'params/emb'}, {'lm/w', 'lm/b'}),
    ({'bprop_variable_exclusion': ['.*/emb', '.*/b']}, {'lm/w'}),
    ({'bprop_variable_exclusion': 'params/lm/.*'}, {'emb'}),
    ({'bprop_variable_inclusion': ['params/lm/.']}, {'lm/w', 'lm/b'}),
    ({'bprop_variable_inclusion': 'params/(emb|lm/b)'}, {'emb', 'lm/b'}),
  ],
)
def test_only_some_weights_are_trained(fields, trained):
  one = learner(_adam(ema_decay=0.9), grad_norm_individual_vars=True, **fields)
  params, state, metrics = stepping.steps(one, PARAMS, [GRADIENTS] * 3)[-1]
  before = learners.by_path(PARAMS)
  for path, weight in learners.by_path(params).items():
    # Gradients of 1 at every step make steps of Adam as long as the rate.
    moved = 3 * RATE if path in trained else 0
    np.testing.assert_allclose(before[path] - weight, moved, rtol=1e-4)
    assert (f'per_var_grad_norm/params/{path}' in metrics) == (path in trained)
  size = sum(before[path].size for path in trained)
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt(size), rtol=1e-6
  )
  # The first and second moments and the average of the weights.
  state_size = sum(x.size for x in jax.tree.leaves(state) if x.ndim)
  assert state_size == 3 * size


def test_the_state_of_excluded_weights_may_be_kept():
  one = learner(
    _adam(ema_decay=0.9),
    bprop_variable_exclusion='params/emb',
    keep_optimizer_state_for_excluded_vars=True,
  )
  everything = stepping.init(learner(_adam(ema_decay=0.9)), PARAMS)
  state = stepping.init(one, PARAMS)
  assert jax.tree.structure(state) == jax.tree.structure(everything)
  ones = jax.tree.map(jnp.ones_like, state)
  new, after, metrics = stepping.step(one, PARAMS, GRADIENTS, ones)
  # Adam's old momentum would move the weights.
  np.testing.assert_array_equal(new['emb'], PARAMS['emb'])
  moments = [
    leaf
    for path, leaf in jax.tree_util.tree_flatten_with_path(after)[0]
    if '.mu' in (name := jax.tree_util.keystr(path)) and 'emb' in name
  ]
  np.testing.assert_allclose(moments, [[0.9, 0.9]], rtol=1e-6)
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt(3), rtol=1e-6
  )


def test_broken_gradients_of_excluded_weights_do_not_matter():
  one = learner(bprop_variable_exclusion='params/emb')
  broken = {**GRADIENTS, 'emb': np.array([np.nan, 0.0], np.float32)}
  new, _, metrics = stepping.step(one, PARAMS, broken)
  assert metrics['learning/is_valid_step'] == 1
  np.testing.assert_allclose(new['lm']['b'], [-1 - RATE], rtol=1e-6)


NAMES = ['params/emb', 'params/lm/w', 'non_trainable/bn/mean']


def test_a_pattern_must_match_a_whole_name():
  one = learner(bprop_variable_exclusion='params/em')
  with pytest.raises(
    errors.UserError,
    match="bprop_variable_exclusion: 'params/em'.*mean: params/emb",
  ):
    one.check_names(NAMES)


def test_each_pattern_must_match():
  one = learner(bprop_variable_inclusion=['params/emb', 'lm/w'])
  with pytest.raises(
    errors.UserError, match="inclusion: 'lm/w'.*mean: params/lm/w"
  ):
    one.check_names(NAMES)


def test_a_pattern_may_match_non_trainable_variables():
  learner(bprop_variable_exclusion='.*/mean').check_names(NAMES)


@pytest.mark.parametrize(
  ('fields', 'kept'),
  [
    ({'bprop_variable_exclusion': '.*emb.*'}, True),
    ({'bprop_variable_exclusion': 'params/emb'}, False),
    ({'bprop_variable_inclusion': 'params/.*'}, True),
    ({'bprop_variable_inclusion': '.*emb.*'}, False),
  ],
)
def test_non_trainable_variables_are_excluded_by_name(fields, kept):
  old = {NON_TRAINABLE: {'emb_norm': {'mean': np.zeros(2)}}}
  new = {NON_TRAINABLE: {'emb_norm': {'mean': np.ones(2)}}}
  one = learner(**fields)
  _, _, metrics = stepping.step(one, PARAMS, GRADIENTS)
  got = one.next_variables(old, new, metrics)
  np.testing.assert_array_equal(
    got[NON_TRAINABLE]['emb_norm']['mean'], np.zeros(2) if kept else np.ones(2)
  )
