"""Tests of meshes and of what is split over them."""

import json

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pax_compat import errors
from pax_compat.base_layer import WeightHParams
from pax_compat.trainer import partitioning
from tests.pax_compat import processes


def _weight(shape, mapping):
  return WeightHParams(shape, tensor_split_dims_mapping=mapping)


@pytest.fixture
def mesh():
  return partitioning.create_mesh((1, 1), ('data', 'mdl'))


def test_by_default_all_devices_share_the_batch():
  mesh = partitioning.create_mesh(None, None)
  assert dict(mesh.shape) == {'data': jax.device_count()}


@pytest.mark.parametrize('names', [None, ('data',), ('a', 'b', 'c')])
def test_every_axis_needs_a_name(names):
  with pytest.raises(errors.UserError, match='needs 2 mesh_axis_names'):
    partitioning.create_mesh((1, 1), names)


def test_names_need_a_shape():
  with pytest.raises(
    errors.UserError, match=r"\['replica', 'mdl'\] needs an ici_mesh_shape of 2"
  ):
    partitioning.create_mesh(None, ('replica', 'mdl'))


def test_the_mesh_must_use_up_the_devices():
  with pytest.raises(errors.UserError, match='is for 6 devices; there are 1'):
    partitioning.create_mesh((2, 3), ('data', 'mdl'))


@pytest.mark.parametrize(
  ('mapping', 'spec'),
  [
    (None, ()),
    (['data', 'mdl'], ('data', 'mdl')),
    ([None, 'mdl'], (None, 'mdl')),
    ([-1, 'mdl'], (None, 'mdl')),
    ([('data', 'mdl'), None], (('data', 'mdl'), None)),
    ([None, ['data', 'mdl']], (None, ('data', 'mdl'))),
  ],
)
def test_a_weight_is_split_as_it_says(mesh, mapping, spec):
  sharding = partitioning.weight_sharding(mesh, _weight([4, 4], mapping))
  assert sharding.spec == PartitionSpec(*spec)


def test_an_axis_that_the_mesh_has_not(mesh):
  with pytest.raises(errors.UserError, match="axis 'model', .*mean: mdl"):
    partitioning.weight_sharding(mesh, _weight([4, 4], [None, 'model']))
  with pytest.raises(errors.UserError, match="axis 'x'"):
    partitioning.weight_sharding(mesh, _weight([4], [('data', 'x')]))


def test_a_mapping_of_another_length(mesh):
  with pytest.raises(errors.UserError, match=r'shape \[4, 4\].*each dimension'):
    partitioning.weight_sharding(mesh, _weight([4, 4], ['mdl']))


@pytest.mark.parametrize(
  'mapping',
  [['mdl', 'mdl'], [('data', 'mdl'), 'data'], [('mdl', 'mdl'), None]],
)
def test_an_axis_splits_a_weight_once(mesh, mapping):
  with pytest.raises(errors.UserError, match="axis '(mdl|data)' twice"):
    partitioning.weight_sharding(mesh, _weight([4, 4], mapping))


def test_a_batch_on_one_device_is_that_batch():
  sharding = partitioning.batch_sharding(partitioning.create_mesh(None, None))
  batch = {'x': np.arange(6).reshape(3, 2), 'y': np.ones(3)}
  got = partitioning.global_batch(batch, sharding)
  jax.tree.map(np.testing.assert_array_equal, got, batch)


_EIGHT_DEVICES = """
  import json
  import numpy as np
  from pax_compat import base_layer, errors
  from pax_compat.nested_map import NestedMap
  from pax_compat.trainer import partitioning

  def split(shape, names):
    mesh = partitioning.create_mesh(shape, names)
    sharding = partitioning.batch_sharding(mesh)
    x = partitioning.global_batch({'x': np.arange(16).reshape(8, 2)}, sharding)
    parts = {s.index[0].start or 0 for s in x['x'].addressable_shards}
    return [sorted(parts), np.asarray(x['x']).ravel().tolist()]

  said = {
    'data': split((8,), ('data',)),
    'both': split((2, 2, 2), ('replica', 'data', 'mdl')),
    'mdl': split((2, 4), ('data', 'mdl')),
    'none': split((8,), ('mdl',)),
  }
  mesh = partitioning.create_mesh((4, 2), ('data', 'mdl'))
  batch = NestedMap(src=NestedMap(ids=np.ones([6, 3])))
  try:
    partitioning.global_batch(batch, partitioning.batch_sharding(mesh))
  except errors.UserError as e:
    said['batch_error'] = str(e)
  weight = base_layer.WeightHParams(
    [8, 12], tensor_split_dims_mapping=(None, ('data', 'mdl'))
  )
  try:
    partitioning.weight_sharding(mesh, weight)
  except errors.UserError as e:
    said['weight_error'] = str(e)
  print(json.dumps(said))
"""


@pytest.fixture(scope='module')
def on_eight_devices():
  return json.loads(processes.run_on_eight_devices(_EIGHT_DEVICES))


def test_batches_on_eight_devices(on_eight_devices):
  said = on_eight_devices
  # The rows at which the devices' parts start.
  starts = {k: v[0] for k, v in said.items() if not k.endswith('error')}
  assert starts == {
    'data': [0, 1, 2, 3, 4, 5, 6, 7],
    'both': [0, 2, 4, 6],
    'mdl': [0, 4],
    'none': [0],
  }
  assert all(said[k][1] == list(range(16)) for k in starts)
  for part in ("'src.ids'", '[6, 3]', '4 device(s)', 'a multiple of 4'):
    assert part in said['batch_error']


def test_a_weight_that_eight_devices_cannot_share(on_eight_devices):
  for part in ('shape [8, 12]', 'of 12', 'data, mdl', 'a multiple of 8'):
    assert part in on_eight_devices['weight_error']
