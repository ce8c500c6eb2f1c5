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
  """Returns the eight corners of boxes.

  Args:
    boxes: [..., 7].

  Returns:
    [..., 8, 3].
  """
  own = boxes[..., None, 3:6] * jnp.asarray(_CORNERS, boxes.dtype)
  x, y, z = own[..., 0], own[..., 1], own[..., 2]
  cos, sin = (fn(boxes[..., 6:]) for fn in (jnp.cos, jnp.sin))
  turned = jnp.stack([cos * x - sin * y, sin * x + cos * y, z], axis=-1)
  return turned + boxes[..., None, :3]
