"""A language model on a mesh of eight devices: the sharding of its state.

The mesh is 2x2x2: replicas, data and model. Weights are split over data and
model.
"""

import json

import numpy as np
import pytest

from pax_compat import optimizers
from tests.pax_compat import launching
from tests.pax_compat.trainer import tiny

D, M = 'data', 'mdl'
# How weights are split, by the ends of their paths.
WEIGHTS = {
  'logits_ffn/linear/w': (D, M),
  'logits_ffn/bias/b': (M,),
  'ffn_layer1/linear/w': (D, M),
  'ffn_layer1/bias/b': (M,),
  'ffn_layer2/linear/w': (M, D),
  'ffn_layer2/bias/b': (D,),
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

_EIGHT_DEVICES = """
  import json
  from pax_compat import learners
  from pax_compat.trainer import partitioning
  from tests.pax_compat.trainer import sharding_test, tiny

  def places(tree):
    found = {}
    for path, x in learners.by_path(tree).items():
      spec = list(x.sharding.spec) + [None] * (x.ndim - len(x.sharding.spec))
      part = x.addressable_shards[0].data.shape
      devices = len(x.sharding.device_set)
      found[path] = [x.shape, spec, part, devices]
    return found

  mesh = partitioning.create_mesh(tiny.MESH, tiny.MESH_AXES)
  results = {}
  for name, optimizer in sharding_test.OPTIMIZERS.items():
    task = tiny.task(split=True, layers=2)
    task.train.learner.optimizer = optimizer
    made = tiny.make_program(task, mesh)
    first = made.init_state(tiny.batch())
    before = places(first)
    state, history = tiny.train(made, sharding_test.STEPS)
    assert places(state) == before
    results[name] = dict(
      losses=[outputs['loss'] for outputs in history],
      mdl_vars=places(state.mdl_vars),
      opt_state=places(state.opt_state),
      batch=places(tiny.put(made, tiny.batch())),
    )
  print(json.dumps(results))
"""


@pytest.fixture(scope='module')
def results():
  return json.loads(launching.run_on_eight_devices(_EIGHT_DEVICES))


def _weight_spec(path: str):
  """Returns how the weight at the end of a path is split."""
  [spec] = [s for end, s in WEIGHTS.items() if path.endswith(end)] or [None]
  return spec


def _assert_split(place, spec, path):
  shape, found, part, devices = place
  assert found == list(spec), path
  want = [n // 2 if axis else n for n, axis in zip(shape, spec, strict=True)]
  assert part == want, path
  assert devices == 8, path


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
      assert place[:2] == [[], []], path
      continue
    assert kind.rpartition('/')[2] in ('mu', 'nu')
    assert place[0] == weights[f'params/lm/{weight}'][0]
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
      assert place[:2] == [[], []], path
      continue
    shape, spec = weights[f'params/lm/{weight}'][0], _weight_spec(path)
    kind = kind.rpartition('/')[2]
    if place[0] == shape:
      want = spec
    elif kind == 'vr' and place[0] == shape[:-1]:
      want, factored = spec[:-1], factored + 1
    elif kind == 'vc' and place[0] == shape[:-2] + shape[-1:]:
      want = spec[:-2] + spec[-1:]
    else:
      assert place[0] == [1], path  # There is nothing of this kind.
      want = [None]
    _assert_split(place, want, path)
  # The softmax, and in each layer four projections, two matrices, three biases.
  assert factored == 1 + 2 * (4 + 2 + 3)


def test_batches_are_split_over_replicas_and_data(results):
  for path, (shape, spec, part, _) in results['adam']['batch'].items():
    assert spec == [['replica', 'data'], None], path
    assert part == [shape[0] // 4, shape[1]], path


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_losses_are_those_of_one_device(results, name):
  task = tiny.task(layers=2)
  task.train.learner.optimizer = OPTIMIZERS[name]
  _, history = tiny.train(tiny.make_program(task), STEPS)
  want = [outputs['loss'] for outputs in history]
  np.testing.assert_allclose(results[name]['losses'], want, rtol=1e-6)
