"""Stacked layers: each is optimized like a single layer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import errors, optimizers
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import RATE, learner, sgd

_RNG = np.random.default_rng(0)


def _normal(*shape):
  """Returns random numbers whose size depends on the first index."""
  scale = 10.0 ** np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
  return (scale * _RNG.normal(size=shape)).astype(np.float32)


PARAMS = {
  'plain': _normal(4, 6),
  'x': {'w': _normal(2, 4, 4), 'b': _normal(2, 4), 'deep': _normal(2, 3, 4, 5)},
}
PREFIXES = {'x/w': (2,), 'x/b': (2,), 'x/deep': (2, 3)}
METAS = stepping.metas(
  PARAMS, **{path: {'repeat_prefix': p} for path, p in PREFIXES.items()}
)
GRADIENTS = [
  jax.tree.map(lambda w: _normal(*w.shape), PARAMS) for _ in range(3)
]

_ADAFACTOR = {
  'min_dim_size_to_factor': 4,
  'sort_factored_second_moment_dims': True,
  'multiply_by_parameter_scale': True,
  'decay_method': 'pow',
  'decay_pow': 0.8,
  'beta1': 0.9,
}
OPTIMIZERS = {
  'Sgd': {'momentum': 0.9},
  'Adam': {},
  'Lamb': {'weight_decay': 0.1},
  'Lars': {},
  'Adafactor': {'min_dim_size_to_factor': 4},
  'ShardedAdafactor': _ADAFACTOR,
  'Shampoo': {'start_step': 1, 'root_interval_steps': 1, 'epsilon': 10.0},
  'Graft': {
    'magnitude_tpl': optimizers.Sgd.config(),
    'direction_tpl': optimizers.Adam.config(),
  },
  'WeightedAccumulator': {
    'optimizer_tpl': optimizers.Lamb.config(),
    'min_weight': 2.0,
  },
}


def _unstacked(tree):
  """Returns a tree with separate weights for each layer."""
  x = tree['x']
  return {
    'plain': tree['plain'],
    'w': list(x['w']),
    'b': list(x['b']),
    'deep': list(x['deep'].reshape(-1, 4, 5)),
  }


def _keys(tree):
  """Returns a tree with dicts in place of lists."""
  return {
    key: {f'_{i}': x for i, x in enumerate(value)}
    if isinstance(value, list)
    else value
    for key, value in _unstacked(tree).items()
  }


def _optimizer(name, **fields):
  return getattr(optimizers, name).config(learning_rate=RATE, **fields)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_a_stack_is_optimized_like_single_layers(name):
  one = learner(
    _optimizer(name, clip_gradient_single_norm_to_value=2.0, **OPTIMIZERS[name])
  )
  stacked, _, _ = stepping.steps(one, PARAMS, GRADIENTS, METAS)[-1]
  single, _, _ = stepping.steps(one, _keys(PARAMS), map(_keys, GRADIENTS))[-1]
  stepping.assert_trees_close(_keys(stacked), single, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(('layers', 'axes'), [(False, None), (True, (1, 2))])
def test_a_stack_is_optimized_as_one_weight(layers, axes):
  """LAMB then uses the norm of all layers together."""
  one = learner(_optimizer('Lamb'), vectorize_on_repeat_prefix=layers)
  new, _, _ = stepping.step(one, PARAMS, GRADIENTS[0], weight_metas=METAS)
  w = PARAMS['x']['w']
  # Adam's first step is 1 for each element, so the ratio of the norms is
  # the weight's root mean square.
  ratio = np.sqrt(np.mean(w**2, axis=axes, keepdims=True))
  np.testing.assert_allclose(
    np.abs(new['x']['w'] - w), RATE * ratio * np.ones_like(w), rtol=1e-3
  )


def test_norms_of_each_layer():
  one = learner(grad_norm_individual_vars=True, var_norm_individual_vars=True)
  _, _, metrics = stepping.step(one, PARAMS, GRADIENTS[0], weight_metas=METAS)
  norms = {k: v for k, v in metrics.items() if k.startswith('per_var')}
  want = {}
  for kind, tree in (('grad_norm', GRADIENTS[0]), ('norm', PARAMS)):
    norm = np.linalg.norm
    prefix = f'per_var_{kind}/params'
    want[f'{prefix}/plain'] = norm(tree['plain'])
    for i in range(2):
      want[f'{prefix}/x/w/{i}'] = norm(tree['x']['w'][i])
      want[f'{prefix}/x/b/{i}'] = norm(tree['x']['b'][i])
      for j in range(3):
        want[f'{prefix}/x/deep/{i}/{j}'] = norm(tree['x']['deep'][i, j])
  stepping.assert_trees_close(norms, want)


def _groups(**fields):
  return stepping.init(learner(**fields), PARAMS, METAS).optimizer


def test_the_state_has_groups():
  state = _groups(optimizer=_optimizer('Adam'))
  assert list(state) == ['no_prefix', 'p#2', 'p#2.3']
  assert list(_groups(repeat_prefix_sep='_')) == ['no_prefix', 'p_2', 'p_2.3']
  # There is one count for a group.
  assert [group[-1].count.shape for group in state.values()] == [()] * 3
  shapes = {x.shape for x in jax.tree.leaves(state['p#2'])}
  assert shapes == {(), (2, 4, 4), (2, 4)}


def test_the_state_may_have_groups_without_stacks():
  plain = stepping.init(learner(), PARAMS).optimizer
  forced = stepping.init(
    learner(force_repeat_prefix_structure=True), PARAMS
  ).optimizer
  assert list(forced) == ['no_prefix']
  assert jax.tree.structure(forced['no_prefix']) == jax.tree.structure(plain)
  new, _, _ = stepping.step(
    learner(force_repeat_prefix_structure=True), PARAMS, GRADIENTS[0]
  )
  want, _, _ = stepping.step(learner(), PARAMS, GRADIENTS[0])
  stepping.assert_trees_close(new, want)


def test_masks_are_trees_of_all_weights():
  mask = {'plain': True, 'x': {'w': True, 'b': False, 'deep': False}}
  config = optimizers.OptaxOptimizer.config(
    learning_rate=RATE, grad_tx=optax.masked(optax.set_to_zero(), mask)
  )
  one = learner(config, bprop_variable_exclusion='params/x/deep')
  new, _, _ = stepping.step(one, PARAMS, GRADIENTS[0], weight_metas=METAS)
  want = jax.tree.map(np.copy, PARAMS)
  want['x']['b'] = PARAMS['x']['b'] + GRADIENTS[0]['x']['b']
  stepping.assert_trees_close(new, want)


def test_state_of_all_weights_together_is_refused():
  config = optimizers.OptaxOptimizer.config(
    grad_tx=optax.apply_if_finite(optax.sgd(RATE), 3)
  )
  with pytest.raises(
    errors.UserError, match='all weights together.*vectorize_on_repeat_prefix'
  ):
    stepping.step(learner(config), PARAMS, GRADIENTS[0], weight_metas=METAS)
  whole = learner(config, vectorize_on_repeat_prefix=False)
  new, _, _ = stepping.step(whole, PARAMS, GRADIENTS[0], weight_metas=METAS)
  want = jax.tree.map(lambda w, g: w - RATE * g, PARAMS, GRADIENTS[0])
  stepping.assert_trees_close(new, want, atol=1e-6)


def test_an_optimizers_own_value_errors_propagate():
  def init(params):
    del params
    return jnp.zeros([])

  def update(gradients, state, params=None):
    raise ValueError('mine')

  config = optimizers.OptaxOptimizer.config(
    grad_tx=optax.GradientTransformation(init, update)
  )
  with pytest.raises(ValueError, match='^mine'):
    stepping.step(learner(config), PARAMS, GRADIENTS[0], weight_metas=METAS)


def test_no_weights_but_stacks():
  params, gradients = {'x': PARAMS['x']}, {'x': GRADIENTS[0]['x']}
  new, _, metrics = stepping.step(
    learner(sgd(clip_gradient_norm_to_value=1e9)),
    params,
    gradients,
    weight_metas=stepping.metas(
      params, **{path: {'repeat_prefix': p} for path, p in PREFIXES.items()}
    ),
  )
  want = jax.tree.map(lambda w, g: w - RATE * g, params, gradients)
  stepping.assert_trees_close(new, want, atol=1e-5)
  np.testing.assert_allclose(metrics['learning/lr'], RATE)
