"""Meshes of bridged tasks: Lingvo's numbered axes, which have names here."""

from collections.abc import Sequence

import numpy as np

from adaptors.bridge.functional.variables import Variable
from adaptors.params import params_trees
from adaptors.translate.gshard.gshard_mesh import AXES
from adaptors.translate.view import ParamsView


def model_fields(view: ParamsView) -> dict[str, Sequence]:
  """Returns the mesh fields of a model; empty if no layer has a mesh.

  Args:
    view: of a task's Params; gets an issue if its layers have several meshes.
  """
  meshes = (
    params_trees.get(node, 'device_mesh')
    for node in params_trees.all_params(view.params)
  )
  shapes = {np.shape(mesh) for mesh in meshes if mesh is not None}
  shapes = sorted(shape for shape in shapes if np.prod(shape) > 1)
  if not shapes:
    return {}
  if len(shapes) > 1 or len(shapes[0]) > len(AXES):
    view.issue(
      'device_mesh',
      f'its layers have meshes of the shapes {", ".join(map(str, shapes))};'
      f' expected one, of at most {len(AXES)} axes',
    )
    return {}
  shape = list(map(int, shapes[0]))
  view.report.notes.append(
    f'{view.path}.device_mesh = {shape}: weights are split over it by their'
    ' weight_split_dims_mapping, batches over its first axis; XLA chooses the'
    ' sharding of activations'
  )
  return {'ici_mesh_shape': shape, 'mesh_axis_names': list(AXES[: len(shape)])}


def split(variable: Variable, axes: Sequence[str] | None) -> list | None:
  """Returns the sharding of a variable; None if it is replicated.

  Args:
    variable: the variable; leading dimensions of stacked layers are not split.
    axes: names of the axes of the mesh; None without one.
  """
  mapping = variable.var_params.tensor_split_dims_mapping
  if not axes or mapping is None or variable.var_params.device_mesh is None:
    return None
  stacked = variable.shape.rank - len(mapping)
  return [None] * stacked + [None if i < 0 else axes[i] for i in mapping]
