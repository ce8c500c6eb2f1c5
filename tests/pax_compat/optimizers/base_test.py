"""The contract of all optimizers with learners."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import errors, optimizers, schedules
from pax_compat.config import Config
from pax_compat.learners.state import state_leaves
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE

_ADAFACTOR = {'decay_method': 'adam', 'decay_adam': 0.9, 'beta1': 0.9}
_DISTRIBUTED = {
  'start_preconditioning_step': 1,
  'preconditioning_compute_steps': 1,
  'matrix_epsilon': 0.1,
}
CONFIGS = {
  'Sgd': {},
  'ShardedSgd': {'momentum': 0.9, 'nesterov': True},
  'Adam': {'weight_decay': 0.1},
  'AdamW': {},
  'Lamb': {'weight_decay': 0.1},
  'Lars': {'weight_decay': 0.1},
  'Lion': {},
  'Adagrad': {},
  'ShardedAdagrad': {},
  'RmsProp': {},
  'Adafactor': {'min_dim_size_to_factor': 4, 'momentum': 0.9},
  'ShardedAdafactor': _ADAFACTOR,
  'OptaxOptimizer': {'grad_tx': Config(optax.adam, learning_rate=RATE)},
  'ShardedStaticAccumulator': {
    'num_sub_batches': 2,
    'optimizer_tpl': optimizers.ShardedAdafactor.config(**_ADAFACTOR),
  },
  'WeightedAccumulator': {
    'min_weight': 1.0,
    'optimizer_tpl': optimizers.ShardedAdafactor.config(**_ADAFACTOR),
  },
  'Graft': {
    'magnitude_tpl': optimizers.Sgd.config(),
    'direction_tpl': optimizers.ShardedAdafactor.config(**_ADAFACTOR),
  },
  'Shampoo': {'start_step': 1, 'root_interval_steps': 1, 'epsilon': 0.1},
  'DistributedShampoo': _DISTRIBUTED,
  'ShardedDistributedShampoo': {**_DISTRIBUTED, 'mesh_axis_names': ['a', 'b']},
}
# State of other shapes than the weight's.
_MATRICES = ('statistics', 'roots', 'errors')


def test_every_optimizer_is_tested():
  tested = {*CONFIGS, 'BaseOptimizer', 'Accumulator', 'GraftingType'}
  names = [n for n in optimizers.__all__ if n[0].isupper()]
  kinds = {'GeneralGradientTransformation', 'ShardedGradientTransformation'}
  assert tested | kinds == set(names)


def _optimizer(name, **fields):
  cls = getattr(optimizers, name)
  return cls.config(
    learning_rate=RATE, **{**CONFIGS[name], **fields}
  ).Instantiate()


def _weights():
  return jax.tree.map(jnp.asarray, stepping.weights())


@pytest.mark.parametrize('name', CONFIGS)
def test_the_last_item_of_the_state_counts(name):
  transformation = _optimizer(name).grad_transformation()
  weights = _weights()
  state, update = transformation.init(weights), jax.jit(transformation.update)
  for step, gradient in enumerate(stepping.gradients()):
    assert state[-1].count == step
    _, state = update(gradient, state, weights)


@pytest.mark.parametrize('name', CONFIGS)
def test_state_leaves_belong_to_weights(name):
  """Each leaf of a weight has one of the shapes in the module docstring."""
  optimizer = _optimizer(name)
  weights = _weights()
  state = jax.eval_shape(optimizer.grad_transformation().init, weights)
  leaves, owners = jax.tree.leaves(state), state_leaves.owners(state, weights)
  for leaf, owner in zip(leaves, owners, strict=True):
    if owner is None:
      assert leaf.shape == ()
      continue
    shape = weights[owner.path].shape
    if leaf.shape not in (shape, (1,)) and owner.field not in _MATRICES:
      dim = optimizer.reduced_dim(owner.field, shape, leaf.shape)
      assert leaf.shape == shape[:dim] + shape[dim + 1 :], owner


@pytest.mark.parametrize('name', CONFIGS)
def test_stacked_weights_can_be_mapped_over(name):
  """`vmap` over a stack of weights matches each of them."""
  transformation = _optimizer(name).grad_transformation()

  def last(weights, gradients):
    state = transformation.init(weights)
    for step in range(stepping.STEPS):
      gradient = jax.tree.map(lambda g, step=step: g[step], gradients)
      updates, state = transformation.update(gradient, state, weights)
      weights = optax.apply_updates(weights, updates)
    return weights

  def stack(*trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

  kept = ('bias', 'matrix')
  one = {k: _weights()[k] for k in kept}
  gradients = [{k: g[k] for k in kept} for g in stepping.gradients(6)]
  layers = [one, jax.tree.map(lambda w: 3 * w, one)]
  given = [stack(*gradients[:3]), stack(*gradients[3:])]
  mapped = jax.jit(jax.vmap(last))(stack(*layers), stack(*given))
  want = stack(*map(jax.jit(last), layers, given))
  for key in kept:
    np.testing.assert_allclose(mapped[key], want[key], rtol=1e-5, atol=1e-6)


def test_the_schedule_multiplies_the_learning_rate():
  schedule = schedules.Transformer.config(warmup_steps=2, model_dim=1)
  config = optimizers.Sgd.config(learning_rate=RATE, lr_schedule=schedule)
  rates = [
    RATE * min((t + 1) * 2**-1.5, (t + 1) ** -0.5)
    for t in range(stepping.STEPS)
  ]

  def formula(name, w, gradients):
    del name
    for rate, g in zip(rates, gradients, strict=True):
      w = w - rate * g
      yield w

  stepping.assert_steps(config, formula)
  rate_at = config.Instantiate().learning_rate_fn()
  np.testing.assert_allclose(
    [rate_at(jnp.int32(t)) for t in range(stepping.STEPS)], rates, rtol=1e-5
  )


def test_every_step_updates_weights():
  optimizer = _optimizer('Adam')
  assert [bool(optimizer.updates_weights(jnp.int32(n))) for n in range(3)] == [
    True
  ] * 3


@pytest.mark.parametrize(
  'weight,leaf,want',
  [((3, 4), (4,), 0), ((3, 4), (3,), 1), ((2, 3, 4), (2, 4), 1)]
  + [((4, 4), (4,), None), ((3, 4), (5,), None), ((3,), (1,), None)],
)
def test_a_dimension_is_inferred_from_shapes(weight, leaf, want):
  assert _optimizer('Sgd').reduced_dim('any', weight, leaf) == want


@pytest.mark.parametrize(
  'fields,message',
  [
    (
      {'decoupled_weight_decay': 0.1, 'l2_regularizer_weight': 0.1},
      'decoupled_weight_decay and l2_regularizer_weight exclude',
    ),
    (
      {'decoupled_weight_decay': 0.1, 'l1_regularizer_weight': 0.1},
      'decoupled_weight_decay and l1_regularizer_weight exclude',
    ),
    (
      {
        'clip_gradient_norm_to_value': 1.0,
        'clip_gradient_single_norm_to_value': 1.0,
      },
      'clip_gradient_norm_to_value and clip_gradient_single_norm_to_value',
    ),
    ({'ema_decay': 1.0}, 'ema_decay is 1.0; expected below 1'),
    (
      {'ewc_regularizer_weight': -0.1},
      'ewc_regularizer_weight is -0.1; expected 0 or more',
    ),
    (
      {'ewc_weight_per_var': {'w': 1.0}},
      'ewc_regularizer_weight is 0; expected',
    ),
  ],
)
@pytest.mark.parametrize('name', CONFIGS)
def test_mistakes(name, fields, message):
  with pytest.raises(errors.UserError, match=f'{name}.*{message}'):
    _optimizer(name, **fields)


def test_a_typo_gets_a_suggestion():
  with pytest.raises(errors.UserError, match='did you mean: learning_rate'):
    optimizers.Adam.config(learning_rat=0.1)


def test_consolidation_of_each_weight():
  """With factors, and what is wrong with them."""
  factors = {'w': 3.0, 'deep': {'x': np.array([1.0, 0.0])}}
  weights = {'w': jnp.ones([2]), 'deep': {'x': jnp.ones([2])}}
  gradients = jax.tree.map(jnp.ones_like, weights)

  def last(factors):
    transformation = optimizers.Sgd.config(
      learning_rate=0.1, ewc_regularizer_weight=2.0, ewc_weight_per_var=factors
    )
    one = transformation.Instantiate().get_grad_transformation()
    state, found = one.init(weights), weights
    for _ in range(2):
      updates, state = jax.jit(one.update)(gradients, state, found)
      found = optax.apply_updates(found, updates)
    return found

  # After the first step w is 0.9, and is pulled to 1 by 0.1 * factor * 0.1.
  found = last(factors)
  np.testing.assert_allclose(found['w'], [0.83, 0.83], rtol=1e-6)
  np.testing.assert_allclose(found['deep']['x'], [0.81, 0.8], rtol=1e-6)
  with pytest.raises(errors.UserError, match="no factor for the weight 'w'"):
    last({'deep': factors['deep']})
  with pytest.raises(errors.UserError, match=r"shape \[3\] for 'w'"):
    last(factors | {'w': np.ones([3])})
