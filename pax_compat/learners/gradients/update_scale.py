"""The scale that a weight's first values have."""

import math

from pax_compat import base_layer, errors


def first_scale(path: str, meta: base_layer.WeightHParams) -> float:
  """Returns the scale of a weight's first values.

  The standard deviation of a Gaussian distribution, the bound of a uniform one;
  1 for weights of rank 0 and 1.

  Args:
    path: of the weight.
    meta: what it is. Of stacked layers that of one counts.

  Raises:
    UserError: the weight starts from a constant, or it is unknown from what.
  """
  shape = tuple(meta.shape)[len(meta.repeat_prefix) :]
  if len(shape) <= 1:
    return 1.0
  method = meta.init and meta.init.for_shape(shape)
  if (
    not method or method.method == 'constant' or not math.isfinite(method.scale)
  ):
    raise errors.UserError(
      f'Learner.scale_update_by_var_norm: the weight {path!r} starts from'
      f' {meta.init}; expected a distribution with a scale, such as'
      ' WeightInit.Xavier()'
    )
  return method.scale
