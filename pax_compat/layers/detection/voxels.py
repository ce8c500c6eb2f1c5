"""Voxels: cells of a grid with any number of points each.

As https://arxiv.org/abs/1910.06528 voxelizes. Shapes: B batch, P points, F
features of a point, X, Y and Z cells of the grid, V = X * Y * Z, D features.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.detection import segments
from pax_compat.nested_map import NestedMap

# The encodings of a point, in the order of their features.
CENTERED, FEATURES, CENTROID = 'centered_xyz', 'features', 'centroid'
CENTER, FROM_CENTER = 'center', 'xyz_from_center'
POSITION, COVARIANCE = 'xyz', 'covariance'
ENCODINGS = (
  CENTERED,
  FEATURES,
  CENTROID,
  CENTER,
  FROM_CENTER,
  POSITION,
  COVARIANCE,
)
_AGGREGATIONS = {
  'max': segments.segment_max,
  'mean': segments.segment_mean,
  'sum': segments.segment_sum,
}


class VoxelFeaturizer(base_layer.BaseLayer):
  """Features of a grid, from points that it sorts into voxels.

  A batch has `lasers.points_xyz` [B, P, 3], `lasers.points_feature` [B, P, F]
  and optionally `lasers.points_padding` [B, P]. Points outside of the grid are
  left out.

  Attributes:
    grid_size: X, Y, Z.
    grid_ranges: lowest and highest coordinate of the grid, for each axis.
    min_points_per_voxel: voxels of fewer points are empty.
    encodings: what is known of a point: some of `ENCODINGS`. They are its
      position relative to the mean of its voxel, its features, that mean, the
      center of the voxel, the position relative to that center, the position,
      and the covariance of the voxel's points.
    featurizer_tpl: maps a NestedMap of `features` and `padding` of points to
      features [B, P, D].
    aggregations: how features of a voxel's points become one: some of 'max',
      'mean', 'sum', one after the other.
  """

  grid_size: Sequence[int] = REQUIRED
  grid_ranges: Sequence[Sequence[float]] = REQUIRED
  min_points_per_voxel: int = 1
  encodings: Sequence[str] = (CENTERED, FEATURES, CENTROID, CENTER)
  featurizer_tpl: Config = REQUIRED
  aggregations: Sequence[str] = ('max',)

  def setup(self):
    for name, known in (
      ('encodings', ENCODINGS),
      ('aggregations', tuple(_AGGREGATIONS)),
    ):
      unknown = set(getattr(self, name)).difference(known)
      if unknown or not getattr(self, name):
        raise errors.UserError(
          f'VoxelFeaturizer.{name} is {list(getattr(self, name))}; expected'
          f' some of {", ".join(known)}'
        )
    self.create_child('featurizer', self.featurizer_tpl)

  def __call__(self, input_batch: NestedMap) -> jax.Array:
    """Returns features [B, X, Y, Z * D], 0 in empty voxels."""
    return self.voxelize(input_batch)[0]

  def voxelize(self, input_batch: NestedMap) -> tuple[jax.Array, NestedMap]:
    """Returns the features of the grid, and the voxels of points.

    Args:
      input_batch: the batch.

    Returns:
      Features [B, X, Y, Z * D]; and of the points `ids` [B, P] int, the voxels,
      V where they are left out, and `nearest` [B, P] int, the voxels where
      they are, 0 outside of the grid and for padding.
    """
    lasers = input_batch.lasers
    positions = lasers.points_xyz
    paddings = lasers.get('points_padding')
    if paddings is None:
      paddings = jnp.zeros(positions.shape[:2], positions.dtype)
    voxels = self._voxels(positions, paddings)
    features = self.featurizer(
      NestedMap(
        features=self._encoded(positions, lasers.points_feature, voxels),
        padding=(voxels.ids == self._count).astype(positions.dtype),
      )
    )
    parts = [
      _AGGREGATIONS[name](features, voxels.ids, self._count)
      for name in self.aggregations
    ]
    x, y, _ = self.grid_size
    grid = jnp.concatenate(parts, axis=-1).reshape([len(positions), x, y, -1])
    return grid, NestedMap(ids=voxels.ids, nearest=voxels.nearest)

  @property
  def _count(self) -> int:
    return math.prod(self.grid_size)

  def _voxels(self, positions: jax.Array, paddings: jax.Array) -> NestedMap:
    """Returns `ids`, `nearest` [B, P], `centers`, `means` [B, P, 3] of voxels.

    Args:
      positions: [B, P, 3].
      paddings: [B, P].
    """
    low, high = np.asarray(self.grid_ranges, np.float64).T
    sizes = ((high - low) / self.grid_size).astype(np.float32)
    low = low.astype(np.float32)
    cells = jnp.floor((positions - low) / sizes).astype(jnp.int32)
    shape = np.asarray(self.grid_size, np.int32)
    is_outside = jnp.any((cells < 0) | (cells >= shape), axis=-1)
    ids = (cells[..., 0] * shape[1] + cells[..., 1]) * shape[2] + cells[..., 2]
    is_outside |= paddings == 1.0
    nearest = jnp.where(is_outside, 0, ids)
    ids = jnp.where(is_outside, self._count, ids)
    means = self._of_points(
      segments.segment_mean(positions, ids, self._count), ids
    )
    if self.min_points_per_voxel > 1:
      ones = jnp.ones(ids.shape, jnp.int32)
      counts = segments.segment_sum(ones, ids, self._count)
      is_small = self._of_points(counts, ids) < self.min_points_per_voxel
      ids = jnp.where(is_small, self._count, ids)
    centers = (cells.astype(positions.dtype) + 0.5) * sizes + low
    return NestedMap(ids=ids, nearest=nearest, centers=centers, means=means)

  def _of_points(self, values: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns values [B, V, ...] for each point, [B, P, ...]; 0 outside."""
    return jax.vmap(lambda x, i: x.at[i].get(mode='fill', fill_value=0))(
      values, ids
    )

  def _encoded(
    self, positions: jax.Array, features: jax.Array, voxels: NestedMap
  ) -> jax.Array:
    """Returns the encodings of points, [B, P, ...]."""
    centered = positions - voxels.means
    found = {
      CENTERED: centered,
      FEATURES: features,
      CENTROID: voxels.means,
      CENTER: voxels.centers,
      FROM_CENTER: positions - voxels.centers,
      POSITION: positions,
    }
    if COVARIANCE in self.encodings:
      products = centered[..., :, None] * centered[..., None, :]
      products = products.reshape([*centered.shape[:-1], 9])
      of_voxels = segments.segment_mean(products, voxels.ids, self._count)
      found[COVARIANCE] = self._of_points(of_voxels, voxels.ids)
    return jnp.concatenate(
      [found[name] for name in ENCODINGS if name in self.encodings], axis=-1
    )
