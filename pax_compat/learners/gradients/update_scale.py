"""The scale of a weight's initializer."""

import math

from pax_compat import base_layer, errors


def initial_scale(path: str, meta: base_layer.WeightHParams) -> float:
  """Returns the scale of a weight's initial values.

  It is the standard deviation of a Gaussian distribution, the bound of a
  uniform one, and 1 for weights of rank 0 and 1.

  Args:
    path: path of the weight.
    meta: its metadata. The rank is that of a single one of stacked layers.

  Raises:
    UserError: the initializer is a constant or not known.
  """
  shape = tuple(meta.shape)[len(meta.repeat_prefix) :]
  if len(shape) <= 1:
    return 1.0
  method = meta.init and meta.init.for_shape(shape)
  if (
    not method or method.method == 'constant' or not math.isfinite(method.scale)
  ):
    raise errors.UserError(
      f'Learner.scale_update_by_var_norm: the initializer of the weight'
      f' {path!r} is {meta.init}; expected a distribution with a scale, such as'
      ' WeightInit.Xavier()'
    )
  return method.scale
