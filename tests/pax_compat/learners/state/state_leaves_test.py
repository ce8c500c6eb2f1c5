"""Sharding of the learner's state."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from pax_compat import learners, optimizers
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import learner

MESH = AbstractMesh(
  (2, 2, 2), ('replica', 'data', 'mdl'), axis_types=(AxisType.Auto,) * 3
)
SPECS = {
  'square': P('data', 'mdl'),
  'tall': P(('replica', 'data'), 'mdl'),
  'bias': P('mdl'),
  'stack': P('replica', 'mdl', 'data'),
}
SHAPES = {
  'square': (8, 8),
  'tall': (16, 8),
  'bias': (8,),
  'stack': (4, 8, 8),
}
PREFIXES = {'stack': (4,)}
ARRAYS = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def _params():
  return {
    name: jax.ShapeDtypeStruct(
      SHAPES[name], jnp.float32, sharding=NamedSharding(MESH, spec)
    )
    for name, spec in SPECS.items()
  }


def metas():
  return stepping.metas(
    ARRAYS, **{n: {'repeat_prefix': p} for n, p in PREFIXES.items()}
  )


def _adam(**fields):
  return optimizers.Adam.config(learning_rate=0.1, **fields)


def _specs(config, **fields):
  """Returns the specs of the state's leaves, by path, and checks the rest."""
  one = learner(config, **fields)
  params = _params()
  state = one.abstract_state(params, weight_metas=metas())
  made = jax.eval_shape(lambda p: one.init(p, weight_metas=metas()), params)
  assert jax.tree.structure(state) == jax.tree.structure(made)
  assert all(
    (a.shape, a.dtype) == (b.shape, b.dtype)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(made), strict=True)
  )
  return {
    path: leaf.sharding.spec for path, leaf in learners.by_path(state).items()
  }


def _of(specs, ending):
  """Returns the only spec whose path has this end."""
  (found,) = [s for path, s in specs.items() if path.endswith(ending)]
  return found


def test_moments_are_sharded_like_their_weights():
  specs = _specs(_adam(ema_decay=0.9))
  for name, spec in SPECS.items():
    for kind in ('mu', 'nu', 'ema'):
      assert _of(specs, f'{kind}/{name}') == spec, (kind, name)
  counts = [s for path, s in specs.items() if path.endswith('count')]
  assert counts == [P()] * 5  # two of each group, and that of the average


@pytest.mark.parametrize('sorts', [False, True])
def test_factored_moments_lack_a_dimension(sorts):
  specs = _specs(
    optimizers.ShardedAdafactor.config(
      learning_rate=0.1,
      decay_method='pow',
      decay_pow=0.8,
      beta1=0.9,
      quantized_dtype='float32',
      min_dim_size_to_factor=8,
      sort_factored_second_moment_dims=sorts,
    )
  )
  # Without sorting, rows lack the last dimension and columns the last but one;
  # with it, rows lack the largest, the first of equals.
  square = ('mdl',), ('data',)
  want = {
    'square': square if sorts else square[::-1],
    'tall': (
      (('mdl',), (('replica', 'data'),))
      if sorts
      else ((('replica', 'data'),), ('mdl',))
    ),
    'stack': (
      (('replica', 'data'), ('replica', 'mdl'))
      if sorts
      else (('replica', 'mdl'), ('replica', 'data'))
    ),
  }
  for name, (rows, columns) in want.items():
    assert _of(specs, f'vr/{name}') == P(*rows), name
    assert _of(specs, f'vc/{name}') == P(*columns), name
    assert _of(specs, f'/m/{name}') == SPECS[name]
  assert _of(specs, '/v/bias') == P('mdl')


def test_optax_factored_moments():
  specs = _specs(
    optimizers.Adafactor.config(learning_rate=0.1, min_dim_size_to_factor=8)
  )
  # optax keeps rows without the largest dimension, the last of equals.
  assert _of(specs, 'v_row/square') == P('data')
  assert _of(specs, 'v_col/square') == P('mdl')
  assert _of(specs, 'v_row/tall') == P('mdl')
  assert _of(specs, 'v_col/tall') == P(('replica', 'data'))
  assert _of(specs, 'v_row/stack') == P('replica', 'mdl')
  assert _of(specs, 'v_col/stack') == P('replica', 'data')
  assert _of(specs, '/v/bias') == P('mdl')
  # The placeholder [1] of each layer.
  assert _of(specs, '/v/stack') == P('replica')


def test_accumulated_gradients_are_sharded_like_their_weights():
  specs = _specs(
    optimizers.ShardedStaticAccumulator.config(
      optimizer_tpl=_adam(), num_sub_batches=2
    )
  )
  for name, spec in SPECS.items():
    for kind in ('acc_grads', 'mu', 'nu'):
      assert _of(specs, f'{kind}/{name}') == spec, (kind, name)


def test_excluded_weights_have_no_state():
  config = _adam(ema_decay=0.9)
  specs = _specs(config, bprop_variable_exclusion='params/(tall|stack)')
  assert not [p for p in specs if p.endswith(('tall', 'stack'))]
  kept = _specs(
    config,
    bprop_variable_exclusion='params/tall',
    keep_optimizer_state_for_excluded_vars=True,
  )
  assert _of(kept, 'mu/tall') == SPECS['tall']


def test_matrices_of_shampoo():
  """They are sharded only if they have the shape of their weights."""
  specs = _specs(optimizers.Shampoo.config(learning_rate=0.1))
  assert _of(specs, 'sum_squares/tall') == SPECS['tall']
  assert _of(specs, 'preconditioned/stack') == SPECS['stack']
  for name in ('statistics', 'roots'):
    assert _of(specs, f'{name}/0/tall') == P()
    assert _of(specs, f'{name}/0/bias') == P(None)
    assert _of(specs, f'{name}/1/square') == SPECS['square']


def test_several_optimizers():
  one = stepping.learner(
    _adam(),
    learners.MultiOptimizerLearner,
    auxiliary_optimizers=[stepping.sgd(momentum=0.9)],
    auxiliary_regex=['params/(square|stack)'],
    auxiliary_names=['other'],
  )
  state = one.abstract_state(_params(), weight_metas=metas())
  specs = {
    path: leaf.sharding.spec for path, leaf in learners.by_path(state).items()
  }
  assert _of(specs, 'trace/stack') == SPECS['stack']
  assert _of(specs, 'trace/square') == SPECS['square']
  assert _of(specs, 'mu/tall') == SPECS['tall']
  assert not [p for p in specs if p.endswith(('mu/stack', 'trace/tall'))]


def test_without_a_mesh_there_are_no_shardings():
  params = jax.tree.map(
    lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), ARRAYS
  )
  state = learner(_adam(ema_decay=0.9)).abstract_state(
    params, weight_metas=metas()
  )
  assert {leaf.sharding for leaf in jax.tree.leaves(state)} == {None}
