"""StarNet for Waymo's vehicles, in small.

Points have three features, and headings a direction. Its box decoder needs
`waymo_open_dataset`; training does not, so KITTI's decoder is used.
"""

from tests.adaptors.bridge.families import starnet_kitti

STATIC_SHAPES = starnet_kitti.STATIC_SHAPES
LEARNS_LIKE = 'starnet_kitti'

_LASER_FEATURES = 3


def task_params():
  """Returns Params of the task."""
  p = starnet_kitti.task_params(_LASER_FEATURES, [(16, 16, 8)])
  return p.Set(
    name='starnet',
    max_nms_boxes=512,
    use_oriented_per_class_nms=True,
    direction_aware_rot_loss=True,
    squash_rotation_predictions=True,
  )


def batch(seed):
  """Returns eight random scenes."""
  return starnet_kitti.batch(seed, _LASER_FEATURES)
