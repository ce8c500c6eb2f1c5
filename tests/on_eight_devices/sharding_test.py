"""A language model on a mesh of eight devices: the sharding of its state.

The mesh is 2x2x2: replicas, data and model. Weights are split over data and
model.
"""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from pax_compat import learners, optimizers
from pax_compat.trainer import partitioning
from tests.pax_compat.trainer import tiny

D, M = 'data', 'mdl'
# How weights are split, by the ends of their paths.
WEIGHTS = {
  'logits_ffn/linear/w': (D, M),
  'logits_ffn/bias/b': (M,),
  'ffn_layer1/linear/w': (D, M),
  'ffn_layer1/bias/b': (M,),
  'ffn_layer2/linear/w': (M, D),
  'ffn_layer2/bias/b': (M,),
  'query/w': (D, M, None),
  'key/w': (D, M, None),
  'value/w': (D, M, None),
  'post/w': (D, M, None),
  'query/b': (M, None),
  'key/b': (M, None),
  'value/b': (M, None),
  'post/b': (D,),
  'per_dim_scale/per_dim_scale': (None,),
  'layer_norm/scale': (None,),
  'layer_norm/bias': (None,),
  'final_ln/scale': (None,),
  'final_ln/bias': (None,),
}
OPTIMIZERS = {
  'adam': optimizers.Adam.config(learning_rate=0.01),
  'adafactor': optimizers.ShardedAdafactor.config(
    learning_rate=0.01,
    decay_method='adam',
    decay_adam=0.99,
    min_dim_size_to_factor=4,
  ),
}
STEPS = 3


class _Place(NamedTuple):
  """How an array is split: `spec` has a mesh axis or None per dimension."""

  shape: tuple
  spec: tuple
  part: tuple
  devices: int


def _places(tree) -> dict[str, _Place]:
  """Returns how each leaf is split, by path."""
  found = {}
  for path, x in learners.by_path(tree).items():
    spec = tuple(x.sharding.spec)
    found[path] = _Place(
      shape=x.shape,
      spec=spec + (None,) * (x.ndim - len(spec)),
      part=x.addressable_shards[0].data.shape,
      devices=len(x.sharding.device_set),
    )
  return found


def _task(optimizer, **fields):
  task = tiny.task(layers=2, **fields)
  task.train.learner.optimizer = optimizer
  return task


def _losses(history):
  return [outputs['loss'] for outputs in history]


@pytest.fixture(scope='module')
def results():
  mesh = partitioning.create_mesh(tiny.MESH, tiny.MESH_AXES)
  found = {}
  for name, optimizer in OPTIMIZERS.items():
    made = tiny.make_program(_task(optimizer, split=True), mesh)
    before = _places(made.init_state(tiny.batch()))
    state, history = tiny.train(made, STEPS)
    assert _places(state) == before
    found[name] = dict(
      losses=_losses(history),
      mdl_vars=_places(state.mdl_vars),
      opt_state=_places(state.opt_state),
      batch=_places(made.put(tiny.batch())),
    )
  return found


def _weight_spec(path: str):
  """Returns how the weight at the end of a path is split."""
  [spec] = [s for end, s in WEIGHTS.items() if path.endswith(end)] or [None]
  return spec


def _assert_split(place, spec, path):
  assert place.spec == spec, path
  want = tuple(
    n // 2 if axis else n for n, axis in zip(place.shape, spec, strict=True)
  )
  assert place.part == want, path
  assert place.devices == 8, path


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_every_weight_has_its_declared_sharding(results, name):
  weights = results[name]['mdl_vars']
  assert len(weights) == 4 + 2 * 17
  for path, place in weights.items():
    _assert_split(place, _weight_spec(path), path)


def test_the_moments_of_adam_are_sharded_as_their_weights(results):
  weights = results['adam']['mdl_vars']
  leaves = results['adam']['opt_state']
  seen = 0
  for path, place in leaves.items():
    kind, _, weight = path.partition('/lm/')
    if not weight:
      assert (place.shape, place.spec) == ((), ()), path
      continue
    assert kind.rpartition('/')[2] in ('mu', 'nu')
    assert place.shape == weights[f'params/lm/{weight}'].shape
    _assert_split(place, _weight_spec(path), path)
    seen += 1
  assert seen == 2 * len(weights)


def test_the_factors_of_adafactor_are_sharded_as_their_weights(
  results,
):
  """Rows lack the weight's last dimension, columns the one before."""
  weights = results['adafactor']['mdl_vars']
  factored = 0
  for path, place in results['adafactor']['opt_state'].items():
    kind, _, weight = path.partition('/lm/')
    if not weight:
      assert (place.shape, place.spec) == ((), ()), path
      continue
    shape, spec = weights[f'params/lm/{weight}'].shape, _weight_spec(path)
    kind = kind.rpartition('/')[2]
    if place.shape == shape:
      want = spec
    elif kind == 'vr' and place.shape == shape[:-1]:
      want, factored = spec[:-1], factored + 1
    elif kind == 'vc' and place.shape == shape[:-2] + shape[-1:]:
      want = spec[:-2] + spec[-1:]
    else:
      assert place.shape == (1,), path  # There is nothing of this kind.
      want = (None,)
    _assert_split(place, want, path)
  # The softmax, and in each layer four projections, two matrices, three biases.
  assert factored == 1 + 2 * (4 + 2 + 3)


def test_batches_are_split_over_replicas_and_data(results):
  for path, place in results['adam']['batch'].items():
    assert place.spec == (('replica', 'data'), None), path
    assert place.part == (place.shape[0] // 4, place.shape[1]), path


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_losses_are_those_of_one_device(results, name):
  one = jax.make_mesh(
    (1,), ('data',), devices=jax.devices()[:1], axis_types=(AxisType.Auto,)
  )
  made = tiny.make_program(_task(OPTIMIZERS[name]), one)
  _, history = tiny.train(made, STEPS)
  want = _losses(history)
  np.testing.assert_allclose(results[name]['losses'], want, rtol=1e-6)
