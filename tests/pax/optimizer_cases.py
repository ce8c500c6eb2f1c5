"""Optimizers over several steps: the cases recorded from Pax."""

from typing import Any

import numpy as np

STEPS = 6

_RATE = {'learning_rate': 0.1}
_COMMON = {
  'l2': {'l2_regularizer_weight': 0.02},
  'l1': {'l1_regularizer_weight': 0.02, 'skip_lp_1d_vectors': True},
  'decay': {'decoupled_weight_decay': 0.05},
  'ewc': {'ewc_regularizer_weight': 0.3},
}
# Name of the case -> (class, fields).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
  **{f'sgd_{k}': ('ShardedSgd', v) for k, v in _COMMON.items()},
  **{f'adam_{k}': ('Adam', v) for k, v in _COMMON.items()},
  'sgd': ('Sgd', {'momentum': 0.9}),
  'sgd_nesterov': ('Sgd', {'momentum': 0.9, 'nesterov': True}),
  'sharded_sgd': ('ShardedSgd', {'momentum': 0.9, 'nesterov': True}),
  'lamb': ('Lamb', {'weight_decay': 0.01}),
  'lars': ('Lars', {'weight_decay': 0.01, 'momentum': 0.8}),
  'sharded_adagrad': ('ShardedAdagrad', {}),
  'adagrad': ('Adagrad', {'epsilon': 1e-6}),
  'adam': (
    'Adam',
    {'beta2': 0.99, 'clip_threshold': 0.5, 'epsilon_root': 1e-4},
  ),
  'adam_weight_decay': ('Adam', {'weight_decay': 0.01}),
  'lion': ('Lion', {'beta1': 0.8, 'clip_threshold': 0.9}),
  'lion_decay': ('Lion', {'weight_decay': 0.01}),
  'adafactor': ('Adafactor', {'min_dim_size_to_factor': 4}),
  'adafactor_momentum': (
    'Adafactor',
    {'momentum': 0.9, 'min_dim_size_to_factor': 4, 'weight_decay_rate': 0.01},
  ),
  'accumulator': ('ShardedStaticAccumulator', {'num_sub_batches': 2}),
  'sharded_adafactor': (
    'ShardedAdafactor',
    {
      'decay_method': 'adam',
      'decay_adam': 0.99,
      'beta1': 0.9,
      'clip_threshold': 1.0,
      'min_dim_size_to_factor': 4,
    },
  ),
  'sharded_adafactor_pow': (
    'ShardedAdafactor',
    {
      'decay_method': 'pow',
      'decay_pow': 0.8,
      'beta1': 0.0,
      'clip_threshold': 1.0,
      'min_dim_size_to_factor': 4,
      'multiply_by_parameter_scale': True,
      'weight_decay': 0.01,
    },
  ),
}


def weights() -> dict[str, np.ndarray]:
  """Returns the weights before the first step, by name."""
  random = np.random.default_rng(1)
  shapes = {'b': [6], 'w': [5, 6], 'x': [3, 4, 5]}
  return {k: random.normal(size=s).astype('f') for k, s in shapes.items()}


def gradients(step: int) -> dict[str, np.ndarray]:
  """Returns the gradients of a step, by name."""
  random = np.random.default_rng(step + 100)
  return {
    k: random.normal(size=x.shape).astype('f') for k, x in weights().items()
  }


def config(optimizers, schedules, name: str) -> Any:
  """Returns the config of a case, of Pax's modules or of ours."""
  cls, fields = CASES[name]
  schedule = schedules.LinearRampupExponentialDecay.config(
    warmup_steps=2, decay_start=3, decay_end=10, max=1.0, min_ratio=0.1
  )
  common = {**_RATE, 'lr_schedule': schedule}
  if cls == 'ShardedStaticAccumulator':
    fields = {
      **fields,
      'optimizer_tpl': optimizers.ShardedSgd.config(momentum=0.9, **common),
    }
  return getattr(optimizers, cls).config(**common, **fields)
