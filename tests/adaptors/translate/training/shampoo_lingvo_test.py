"""Translated Shampoo against Lingvo's own, run for real, and what it goes by.

Lingvo's runs as a graph only: as a function, or eagerly, TensorFlow refuses to
look up its variables in a dict.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptors import lingvo_runtime
from tests.adaptors.translate import lingvo_steps, parity, tiny_task

_RATE = 0.1
_STEPS = 9
_LOOP = 2
# A vector, matrices, and tensors of which some dimensions have no matrix.
_SHAPES = {
  'bias': (3,),
  'matrix': (4, 3),
  'square': (3, 3),
  'one': (1, 1),
  'row': (1, 4),
  'heads': (3, 2, 4),
  'flat': (3, 1, 2),
}


def _params(**fields):
  module = lingvo_runtime.module('lingvo.core.optimizer')
  return module.DistributedShampoo.Params().Set(
    # So that matrices of few gradients are far from singular.
    **{'start_preconditioning_steps': 4, 'matrix_epsilon': 1e-2, **fields}
  )


def _arrays(seed):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in _SHAPES.items()
  }


def _ours(params, gradients):
  """Returns the weights after each step of the translation."""
  config = parity.translate(params)
  made = config.set(learning_rate=_RATE, root_interval_steps=_LOOP)
  transformation = made.Instantiate().grad_transformation()
  weights = jax.tree.map(jnp.asarray, _arrays(1))
  state, update = transformation.init(weights), jax.jit(transformation.update)
  history = []
  for gradient in gradients:
    updates, state = update(gradient, state, weights)
    weights = optax.apply_updates(weights, updates)
    history.append(weights)
  return history


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'momentum': 0.0, 'initial_accumulator_value': 0.5},
    {'second_moment_averaging': 0.8, 'statistics_computation_frequency': 3},
    {'start_preconditioning_steps': 0, 'max_any_dim': 3},
  ],
)
def test_steps(fields):
  """Adagrad at first, on the way from step 4 on, Shampoo from step 8 on."""
  params = _params(**fields)
  gradients = [_arrays(2 + i) for i in range(_STEPS)]
  expected = lingvo_steps.optimizer_steps(
    params, _arrays(1), gradients, _RATE, loop_steps=_LOOP
  )
  found = _ours(params, gradients)
  for step, (got, want) in enumerate(zip(found, expected, strict=True)):
    for name, value in want.items():
      parity.assert_close(got[name], value, 1e-5, f'{name} after step {step}')
  plain = lingvo_steps.optimizer_steps(params, _arrays(1), gradients, _RATE)
  small = {} if 'max_any_dim' not in fields else {'matrix', 'row', 'heads'}
  for name, value in plain[-1].items():
    stays = name in ('bias', 'one') or name in small
    assert stays == np.allclose(value, expected[-1][name]), name


def test_roots_are_computed_at_the_end_of_a_loop():
  params = tiny_task.params(
    optimizer=_params(), tpu_steps_per_loop=7, bprop_variable_exclusion='emb'
  )
  translated = tiny_task.translate(params)
  made = translated.config.train.learner.optimizer.Instantiate()
  assert made.root_interval_steps == 7
  assert any('after each 7 steps' in note for note in translated.notes)
