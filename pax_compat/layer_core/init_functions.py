"""Functions of initializers and weights under Pax's names."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layer_core import weight_init
from pax_compat.layer_core.weight_hparams import WeightHParams
from pax_compat.layer_core.weight_init import WeightInit


def default_param_init() -> WeightInit:
  """Returns the initializer of layers that set none."""
  return WeightInit.Xavier(1.0)


def is_default_param_init(p: WeightInit) -> bool:
  """Whether `p` is the initializer of layers that set none."""
  return p == default_param_init()


def get_fan_in_fan_out(
  shape: Sequence[int],
  fan_in_axes: Sequence[int] | None = None,
  fan_out_axes: Sequence[int] | None = None,
) -> tuple[int | None, int | None]:
  """Returns (fan_in, fan_out), see `weight_init.fans`; Nones for a scalar."""
  if not shape:
    return None, None
  return weight_init.fans(shape, fan_in_axes, fan_out_axes)


def scaled_orthogonal(
  key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32
) -> jax.Array:
  """Returns an orthogonal matrix of max(1, sqrt(rows / columns))."""
  init = WeightInit.ScaledDeltaOrthogonal()
  return init(key, tuple(shape), dtype)


def scaled_delta_orthogonal(
  key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32
) -> jax.Array:
  """Returns zeros with a `scaled_orthogonal` matrix in the middle.

  Raises:
    UserError: the shape has not 3, 4 or 5 dimensions.
  """
  if len(shape) not in (3, 4, 5):
    raise errors.UserError(
      f'scaled_delta_orthogonal: the shape is {tuple(shape)}; expected 3, 4 or'
      ' 5 dimensions'
    )
  return scaled_orthogonal(key, shape, dtype)


def init_var(
  var_p: WeightHParams, prng_key: jax.Array, var_full_name: str
) -> jax.Array:
  """Returns the initial value of a weight.

  Raises:
    UserError: the metadata is inconsistent, or has no initializer or dtype.
  """
  var_p.check(var_full_name)
  if var_p.init is None or var_p.dtype is None:
    raise errors.UserError(f'{var_full_name}: expected an init and a dtype')
  init = var_p.init
  if (var_p.fan_in_axes, var_p.fan_out_axes) != (None, None):
    init = init.for_shape(var_p.shape, var_p.fan_in_axes, var_p.fan_out_axes)
  return init(prng_key, tuple(var_p.shape), var_p.dtype)


def var_init_scale(var_p: WeightHParams, var_key: str | None = None) -> float:
  """Returns the scale of a weight's initial values.

  Args:
    var_p: a weight whose initializer is Gaussian, GaussianSqrtFanIn or Xavier.
    var_key: its name, for the message.

  Raises:
    UserError: it has another initializer.
  """
  fan_in, fan_out = weight_init.fans(
    var_p.shape, var_p.fan_in_axes, var_p.fan_out_axes
  )
  scales = {
    'gaussian': 1.0,
    'gaussian_sqrt_fanin': 1 / math.sqrt(fan_in),
    'xavier': math.sqrt(6 / (fan_in + fan_out)),
  }
  if var_p.init is None or var_p.init.method not in scales:
    raise errors.UserError(
      f'var_init_scale: {var_key or "the weight"} has the initializer'
      f' {var_p.init}; expected one of {", ".join(scales)}'
    )
  return var_p.init.scale * scales[var_p.init.method]
