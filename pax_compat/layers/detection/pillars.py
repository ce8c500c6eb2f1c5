"""Pillars: points that share a cell of a horizontal grid.

As PointPillars, https://arxiv.org/abs/1812.05784. Shapes: B batch, P pillars, N
points of a pillar, F features of a point, X, Y and Z cells of the grid, D
features of a cell.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.config import REQUIRED, Config
from pax_compat.nested_map import NestedMap


class PillarFeaturizer(base_layer.BaseLayer):
  """Features of a grid, from points that the input has sorted into pillars.

  A batch has `pillar_points` [B, P, N, 3 + F], positions and features, 0 for
  padding; `pillar_centers` [B, P, 1, 3], those of the cells; `pillar_locations`
  [B, P, 3] int, the cells themselves; and `grid_num_points` [B, X, Y, Z] int,
  the number of points of each cell.

  Attributes:
    featurizer_tpl: maps features [B, P, N, 9 + F] to those of a pillar, [B, P,
      D]: the position relative to the mean of the pillar, F features, the mean
      and the center.
  """

  featurizer_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('featurizer', self.featurizer_tpl)

  def __call__(self, input_batch: NestedMap) -> jax.Array:
    """Returns features [B, X, Y, Z * D]; pillars in one cell are added."""
    points = input_batch.pillar_points
    cells = input_batch.pillar_locations
    rows = jnp.arange(len(cells))[:, None]
    index = rows, cells[..., 0], cells[..., 1], cells[..., 2]
    counts = jnp.asarray(input_batch.grid_num_points)[index][..., None, None]
    sums = jnp.sum(points[..., :3], axis=2, keepdims=True)
    means = sums / jnp.maximum(counts.astype(points.dtype), 1.0)
    shape = *points.shape[:-1], 3
    features = self.featurizer(
      jnp.concatenate(
        [
          points[..., :3] - means,
          points[..., 3:],
          jnp.broadcast_to(means, shape),
          jnp.broadcast_to(input_batch.pillar_centers, shape),
        ],
        axis=-1,
      )
    )
    b, x, y, z = input_batch.grid_num_points.shape
    grid = jnp.zeros([b, x, y, z, features.shape[-1]], features.dtype)
    return grid.at[index].add(features).reshape([b, x, y, -1])
