"""Tests of meshes, and of sharding over them."""

import json
import math
import types

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from pax_compat import errors, tasks_lib
from pax_compat.base_layer import BoxedParam, WeightHParams
from pax_compat.trainer import partitioning
from pax_compat.trainer.partitioning import automatic
from pax_compat.trainer.partitioning.meshes import _slices as meshes_of_slices
from tests.on_processes import meshes
from tests.pax_compat import launching
from tests.pax_compat.trainer import lines


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
  message = (
    r'is for 6 devices; there are 1; --set=task.model.ici_mesh_shape=\[1,1\]'
  )
  with pytest.raises(errors.UserError, match=message):
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
def test_a_weight_has_the_sharding_of_its_mapping(mesh, mapping, spec):
  sharding = partitioning.weight_sharding(mesh, _weight([4, 4], mapping))
  assert sharding.spec == PartitionSpec(*spec)


def test_an_axis_that_is_not_in_the_mesh(mesh):
  with pytest.raises(errors.UserError, match="split over 'model', .*mean: mdl"):
    partitioning.weight_sharding(mesh, _weight([4, 4], [None, 'model']))
  with pytest.raises(errors.UserError, match="split over 'x'"):
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


def test_slices_need_devices_within_them():
  with pytest.raises(
    errors.UserError, match=r'dcn_mesh_shape \[2, 1\] needs an'
  ):
    partitioning.create_mesh(None, None, (2, 1))
  with pytest.raises(errors.UserError, match='has 1 numbers; expected 2'):
    partitioning.create_mesh((1, 1), ('data', 'mdl'), (1,))
  with pytest.raises(
    errors.UserError,
    match=r'is for 1 devices in 2 slices; there are 1, and dcn_mesh_shape is',
  ):
    partitioning.create_mesh((1, 1), ('data', 'mdl'), (2, 1))


def _devices(platform: str, slices: list[int], processes: list[int]):
  return [
    types.SimpleNamespace(
      platform=platform, id=i, slice_index=a, process_index=p
    )
    for i, (a, p) in enumerate(zip(slices, processes, strict=True))
  ]


@pytest.mark.parametrize(
  ('platform', 'slices', 'processes', 'dcn', 'wanted'),
  [
    ('tpu', [0, 0, 1, 1], [0, 0, 1, 1], (2, 1), [[0, 1], [2, 3]]),
    ('tpu', [0] * 4, [0, 0, 1, 1], (1, 2), None),
    ('tpu', [0, 0, 1, 1], [0] * 4, (1, 1), None),
    ('gpu', [0, 1, 2, 3], [0, 1, 2, 3], (2, 1), [[0, 1], [2, 3]]),
    ('gpu', [0, 0, 1, 1], [0, 1, 2, 3], (2, 1), [[0, 1], [2, 3]]),
    ('gpu', [0] * 4, [0, 0, 1, 1], (1, 2), [[0, 1], [2, 3]]),
    ('gpu', [0] * 4, [0] * 4, (2,), None),
    ('gpu', [0, 0, 1, 1], [0] * 4, (1,), [[0, 1, 2, 3]]),
    ('cpu', [0] * 4, [0] * 4, (2, 1), [[0, 1], [2, 3]]),
    ('cpu', [0] * 4, [0, 0, 1, 1], (4, 1), [[0], [1], [2], [3]]),
  ],
)
def test_devices_of_slices(platform, slices, processes, dcn, wanted):
  """Where there are not so many slices, no mesh hides it."""
  devices = _devices(platform, slices, processes)
  if wanted is None:
    message = rf'for {math.prod(dcn)} slice.*the devices are in'
    with pytest.raises(errors.UserError, match=message):
      meshes_of_slices(devices, dcn)
  else:
    found = meshes_of_slices(devices, dcn)
    assert [[d.id for d in of_slice] for of_slice in found] == wanted


def test_auto_sharding():
  shapes = automatic.shapes_of_mesh
  assert shapes(None, 8, 1) == ([8], [1], ['data'])
  names = ['replica', 'data', 'mdl']
  assert shapes(names, 8, 2) == ([1, 4, 1], [2, 1, 1], names)
  with pytest.raises(errors.UserError, match="needs a mesh axis 'data'"):
    shapes(['x', 'y'], 8, 1)

  mesh = AbstractMesh((1, 4, 1), ('replica', 'data', 'mdl'))

  def mapping(shape, split=None, stacked=()):
    weight = WeightHParams(
      shape, tensor_split_dims_mapping=split, repeat_prefix=stacked
    )
    box = partitioning.fully_sharded(mesh, {'w': BoxedParam(None, weight)})
    return box['w'].meta.tensor_split_dims_mapping

  assert mapping([64, 128]) == (None, ('data',))
  assert mapping([64, 127]) == (('data',), None)
  assert mapping([63, 127]) is None
  assert mapping([64, 128], [None, 'mdl']) == (None, ('mdl', 'data'))
  assert mapping([64, 128], ['data', 'mdl']) == ['data', 'mdl']
  assert mapping([100]) is None
  assert mapping([128, 64, 64], None, (128,)) == (None, ('data',), None)


