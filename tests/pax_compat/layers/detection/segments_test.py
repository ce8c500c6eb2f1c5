"""Tests of reductions by segment, and of voxels and bins of angles."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.detection import boxes, segments, voxels
from pax_compat.layers.graph import arguments
from pax_compat.nested_map import NestedMap

_IDS = jnp.array([[0, 2, 2, 2, 4]])  # Of four segments; the last is left out.
_VALUES = jnp.array([[1.0, 3.0, 5.0, 5.0, 9.0]])


@pytest.mark.parametrize(
  ('reduce', 'wanted'),
  [
    (segments.segment_sum, [1.0, 0.0, 13.0, 0.0]),
    (segments.segment_mean, [1.0, 0.0, 13 / 3, 0.0]),
    (segments.segment_max, [1.0, 0.0, 5.0, 0.0]),
  ],
)
def test_reductions(reduce, wanted):
  found = reduce(_VALUES[..., None], _IDS, 4)
  np.testing.assert_allclose(found, np.reshape(wanted, [1, 4, 1]), rtol=1e-6)


def test_equal_largest_values_share_the_gradient():
  def loss(x):
    weights = jnp.array([2.0, 3.0, 4.0, 5.0])
    return jnp.sum(segments.segment_max(x, _IDS, 4) * weights)

  found = jax.jit(jax.grad(loss))(_VALUES)
  np.testing.assert_allclose(found, [[2, 0, 2, 2, 0]])


def _voxels(**fields):
  return voxels.VoxelFeaturizer.config(
    grid_size=(2, 2, 1),
    grid_ranges=((0, 2), (0, 4), (-1, 1)),
    featurizer_tpl=arguments.Apply.config(fn=lambda points: points.features),
    **fields,
  ).Instantiate()


def _points():
  places = [[0.5, 3.0, 0], [0.7, 3.5, 0], [1.5, 0, 0], [1.5, 0, 2], [0, 0, 0]]
  return NestedMap(
    lasers=NestedMap(
      points_xyz=jnp.array([places]),
      points_feature=jnp.arange(5.0).reshape([1, 5, 1]),
      points_padding=jnp.array([[0.0, 0, 0, 0, 1]]),
    )
  )


def test_points_outside_and_padding_are_in_no_voxel():
  layer = _voxels(encodings=('features',), aggregations=('sum', 'max'))
  found = layer.apply({}, _points())
  wanted = [[[[0, 0], [1, 1]], [[2, 2], [0, 0]]]]
  np.testing.assert_allclose(found, wanted)


def test_voxels_of_few_points_are_empty():
  layer = _voxels(encodings=('centroid',), min_points_per_voxel=2)
  found = layer.apply({}, _points())
  np.testing.assert_allclose(found[0, 0, 1], [0.6, 3.25, 0.0], rtol=1e-6)
  assert not found[0, 1].any()


def test_an_unknown_aggregation_is_refused():
  with pytest.raises(errors.UserError, match='expected some of max, mean, sum'):
    _voxels(aggregations=('median',)).apply({}, _points())


def test_bins_hold_their_angles():
  angles = jnp.array([0.0, 0.5, 1.6, -1.0, 7.0, -1e-9])
  bins, where = boxes.angle_to_bin(angles, 12)
  assert bins.max() < 12
  assert jnp.abs(where).max() <= 0.5
  residuals = jnp.broadcast_to(where[:, None], (len(angles), 12))
  found = boxes.bin_to_angle(bins, residuals)
  turns = (found - angles) / (2 * math.pi)
  np.testing.assert_allclose(turns, jnp.round(turns), atol=1e-6)
