"""Features of a grid from both the points of a cloud and images of cameras.

As DeepFusion, https://arxiv.org/abs/2203.08195. Shapes: B batch, P points, C
cameras, H and W pixels of an image, X and Y cells of the grid, V = X * Y, D
features of a cell, I features of a pixel, Q features of a query.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.detection import segments
from pax_compat.nested_map import NestedMap


class CameraFusion(base_layer.BaseLayer):
  """A featurizer of points in voxels that adds features of images.

  The points of a voxel attend to the pixels that show them: the voxel asks, and
  each of its points answers. A batch has what the featurizer of points reads;
  `images.CAMERA.image` [B, H, W, 3], of the same size for all cameras; and
  where points are in images: `cell_center_projected.cameras_idx` [B, P] int,
  the camera, `cell_center_projected.points_in_best_camera` [B, P, 3], column
  and row first, and `cell_center_projected.mask` [B, P], 0 for points that no
  camera sees.

  Attributes:
    points_tpl: a `voxels.VoxelFeaturizer` with one layer of voxels.
    images_tpl: maps images [B * C, H, W, 3] to features [B * C, H', W', I].
    query_tpl: maps features of the voxel, [B, P, D], to queries [B, P, Q].
    key_tpl: maps features of pixels, [B, P, I], to keys [B, P, Q].
    value_tpl: maps features of pixels, [B, P, I], to values [B, P, Q].
    dropout_tpl: dropout of the attention's weights.
    output_tpl: maps weighted values [B, P, Q] to [B, P, I].
    fusion_tpl: maps the features of points and those of images, [B, X, Y, D +
      I], to the output.
    camera_names: the cameras in the order of `cameras_idx`; empty for all in
      alphabetical order.
  """

  points_tpl: Config = REQUIRED
  images_tpl: Config = REQUIRED
  query_tpl: Config = REQUIRED
  key_tpl: Config = REQUIRED
  value_tpl: Config = REQUIRED
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  output_tpl: Config = REQUIRED
  fusion_tpl: Config = REQUIRED
  camera_names: Sequence[str] = ()

  def setup(self):
    self.create_child('points', self.points_tpl)
    self.create_child('images', self.images_tpl)
    self.create_child('query', self.query_tpl)
    self.create_child('key', self.key_tpl)
    self.create_child('value', self.value_tpl)
    self.create_child('dropout', self.dropout_tpl)
    self.create_child('output', self.output_tpl)
    self.create_child('fusion', self.fusion_tpl)

  def __call__(self, input_batch: NestedMap) -> jax.Array:
    """Returns the features of the grid, [B, X, Y, ...].

    Args:
      input_batch: the batch.

    Raises:
      UserError: the grid has several layers of voxels, or the batch lacks a
        camera.
    """
    if self.points.grid_size[2] != 1:
      raise errors.UserError(
        f'CameraFusion: the grid_size is {tuple(self.points.grid_size)};'
        ' expected one layer of voxels'
      )
    grid, voxels = self.points.voxelize(input_batch)
    pixels = self._pixels(input_batch)
    seen = input_batch.cell_center_projected.mask
    of_images = self._attend(grid, voxels, pixels, seen)
    of_images = of_images.reshape([*grid.shape[:3], -1])
    return self.fusion(jnp.concatenate([grid, of_images], axis=-1))

  def _pixels(self, input_batch: NestedMap) -> jax.Array:
    """Returns the features of the pixels that show the points, [B, P, I]."""
    names = list(self.camera_names) or sorted(input_batch.images)
    missing = sorted(set(names).difference(input_batch.images))
    if missing:
      raise errors.UserError(
        f'CameraFusion: the batch has no images of {", ".join(missing)}'
      )
    images = jnp.stack([input_batch.images[n].image for n in names], axis=1)
    rows, cameras, height = images.shape[:3]
    features = self.images(images.reshape([-1, *images.shape[2:]]))
    scale = jnp.float32(features.shape[1]) / jnp.float32(height)
    features = features.reshape([rows, cameras, *features.shape[1:]])
    where = input_batch.cell_center_projected
    seen = where.mask.astype(jnp.int32)
    places = (where.points_in_best_camera[..., :2] * scale).astype(jnp.int32)
    index = (
      jnp.arange(rows)[:, None],
      where.cameras_idx * seen,
      places[..., 1] * seen,
      places[..., 0] * seen,
    )
    return features.at[index].get(mode='clip') * where.mask[..., None]

  def _attend(
    self,
    grid: jax.Array,
    voxels: NestedMap,
    pixels: jax.Array,
    seen: jax.Array,
  ) -> jax.Array:
    """Returns the features of images of each voxel, [B, V, I].

    Args:
      grid: features of voxels, [B, X, Y, D].
      voxels: those of the points, see `VoxelFeaturizer.voxelize`.
      pixels: [B, P, I].
      seen: whether a camera sees a point, [B, P].
    """
    count = math.prod(grid.shape[1:3])
    flat = grid.reshape([len(grid), count, -1])
    queries = self.query(_of_points(flat, voxels.nearest))
    keys, values = self.key(pixels), self.value(pixels)
    affinities = jnp.einsum('bpq,bpq->bp', queries, keys)
    affinities /= math.sqrt(queries.shape[-1])
    is_valid = (voxels.ids < count) & (seen >= 0.5)
    ids = jnp.where(is_valid, voxels.ids, count)
    # It cancels out, and keeps the exponential small.
    largest = jax.lax.stop_gradient(
      segments.segment_max(affinities, ids, count)
    )
    exponents = affinities - _of_points(largest, voxels.nearest)
    shares = jnp.exp(jnp.where(is_valid, exponents, 0.0)) * is_valid
    totals = _of_points(
      segments.segment_sum(shares, ids, count), voxels.nearest
    )
    weights = self.dropout(shares / jnp.where(is_valid, totals, 1.0))
    outputs = self.output(weights[..., None] * values)
    return segments.segment_sum(outputs, ids, count)


def _of_points(values: jax.Array, cells: jax.Array) -> jax.Array:
  """Returns values of voxels for each point, [B, P, ...].

  Args:
    values: [B, V, ...].
    cells: [B, P] int.
  """
  return jax.vmap(lambda x, i: x[i])(values, cells)
