"""Optimizers of the framework against Lingvo's, run for real."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptors import lingvo_runtime
from pax_compat import optimizers, schedules
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


def _assert_same(ours, theirs, *, steps=_STEPS, rate=_RATE):
  transformation = ours.Instantiate().grad_transformation()
  weights, gradients = jax.tree.map(jnp.asarray, _weights()), _gradients(steps)
  state = transformation.init(weights)
  expected = lingvo_steps.optimizer_steps(theirs, _weights(), gradients, rate)
  update = jax.jit(transformation.update)
  for gradient, want in zip(gradients, expected, strict=True):
    updates, state = update(gradient, state, weights)
    weights = optax.apply_updates(weights, updates)
    for name, value in want.items():
      parity.assert_close(weights[name], value, _TOLERANCE, name)
  moved = jax.tree.map(
    lambda w, first: float(np.max(np.abs(w - first))), weights, _weights()
  )
  assert min(moved.values()) > 1e-4, moved


def test_sgd():
  _assert_same(optimizers.Sgd.config(learning_rate=_RATE), _lingvo('SGD'))


@pytest.mark.parametrize('nesterov', [False, True])
def test_momentum(nesterov):
  _assert_same(
    optimizers.Sgd.config(learning_rate=_RATE, momentum=0.8, nesterov=nesterov),
    _lingvo('Momentum', alpha=0.8, use_nesterov=nesterov),
  )


@pytest.mark.parametrize(
  'fields', [{}, {'decay': 0.7, 'momentum': 0.5, 'epsilon': 1e-3}]
)
def test_rms_prop(fields):
  _assert_same(
    optimizers.RmsProp.config(learning_rate=_RATE, **fields),
    _lingvo('RMSProp', **fields),
  )


@pytest.mark.parametrize('cls', ['Adagrad', 'ShardedAdagrad'])
def test_adagrad(cls):
  config = getattr(optimizers, cls).config(
    learning_rate=_RATE, initial_accumulator_value=0.5, epsilon=0.0
  )
  _assert_same(config, _lingvo('Adagrad', initial_accumulator_value=0.5))


@pytest.mark.parametrize('preset', ['Params', 'ParamsA', 'ParamsB'])
def test_adam(preset):
  module = lingvo_runtime.module('lingvo.core.optimizer')
  make = getattr(optimizers.Adam, preset.replace('Params', 'HParams'))
  config = make().set(learning_rate=_RATE, epsilon_hat=True, clip_threshold=0.0)
  _assert_same(config, getattr(module.Adam, preset)())


def _adafactor(**fields):
  """Returns ours with Lingvo's defaults."""
  return optimizers.ShardedAdafactor.config(
    learning_rate=_RATE,
    **{
      'sort_factored_second_moment_dims': True,
      'min_dim_size_to_factor': _FACTOR_SIZE,
      'multiply_by_parameter_scale': True,
      'clip_threshold': None,
      'decay_method': 'adam',
      'decay_adam': 0.999,
      'quantized_dtype': 'float32',
      **fields,
    },
  )


@pytest.mark.parametrize('beta1', [0.0, 0.9])
@pytest.mark.parametrize('factored', [True, False])
def test_adafactor(factored, beta1):
  _assert_same(
    _adafactor(beta1=beta1, factored=factored),
    _lingvo(
      'XLAShardingAdafactor',
      beta1=beta1,
      factored=factored,
      min_dim_size_to_factor=_FACTOR_SIZE,
    ),
  )


@pytest.mark.parametrize(
  'ours,theirs',
  [
    ({'clip_threshold': 0.5}, {'clipping_threshold': 0.5}),
    (
      {'multiply_by_parameter_scale': False},
      {'multiply_by_parameter_scale': False},
    ),
    ({'decay_adam': 0.9}, {'beta2': 0.9}),
    (
      {'decay_method': 'pow', 'decay_pow': 0.8},
      {'decay_exponent_pow': 0.8},
    ),
    (
      {'decay_method': 'pow', 'decay_pow': 0.8, 'decay_offset': -5},
      {'decay_exponent_pow': 0.8, 'decay_exponent_offset': -5},
    ),
    ({'min_dim_size_to_factor': 6}, {'min_dim_size_to_factor': 6}),
  ],
)
def test_adafactor_fields(ours, theirs):
  fixed = {'min_dim_size_to_factor': _FACTOR_SIZE}
  _assert_same(
    _adafactor(beta1=0.5, **ours),
    _lingvo('XLAShardingAdafactor', beta1=0.5, **{**fixed, **theirs}),
  )


def test_adafactor_of_a_schedule_with_momentum():
  """Momentum collects steps with the rates of their own times."""
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  points = {'start': (0, 1.0), 'limit': (2, 0.1)}
  config = _adafactor(beta1=0.9).set(
    learning_rate=1.0, lr_schedule=schedules.Exponential.config(**points)
  )
  _assert_same(
    config,
    _lingvo(
      'XLAShardingAdafactor', beta1=0.9, min_dim_size_to_factor=_FACTOR_SIZE
    ),
    rate=schedule.ExponentialSchedule.Params().Set(**points),
  )


_WRAPPED = {
  'Sgd': (lambda: optimizers.Sgd.config(), lambda: _lingvo('SGD')),
  'Adam': (
    lambda: optimizers.Adam.config(epsilon_hat=True, clip_threshold=0.0),
    lambda: _lingvo('Adam'),
  ),
}


@pytest.mark.parametrize('wrapped', _WRAPPED)
@pytest.mark.parametrize('num', [1, 3])
def test_accumulator(wrapped, num):
  ours, theirs = _WRAPPED[wrapped]
  _assert_same(
    optimizers.ShardedStaticAccumulator.config(
      learning_rate=_RATE, optimizer_tpl=ours(), num_sub_batches=num
    ),
    _lingvo('Accumulator', optimizer_tpl=theirs(), accum_steps=num),
    steps=3 * num,
  )


def test_accumulator_of_a_schedule():
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  points = {'start': (0, 1.0), 'limit': (5, 0.1)}
  config = optimizers.ShardedStaticAccumulator.config(
    learning_rate=1.0,
    lr_schedule=schedules.Linear.config(**points),
    optimizer_tpl=optimizers.Sgd.config(),
    num_sub_batches=2,
    schedule_counts_sub_batches=True,
  )
  theirs = _lingvo('Accumulator', optimizer_tpl=_lingvo('SGD'), accum_steps=2)
  rate = schedule.LinearSchedule.Params().Set(**points)
  _assert_same(config, theirs, steps=6, rate=rate)
  rate_at = config.Instantiate().learning_rate_fn()
  np.testing.assert_allclose(
    [rate_at(jnp.int32(n)) for n in range(6)],
    np.repeat(lingvo_steps.schedule_values(rate, [1, 3, 5]), 2),
    rtol=1e-6,
  )