def test_tensor_parallel():
  shapes = automatic.shapes_of_mesh
  assert shapes(None, 8, 1, 4) == ([2, 4], [1, 1], ['data', 'mdl'])
  names = ['replica', 'data', 'mdl']
  assert shapes(names, 8, 2, 2) == ([1, 2, 2], [2, 1, 1], names)
  with pytest.raises(errors.UserError, match='is 3; expected a divisor of 8'):
    shapes(None, 8, 1, 3)

  mesh = AbstractMesh((2, 4), ('data', 'mdl'))

  def mapping(shape, split=None, **fields):
    weight = WeightHParams(shape, tensor_split_dims_mapping=split, **fields)
    box = partitioning.fully_sharded(mesh, {'w': BoxedParam(None, weight)})
    return box['w'].meta.tensor_split_dims_mapping

  assert mapping([64, 256]) == (('data',), ('mdl',))
  assert mapping([256, 64]) == (('mdl',), ('data',))
  assert mapping([64, 64]) == (('data',), ('mdl',))
  assert mapping([64, 4, 32], heads_dim=1) == (('data',), ('mdl',), None)
  # Three heads are not split.
  assert mapping([64, 3, 32], heads_dim=1) == (('data',), None, None)
  assert mapping([64, 128], ['mdl', None]) == (('mdl',), ('data',))
  assert mapping([64, 128], ['data', 'mdl']) == ['data', 'mdl']
  box = BoxedParam(None, WeightHParams([64, 4, 32], heads_dim=1))
  stacked = box.add_axis(0, {'x_times': 8})
  assert stacked.meta.heads_dim == 2
  assert stacked.remove_axis(0, {'x_times': 8}).meta.heads_dim == 1


def test_tensor_parallel_needs_auto_sharding():
  task = tasks_lib.SingleTask.config()
  task.train.tensor_parallel = 4
  with pytest.raises(errors.UserError, match='or --enable_auto_sharding'):
    partitioning.mesh_of_task(task)


@pytest.mark.parametrize(
  ('mapping', 'specs'),
  [
    (None, [(), (('data',),), (('data',), None)]),
    (dict(map_1d=('mdl',)), [(), ('mdl',), ('mdl', None)]),
    (
      dict(map_1d=(('data', 'mdl'),), map_2d=(('data', 'mdl'), None)),
      [(), (('data', 'mdl'),), (('data', 'mdl'), None)],
    ),
    (dict(map_2d=[None, 'mdl']), [(), (None,), (None, 'mdl')]),
    (dict(map_2d=[['data'], 'mdl']), [(), ('data',), ('data', 'mdl')]),
  ],
)
def test_inputs_are_split_by_inputs_split_mapping(mesh, mapping, specs):
  sharding = partitioning.batch_sharding(mesh, mapping)
  for ndim, spec in enumerate(specs):
    want = NamedSharding(mesh, PartitionSpec(*spec))
    assert sharding.of(ndim).is_equivalent_to(want, ndim)


@pytest.mark.parametrize(
  ('mapping', 'message'),
  [
    (dict(map_2d=['data']), r'map_2d is .*expected a mesh axis.* 2 dimension'),
    (dict(map2=['data', None]), "has the key 'map2'; expected map_1d, map_2d"),
    (dict(map_0d=[]), "has the key 'map_0d'"),
    (dict(map_1d=['x']), "map_1d: split over 'x'"),
    (
      dict(map_1d=['mdl'], map_2d=['data', None]),
      'splits the first dimension in 2 ways',
    ),
  ],
)
def test_invalid_mappings_of_inputs(mesh, mapping, message):
  with pytest.raises(errors.UserError, match=message):
    partitioning.batch_sharding(mesh, mapping)


def test_a_batch_on_one_device_is_that_batch():
  sharding = partitioning.batch_sharding(partitioning.create_mesh(None, None))
  batch = {'x': np.arange(6).reshape(3, 2), 'y': np.ones(3)}
  got = partitioning.global_batch(batch, sharding)
  jax.tree.map(np.testing.assert_array_equal, got, batch)


@pytest.fixture(scope='module')
def on_two_processes():
  """Returns the results of two processes with two devices each."""
  printed = launching.run_on_processes(meshes.train, 2, devices=2)
  return [json.loads(text) for text in printed]


@pytest.mark.parametrize(
  ('name', 'places'), [('across', [(2, 0), (2, 1)]), ('within', [(1, 0)] * 2)]
)
def test_processes_read_what_their_devices_hold(on_two_processes, name, places):
  """Where both hold the same examples, both read the same."""
  want, _, _ = lines.losses(3, w=np.full(lines.DIMS, 0.5), b=0.0)
  found = [results[name] for results in on_two_processes]
  assert [tuple(place) for *place, _, _ in found] == places
  for _, _, losses, _ in found:
    np.testing.assert_allclose(losses, want, rtol=1e-5)
  # Every row belongs to one process.
  y = lines.rows(2 * lines.BATCH).y
  rows = [row for *_, (own, _) in found for row in own]
  np.testing.assert_allclose(sorted(rows), sorted(y), rtol=1e-6)
  assert [count for *_, (_, count) in found] == [lines.BATCH] * 2


def test_slices_are_what_slow_links_connect(on_two_processes):
  for results in on_two_processes:
    assert results['slices'] == [[0, 0], [1, 1]]
    assert results['slices of mdl'] == [[0, 1], [0, 1]]
