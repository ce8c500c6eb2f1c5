"""Translated optimizers against Lingvo's own, run for real."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptors import lingvo_runtime
from pax_compat import optimizers
from tests.adaptors.translate import lingvo_steps, parity

_RATE = 0.1
_STEPS = 3
_TOLERANCE = 1e-5
# One weight of each kind: a vector, a matrix too small to be factored and two
# that are not, with the larger dimension first and last, and tensors whose two
# large dimensions lie apart.
_SHAPES = {
  'bias': (3,),
  'small': (3, 5),
  'tall': (7, 4),
  'wide': (4, 6),
  'square': (4, 4),
  'heads': (6, 2, 4),
  'stack': (2, 4, 5),
  'last_largest': (5, 2, 7),
}
_FACTOR_SIZE = 4


def _weights():
  rng = np.random.default_rng(1)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in _SHAPES.items()
  }


def _gradients(steps=_STEPS):
  rng = np.random.default_rng(2)
  return [
    {
      # Some small enough for epsilons to matter.
      name: (10.0 ** -(i % 3) * rng.normal(size=shape)).astype(np.float32)
      for i, (name, shape) in enumerate(_SHAPES.items())
    }
    for _ in range(steps)
  ]


def _lingvo(name, **fields):
  module = lingvo_runtime.module('lingvo.core.optimizer')
  return getattr(module, name).Params().Set(**fields)


def _schedule(name, **fields):
  module = lingvo_runtime.module('lingvo.core.schedule')
  return getattr(module, name).Params().Set(**fields)


def _assert_same(params, *, steps=_STEPS, rate=_RATE, loss_weights=None):
  """Compares steps of an optimizer with those of its translation.

  Args:
    params: Lingvo's.
    steps: how many batches there are.
    rate: the learning rate, or Params of its schedule.
    loss_weights: what each batch weighs, where it matters.
  """
  settings = dict(learning_rate=rate)
  if not isinstance(rate, float):
    settings = dict(learning_rate=1.0, lr_schedule=parity.translate(rate))
  ours = parity.translate(params).set(**settings).Instantiate()
  transformation = ours.grad_transformation()
  weights, gradients = jax.tree.map(jnp.asarray, _weights()), _gradients(steps)
  state = transformation.init(weights)
  expected = lingvo_steps.optimizer_steps(
    params, _weights(), gradients, rate, loss_weights=loss_weights
  )
  update = jax.jit(transformation.update)
  for i, (gradient, want) in enumerate(zip(gradients, expected, strict=True)):
    extra = {'loss_weight': loss_weights[i]} if loss_weights else {}
    updates, state = update(gradient, state, weights, **extra)
    weights = optax.apply_updates(weights, updates)
    for name, value in want.items():
      parity.assert_close(weights[name], value, _TOLERANCE, name)
  moved = jax.tree.map(
    lambda w, first: float(np.max(np.abs(w - first))), weights, _weights()
  )
  assert min(moved.values()) > 1e-4, moved
  return ours


_CASES = [
  ('SGD', {}),
  ('Momentum', {'alpha': 0.8, 'use_nesterov': True}),
  ('RMSProp', {}),
  ('RMSProp', {'decay': 0.7, 'momentum': 0.5, 'epsilon': 1e-3}),
  ('Adagrad', {}),
  ('Adagrad', {'initial_accumulator_value': 0.5}),
  ('AdaDelta', {'decay': 0.5, 'epsilon': 1e-2}),
  ('Adam', {}),
  ('Adam', {'beta1': 0.8, 'beta2': 0.95, 'epsilon': 1e-3}),
  ('XLAShardingAdafactor', {'beta1': 0.9, 'beta2': 0.9}),
  ('XLAShardingAdafactor', {'factored': False, 'clipping_threshold': 0.5}),
  ('XLAShardingAdafactor', {'multiply_by_parameter_scale': False}),
  (
    'XLAShardingAdafactor',
    # As in the stock language models.
    {'beta1': 0, 'clipping_threshold': 1.0, 'decay_exponent_pow': 0.8},
  ),
  (
    'XLAShardingAdafactor',
    {'beta1': 0.5, 'decay_exponent_pow': 0.8, 'decay_exponent_offset': -5},
  ),
  ('XLAShardingAdafactorAccuGrad', {'beta1': 0.9}),
]


@pytest.mark.parametrize('name,fields', _CASES)
def test_three_steps(name, fields):
  if name.startswith('XLASharding'):
    fields = {'min_dim_size_to_factor': _FACTOR_SIZE, **fields}
  _assert_same(_lingvo(name, **fields))


def test_adam_of_keras():
  """Lingvo's own AdamV2 does not run with today's Keras; its optimizer does."""
  tf = lingvo_runtime.module('tensorflow')
  params = _lingvo('AdamV2', beta2=0.95, epsilon=1e-3)
  ours = parity.translate(params).set(learning_rate=_RATE).Instantiate()
  theirs = params.Instantiate().GetOptimizer(_RATE)
  transformation = ours.grad_transformation()
  first = _weights()['small']
  weights = {'small': jnp.asarray(first)}
  variables = {'small': tf.Variable(first)}
  state = transformation.init(weights)
  for gradients in _gradients():
    gradient = {'small': gradients['small']}
    updates, state = transformation.update(gradient, state, weights)
    weights = optax.apply_updates(weights, updates)
    theirs.apply_gradients(
      [(tf.constant(gradient[k]), v) for k, v in variables.items()]
    )
    for name, value in variables.items():
      parity.assert_close(weights[name], value.numpy(), _TOLERANCE, name)


def test_adafactor_of_a_schedule_with_momentum():
  """Momentum accumulates updates with the learning rates of their steps."""
  _assert_same(
    _lingvo(
      'XLAShardingAdafactor', beta1=0.9, min_dim_size_to_factor=_FACTOR_SIZE
    ),
    rate=_schedule('ExponentialSchedule', start=(0, 1.0), limit=(2, 0.1)),
  )


@pytest.mark.parametrize('wrapped', ['SGD', 'Adam'])
def test_accumulator(wrapped):
  _assert_same(
    _lingvo('Accumulator', optimizer_tpl=_lingvo(wrapped), accum_steps=3),
    steps=9,
  )


def test_accumulator_of_a_schedule():
  rate = _schedule('LinearSchedule', start=(0, 1.0), limit=(5, 0.1))
  ours = _assert_same(
    _lingvo('Accumulator', optimizer_tpl=_lingvo('SGD'), accum_steps=2),
    steps=6,
    rate=rate,
  )
  rate_at = ours.learning_rate_fn()
  np.testing.assert_allclose(
    [rate_at(jnp.int32(n)) for n in range(6)],
    np.repeat(lingvo_steps.schedule_values(rate, [1, 3, 5]), 2),
    rtol=1e-6,
  )


@pytest.mark.parametrize('wrapped', ['SGD', 'Adam', 'AdaGraft'])
def test_dynamic_accumulator(wrapped):
  """The schedule goes by updates, of which there are three here."""
  fields = {}
  if wrapped == 'AdaGraft':
    fields = dict(
      magnitude_optimizer=_made('SGD'), direction_optimizer=_made('Adagrad')
    )
  ours = _assert_same(
    _lingvo(
      'DynamicAccumulator',
      optimizer_tpl=_lingvo(wrapped, **fields),
      min_accum_weight=4.0,
    ),
    steps=7,
    rate=_schedule('LinearSchedule', start=(0, 1.0), limit=(3, 0.1)),
    loss_weights=[1.0, 2.5, 0.5, 7.0, 3.0, 2.0, 1.0],
  )
  rates = [ours.learning_rate_fn()(jnp.int32(n)) for n in range(3)]
  np.testing.assert_allclose(rates, [1.0, 0.7, 0.4], rtol=1e-6)


def _made(name, **fields):
  return _lingvo(name, **fields).Instantiate()


@pytest.mark.parametrize(
  'magnitude,direction,fields',
  [
    ('SGD', 'Adagrad', {'direction_optimizer_lr': 0.3}),
    ('Adam', 'Momentum', {'diagnostic': True}),
    ('RMSProp', 'Adam', {}),
    ('XLAShardingAdafactor', 'SGD', {}),
    ('SGD', 'XLAShardingAdafactor', {}),
  ],
)
def test_ada_graft(magnitude, direction, fields):
  params = _lingvo(
    'AdaGraft',
    magnitude_optimizer=_made(magnitude),
    direction_optimizer=_made(direction),
    **fields,
  )
  _assert_same(params)


def test_ada_graft_of_a_schedule():
  """The direction of momentum depends on the rates that steps were made at."""
  _assert_same(
    _lingvo(
      'AdaGraft',
      magnitude_optimizer=_made('SGD'),
      direction_optimizer=_made('RMSProp'),
    ),
    rate=_schedule('ExponentialSchedule', start=(0, 1.0), limit=(2, 0.1)),
  )


def test_one_batch_needs_no_accumulator():
  for name, fields in (
    ('Accumulator', {'optimizer_tpl': _lingvo('SGD'), 'accum_steps': 1}),
    ('SGD', {}),
  ):
    config = parity.translate(_lingvo(name, **fields))
    assert isinstance(
      config.set(learning_rate=1.0).Instantiate(), optimizers.Sgd
    )


@pytest.mark.parametrize(
  'name,fields,message',
  [
    ('DynamicAccumulator', {}, 'None is not a positive number'),
    ('DistributedShampoo', {'max_any_dim': 2_000_000}, 'max_any_dim'),
    ('XLAShardingAdafactor', {'cond_is_finite': True}, 'cond_is_finite'),
    ('Adam', {'use_bf16_gradients_ar': True}, 'use_bf16_gradients_ar'),
    ('SGD', {'random_seed': 3}, 'random_seed'),
  ],
)
def test_what_is_refused(name, fields, message):
  (issue,) = parity.issues_of(_lingvo(name, **fields))
  assert f'lingvo.core.optimizer.{name}' in issue and message in issue


@pytest.mark.parametrize(
  'wrapped', ['XLAShardingAdafactor', 'Accumulator', 'DistributedShampoo']
)
@pytest.mark.parametrize(
  'name,fields',
  [('Accumulator', {}), ('DynamicAccumulator', {'min_accum_weight': 4})],
)
def test_what_an_accumulator_cannot_wrap(name, fields, wrapped):
  (issue,) = parity.issues_of(
    _lingvo(name, optimizer_tpl=_lingvo(wrapped), **fields)
  )
  assert 'layer.optimizer_tpl' in issue


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'use_global_norm': lambda: True}, 'Lingvo updates no weight'),
    (
      {'magnitude_optimizer': lambda: _lingvo('SGD')},
      'is not an optimizer object, which Lingvo expects',
    ),
    (
      {'magnitude_optimizer': lambda: None},
      'None is not an optimizer object',
    ),
    (
      {'direction_optimizer': lambda: _made('DistributedShampoo')},
      'DistributedShampoo does not work within AdaGraft',
    ),
    (
      {
        'direction_optimizer': lambda: _made(
          'Accumulator', optimizer_tpl=_lingvo('SGD')
        )
      },
      'Accumulator does not work within AdaGraft',
    ),
    (
      {'direction_optimizer': lambda: _made('SGD', random_seed=3)},
      'layer.direction_optimizer.random_seed',
    ),
  ],
)
def test_what_ada_graft_cannot_have(fields, message):
  made = dict(
    magnitude_optimizer=_made('SGD'), direction_optimizer=_made('SGD')
  ) | {name: make() for name, make in fields.items()}
  (issue,) = parity.issues_of(_lingvo('AdaGraft', **made))
  assert message in issue


def test_every_optimizer_of_lingvo_is_translated_or_refused():
  module = lingvo_runtime.module('lingvo.core.optimizer')
  known = {name for name, _ in _CASES} | {'AdamV2', 'Accumulator'}
  known |= {'Base', 'DynamicAccumulator', 'AdaGraft'}
  # See `shampoo_lingvo_test`.
  known |= {'DistributedShampoo'}
  # A learner translates it: see `learners_test`.
  known |= {'CompositeOptimizer'}
  assert known == {
    name
    for name, cls in vars(module).items()
    if isinstance(cls, type) and issubclass(cls, module.Base)
  }
