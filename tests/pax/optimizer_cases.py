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
_SHAMPOO = {
  'start_preconditioning_step': 2,
  'preconditioning_compute_steps': 2,
  'matrix_epsilon': 1e-3,
  # Pax's need no pmap then.
  'batch_axis_name': None,
  'summarize_training_metrics': False,
}
_SHARDED_SHAMPOO = {
  **_SHAMPOO,
  'num_devices_for_pjit': 1,
  'tensor_split_dims_mapping': [],
  'tensor_split_dims_mapping_for_inverse_pth_root': [],
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
  'shampoo': ('DistributedShampoo', _SHAMPOO),
  'shampoo_blocks': (
    'DistributedShampoo',
    {
      **_SHAMPOO,
      'block_size': 4,
      'best_effort_shape_interpretation': False,
      'graft_type': 3,
      'clip_by_scaled_gradient_norm': 0.7,
      'moving_average_for_momentum': True,
      'weight_decay': 0.02,
    },
  ),
  'shampoo_skipping': (
    'DistributedShampoo',
    {
      **_SHAMPOO,
      'merge_small_dims_block_size': 12,
      'graft_type': 4,
      'nesterov': False,
      'skip_preconditioning_rank_lt': 2,
      'decoupled_learning_rate_from_momentum': True,
      'exponent_override': 3,
      'relative_matrix_epsilon': False,
    },
  ),
  'shampoo_sgd': (
    'DistributedShampoo',
    {
      **_SHAMPOO,
      'graft_type': 1,
      'statistics_compute_steps': 2,
      'preconditioning_compute_steps': 1,
      'weight_decay': 0.02,
      'decoupled_weight_decay_from_momentum': False,
      'skip_preconditioning_dim_size_gt': 5,
      'beta2': 1.0,
    },
  ),
  'shampoo_signs': ('DistributedShampoo', {**_SHAMPOO, 'graft_type': 5}),
  'shampoo_normalized': ('DistributedShampoo', {**_SHAMPOO, 'graft_type': 6}),
  'sharded_shampoo': (
    'ShardedDistributedShampoo',
    {
      **_SHARDED_SHAMPOO,
      'block_size': 4,
      'best_effort_shape_interpretation': False,
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
