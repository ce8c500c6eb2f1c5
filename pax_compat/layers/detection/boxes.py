"""Upright boxes in three dimensions: (x, y, z, dx, dy, dz, phi).

The first three are the center and the next three length, width and height;
`phi` is the heading, the angle around the vertical axis in radians.
"""

import math

import jax
import jax.numpy as jnp

# Number of values of a box.
SIZE = 7
# The corners of a box of length 1 at the origin, the upper ones first.
_CORNERS = (
  (0.5, 0.5, 0.5),
  (-0.5, 0.5, 0.5),
  (-0.5, -0.5, 0.5),
  (0.5, -0.5, 0.5),
  (0.5, 0.5, -0.5),
  (-0.5, 0.5, -0.5),
  (-0.5, -0.5, -0.5),
  (0.5, -0.5, -0.5),
)


def wrap_angle(angle: jax.Array) -> jax.Array:
  """Returns angles between -pi and pi that differ by full turns.

  >>> float(wrap_angle(jnp.array(1.5 * math.pi))).__round__(3)
  -1.571
  """
  return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi


def angle_to_bin(angle: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Returns the bin of each angle, and where in the bin it is.

  A bin is a part of the circle; the first one is around 0.

  >>> angle_to_bin(jnp.array(0.5 * math.pi), 4)[0].item()
  1

  Args:
    angle: [...].
    count: of all bins.

  Returns:
    Bins [...] int, and positions [...] between -0.5 and 0.5 of a bin.
  """
  width = 2 * math.pi / count
  angle = jnp.mod(jnp.mod(angle, 2 * math.pi) + width / 2, 2 * math.pi)
  # A rounded angle may reach the end of the last bin.
  bins = jnp.clip(jnp.floor(angle / width), 0, count - 1)
  return bins.astype(jnp.int32), angle / width - (bins + 0.5)


def bin_to_angle(bins: jax.Array, residuals: jax.Array) -> jax.Array:
  """Returns the angles of bins.

  Args:
    bins: [...] int.
    residuals: [..., number of bins], positions in each bin; see `angle_to_bin`.
  """
  chosen = jnp.take_along_axis(residuals, bins[..., None], axis=-1)[..., 0]
  return (bins + chosen) * (2 * math.pi / residuals.shape[-1])


def from_residuals(anchors: jax.Array, residuals: jax.Array) -> jax.Array:
  """Returns the boxes that residuals describe, relative to anchors.

  Centers move by multiples of the anchor's ground diagonal, and vertically of
  its height; sizes are scaled by the exponential; headings are added.

  Args:
    anchors: [..., 7].
    residuals: [..., 7].

  Returns:
    [..., 7], with headings between -pi and pi.
  """
  dx, dy, dz = anchors[..., 3:4], anchors[..., 4:5], anchors[..., 5:6]
  diagonal = jnp.sqrt(jnp.square(dx) + jnp.square(dy))
  unit = jnp.concatenate([diagonal, diagonal, dz], axis=-1)
  return jnp.concatenate(
    [
      anchors[..., :3] + residuals[..., :3] * unit,
      anchors[..., 3:6] * jnp.exp(residuals[..., 3:6]),
      wrap_angle(anchors[..., 6:] + residuals[..., 6:]),
    ],
    axis=-1,
  )


def corners(boxes: jax.Array) -> jax.Array:
  """Returns the eight corners of boxes, [..., 8, 3].

  Args:
    boxes: [..., 7].
  """
  own = boxes[..., None, 3:6] * jnp.asarray(_CORNERS, boxes.dtype)
  x, y, z = own[..., 0], own[..., 1], own[..., 2]
  cos, sin = (fn(boxes[..., 6:]) for fn in (jnp.cos, jnp.sin))
  turned = jnp.stack([cos * x - sin * y, sin * x + cos * y, z], axis=-1)
  return turned + boxes[..., None, :3]
