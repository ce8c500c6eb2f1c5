"""Batches and weights that are split over meshes of eight devices."""

import types

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pax_compat import base_layer, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, row_weights
from pax_compat.trainer.partitioning import weights


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


def test_rows_that_devices_do_not_divide(mesh):
  """Padding rows have weight 0, also of a task's batch and in shapes."""
  sharding = partitioning.batch_sharding(mesh)
  inner = NestedMap(ids=np.ones([6, 3], int), paddings=np.zeros([6, 3]))
  put = partitioning.global_batch(NestedMap(task=inner), sharding).task
  assert partitioning.num_padding_rows(inner, sharding) == 2
  assert put.ids.sharding.shard_shape(put.ids.shape) == (2, 3)
  assert put.paddings[:, 0].tolist() == [0] * 6 + [1] * 2
  assert put.eval_sample_weights.tolist() == [1] * 6 + [0] * 2
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inner)
  padded = partitioning.padded(shapes, sharding)
  assert {k: x.shape for k, x in padded.items()} == {
    k: x.shape for k, x in put.items()
  }
  inner.ids = np.ones([5, 3])
  with pytest.raises(errors.UserError, match=r'5, 6 rows, .* 4 device\(s\)'):
    partitioning.global_batch(inner, sharding)


@pytest.mark.parametrize(
  'wrapped',
  [lambda loss: loss, jax.jit, jax.checkpoint],
  ids=['', 'jit', 'remat'],
)
def test_a_loss_without_weights_cannot_have_padding_rows(mesh, wrapped):
  def check(loss):
    program = types.SimpleNamespace(
      batch_sharding=partitioning.batch_sharding(mesh),
      mesh=mesh,
      model=None,
      learner=types.SimpleNamespace(stochastic_gradient=None),
      abstract_state=types.SimpleNamespace(mdl_vars={'w': np.ones(3)}),
      forward=lambda variables, batch, key: (
        wrapped(loss)(variables['w'], batch),
        None,
      ),
    )
    return row_weights.Check(program)

  def mean(w, batch):
    del batch.eval_sample_weights
    return (batch.x @ w).mean()

  def weighted(w, batch):
    return (batch.x @ w * batch.eval_sample_weights).mean()

  uneven, even = (NestedMap(x=np.ones([n, 3])) for n in (6, 8))
  check(weighted)(uneven)
  check(mean)(even)
  with pytest.raises(errors.UserError, match=r'6 rows .* a multiple of 4'):
    check(mean)(uneven)


def _split(mesh, shape, mapping, stacked=()):
  return weights.weight_split(
    mesh,
    base_layer.WeightHParams(
      shape, tensor_split_dims_mapping=mapping, repeat_prefix=stacked
    ),
  )


def test_an_axis_that_does_not_divide_a_dimension_splits_another(mesh):
  split = _split(mesh, [13, 16], ['data', 'mdl'])
  assert split.stored.spec == P(None, ('mdl', 'data'))
  assert split.in_step == P(('data',), ('mdl',))
  assert split.stored.shard_shape((13, 16)) == (13, 2)
  [moved] = split.moved
  assert str(moved) == (
    'a dimension of 13 is not a multiple of the shards of data; stored split'
    ' along 16 instead'
  )
  # Of two axes, the one that divides stays.
  split = _split(mesh, [6, 8], [('data', 'mdl'), None])
  assert split.stored.spec == P(('mdl',), ('data',))
  # The largest dimension takes it, but not one of stacked layers.
  split = _split(mesh, [64, 13, 8, 4], [None, 'data', None, None], (64,))
  assert split.stored.spec == P(None, None, ('data',), None)
  # None fits.
  split = _split(mesh, [13, 9], ['data', 'mdl'])
  assert split.stored.spec == P(None, None)
  assert ['its 4 devices store copies' in str(m) for m in split.moved] == [
    True,
    False,
  ]
  assert not _split(mesh, [8, 16], ['data', 'mdl']).moved


def test_a_length_that_devices_do_not_divide(mesh):
  by_length = partitioning.batch_sharding(mesh, {'map_2d': ('data', 'mdl')})
  batch = {'x': np.ones([8, 3]), 'y': np.ones([8, 4])}
  put = partitioning.global_batch(batch, by_length)
  assert put['x'].sharding.shard_shape((8, 3)) == (2, 3)
  assert put['y'].sharding.shard_shape((8, 4)) == (2, 2)
