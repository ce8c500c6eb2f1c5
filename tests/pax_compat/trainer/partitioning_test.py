"""Tests of meshes, and of sharding over them."""

import json

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pax_compat import errors
from pax_compat.base_layer import WeightHParams
from pax_compat.trainer import partitioning
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


_EIGHT_DEVICES = """
  import json
  import numpy as np
  from pax_compat import base_layer, errors
  from pax_compat.nested_map import NestedMap
  from pax_compat.trainer import partitioning

  def split(shape, names, dcn=None, mapping=None):
    mesh = partitioning.create_mesh(shape, names, dcn)
    sharding = partitioning.batch_sharding(mesh, mapping)
    x = partitioning.global_batch({'x': np.arange(16).reshape(8, 2)}, sharding)
    parts = {s.index[0].start or 0 for s in x['x'].addressable_shards}
    return [sorted(parts), np.asarray(x['x']).ravel().tolist()]

  results = {
    'data': split((8,), ('data',)),
    'both': split((2, 2, 2), ('replica', 'data', 'mdl')),
    'mdl': split((2, 4), ('data', 'mdl')),
    'none': split((8,), ('mdl',)),
    'slices': split((1, 2), ('data', 'mdl'), (4, 1)),
    'mapped': split((2, 4), ('data', 'mdl'), None, {'map_2d': ('mdl', None)}),
  }
  mesh = partitioning.create_mesh((4, 2), ('data', 'mdl'))
  batch = NestedMap(src=NestedMap(ids=np.ones([6, 3])))
  try:
    partitioning.global_batch(batch, partitioning.batch_sharding(mesh))
  except errors.UserError as e:
    results['batch_error'] = str(e)
  weight = base_layer.WeightHParams(
    [8, 12], tensor_split_dims_mapping=(None, ('data', 'mdl'))
  )
  try:
    by_length = partitioning.batch_sharding(mesh, {'map_2d': ('data', 'mdl')})
    partitioning.global_batch({'x': np.ones([8, 3])}, by_length)
  except errors.UserError as e:
    results['length_error'] = str(e)
  try:
    partitioning.weight_sharding(mesh, weight)
  except errors.UserError as e:
    results['weight_error'] = str(e)
  print(json.dumps(results))
"""


@pytest.fixture(scope='module')
def on_eight_devices():
  return json.loads(launching.run_on_eight_devices(_EIGHT_DEVICES))


def test_batches_on_eight_devices(on_eight_devices):
  results = on_eight_devices
  # The rows at which the devices' parts start.
  starts = {k: v[0] for k, v in results.items() if not k.endswith('error')}
  assert starts == {
    'data': [0, 1, 2, 3, 4, 5, 6, 7],
    'both': [0, 2, 4, 6],
    'mdl': [0, 4],
    'none': [0],
    'slices': [0, 2, 4, 6],
    'mapped': [0, 2, 4, 6],
  }
  assert all(results[k][1] == list(range(16)) for k in starts)
  for part in ("'src.ids'", '[6, 3]', '4 device(s)', 'a multiple of 4'):
    assert part in results['batch_error']


def test_a_weight_that_eight_devices_cannot_share(on_eight_devices):
  for part in ('shape [8, 12]', 'of 12', 'data, mdl', 'a multiple of 8'):
    assert part in on_eight_devices['weight_error']


def test_a_length_that_eight_devices_cannot_share(on_eight_devices):
  for part in (
    "field 'x' of shape [8, 3]",
    'of 3',
    'over mdl',
    'multiple of 2',
  ):
    assert part in on_eight_devices['length_error']


_TWO_PROCESSES = """
  import json
  import numpy as np
  from pax_compat import errors
  from pax_compat.trainer import partitioning, program
  from tests.pax_compat.trainer import lines

  mine = jax.process_index()
  results = {}
  for name, names in (('across', ('data', 'mdl')), ('within', ('mdl', 'data'))):
    mesh = partitioning.create_mesh((2, 2), names)
    sharding = partitioning.batch_sharding(mesh)
    hosts = sharding.num_infeed_hosts
    rows = lines.BATCH // hosts
    losses = []
    first_rows = lines.rows(0, count=rows)
    made = program.create(lines.task().Instantiate(), mesh, first_rows)
    state = made.init_state(first_rows)
    for step in range(3):
      first = step * lines.BATCH + rows * sharding.infeed_host_index
      batch = lines.rows(first, count=rows)
      batch = partitioning.global_batch(batch, made.batch_sharding)
      state, outputs = made.train_step(state, batch)
      losses.append(float(outputs['loss']))
    own = [partitioning.local_rows(batch.y).tolist(), batch.y.shape[0]]
    results[name] = [hosts, sharding.infeed_host_index, losses, own]
  mesh = partitioning.create_mesh((1, 2), ('data', 'mdl'), (2, 1))
  results['slices'] = [[d.process_index for d in row] for row in mesh.devices]
  mesh = partitioning.create_mesh((2, 1), ('data', 'mdl'), (1, 2))
  results['slices of mdl'] = [
    [d.process_index for d in row] for row in mesh.devices
  ]
  print(json.dumps(results))
"""


@pytest.fixture(scope='module')
def on_two_processes():
  """Returns the results of two processes with two devices each."""
  printed = launching.run_on_processes(_TWO_PROCESSES, 2, devices=2)
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
