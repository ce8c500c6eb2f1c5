"""Images as sequences of square patches.

Shapes: B batch, H height, W width, C channels, P height and width of a patch, N
patches, D dims of embeddings.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors


def _grid(shape: Sequence[int], patch_size: int) -> tuple[int, int]:
  """Returns the rows and columns of patches of an image [B, H, W, C]."""
  if len(shape) != 4:
    raise errors.UserError(
      f'an image of shape {list(shape)}; expected batch, height, width and'
      ' channels'
    )
  if patch_size < 1 or shape[1] % patch_size or shape[2] % patch_size:
    raise errors.UserError(
      f'images of {shape[1]} x {shape[2]} pixels and a patch_size of'
      f' {patch_size}; expected height and width to be multiples of it'
    )
  return shape[1] // patch_size, shape[2] // patch_size


def image_to_patch(img: jax.Array, patch_size: int) -> jax.Array:
  """Returns the patches of images, row by row, [B, N, P * P * C].

  >>> image_to_patch(jnp.arange(16).reshape(1, 4, 4, 1), 2)[0].tolist()
  [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]

  Args:
    img: [B, H, W, C].
    patch_size: P.

  Raises:
    UserError: P does not divide H and W.
  """
  rows, columns = _grid(img.shape, patch_size)
  batch, channels = img.shape[0], img.shape[-1]
  x = img.reshape(batch, rows, patch_size, columns, patch_size, channels)
  return jnp.swapaxes(x, 2, 3).reshape(batch, rows * columns, -1)


def patch_to_image(
  patches: jax.Array, img_shape: Sequence[int], patch_size: int
) -> jax.Array:
  """Returns the images of patches; the inverse of `image_to_patch`.

  Args:
    patches: [B, N, P * P * C].
    img_shape: B, H, W and C.
    patch_size: P.

  Raises:
    UserError: P does not divide H and W.
  """
  rows, columns = _grid(img_shape, patch_size)
  channels = img_shape[-1]
  x = patches.reshape(-1, rows, columns, patch_size, patch_size, channels)
  return jnp.swapaxes(x, 2, 3).reshape(-1, *img_shape[1:])


def interpolate_embedding_2d(
  emb: jax.Array,
  source_emb_shape: Sequence[int],
  target_emb_shape: Sequence[int],
) -> jax.Array:
  """Returns position embeddings for another number of patches.

  Args:
    emb: [1, N, D].
    source_emb_shape: rows and columns of the N patches.
    target_emb_shape: rows and columns of the result.

  Returns:
    [1, N', D], interpolated linearly.

  Raises:
    UserError: the shape of `emb` does not match.
  """
  rows, columns = source_emb_shape
  if emb.ndim != 3 or emb.shape[:2] != (1, rows * columns):
    raise errors.UserError(
      f'position embeddings of shape {list(emb.shape)}; expected'
      f' [1, {rows * columns}, dims] for {rows} x {columns} patches'
    )
  dims = emb.shape[-1]
  grid = emb.reshape(rows, columns, dims)
  resized = jax.image.resize(grid, (*target_emb_shape, dims), 'bilinear')
  return resized.reshape(1, -1, dims)
