"""Batches and weights that are split over meshes of eight devices."""

import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning


@pytest.fixture(name='mesh')
def _mesh():
  return partitioning.create_mesh((4, 2), ('data', 'mdl'))


@pytest.mark.parametrize(
  ('shape', 'names', 'dcn', 'mapping', 'starts'),
  [
    ((8,), ('data',), None, None, [0, 1, 2, 3, 4, 5, 6, 7]),
    ((2, 2, 2), ('replica', 'data', 'mdl'), None, None, [0, 2, 4, 6]),
    ((2, 4), ('data', 'mdl'), None, None, [0, 4]),
    ((8,), ('mdl',), None, None, [0]),
    ((1, 2), ('data', 'mdl'), (4, 1), None, [0, 2, 4, 6]),
    ((2, 4), ('data', 'mdl'), None, {'map_2d': ('mdl', None)}, [0, 2, 4, 6]),
  ],
  ids=['data', 'both', 'mdl', 'none', 'slices', 'mapped'],
)
def test_batches(shape, names, dcn, mapping, starts):
  """The devices' shards start at `starts`, and are the batch together."""
  mesh = partitioning.create_mesh(shape, names, dcn)
  sharding = partitioning.batch_sharding(mesh, mapping)
  batch = {'x': np.arange(16).reshape(8, 2)}
  x = partitioning.global_batch(batch, sharding)['x']
  found = {shard.index[0].start or 0 for shard in x.addressable_shards}
  assert sorted(found) == starts
  assert np.asarray(x).ravel().tolist() == list(range(16))


def test_a_batch_that_devices_cannot_share(mesh):
  batch = NestedMap(src=NestedMap(ids=np.ones([6, 3])))
  with pytest.raises(errors.UserError) as error:
    partitioning.global_batch(batch, partitioning.batch_sharding(mesh))
  for words in ("'src.ids'", '[6, 3]', '4 device(s)', 'a multiple of 4'):
    assert words in str(error.value)


def test_a_weight_that_devices_cannot_share(mesh):
  weight = base_layer.WeightHParams(
    [8, 12], tensor_split_dims_mapping=(None, ('data', 'mdl'))
  )
  with pytest.raises(errors.UserError) as error:
    partitioning.weight_sharding(mesh, weight)
  for words in ('shape [8, 12]', 'of 12', 'data, mdl', 'a multiple of 8'):
    assert words in str(error.value)


def test_a_length_that_devices_cannot_share(mesh):
  by_length = partitioning.batch_sharding(mesh, {'map_2d': ('data', 'mdl')})
  with pytest.raises(errors.UserError) as error:
    partitioning.global_batch({'x': np.ones([8, 3])}, by_length)
  for words in (
    "field 'x' of shape [8, 3]",
    'of 3',
    'over mdl',
    'multiple of 2',
  ):
    assert words in str(error.value)
