"""Initial values of a bridged task's variables, as in Lingvo."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional.variables import Variable
from pax_compat.layer_core.weight_init import WeightInit

_GIVEN = ('custom', 'custom_constant')
# Lingvo removes stacked dimensions from a shape that no longer has them.
_SKIPS_TWICE = (
  'gaussian_sqrt_fanin',
  'gaussian_sqrt_fanout',
  'gaussian_sqrt_fanavg',
  'truncated_gaussian_sqrt_fanin',
  'truncated_gaussian_sqrt_fanout',
)
# TensorFlow counts stacked dimensions as inputs.
_COUNTS_STACKED = ('uniform_unit_scaling', 'uniform_unit_scaling_fan_avg')


@dataclasses.dataclass(frozen=True)
class Given:
  """Initial values that a Lingvo layer has computed for a variable.

  Attributes:
    value: an array, or a TensorFlow initializer.
    shape: of the variable.
    dtype: of the variable in TensorFlow.
  """

  value: Any = dataclasses.field(repr=False)
  shape: tuple[int, ...]
  dtype: Any

  def __call__(
    self, key: jax.Array, shape: Sequence[int], dtype: Any
  ) -> jax.Array:
    """Returns the values; the key is not used."""
    del key
    tf = lingvo_runtime.module('tensorflow')
    with tf.init_scope():
      value = self.value
      if callable(value):
        value = value(list(self.shape), self.dtype)
      value = np.asarray(tf.cast(value, self.dtype))
    return jnp.asarray(np.broadcast_to(value, shape), dtype)


def of(variable: Variable) -> WeightInit | Given:
  """Returns the initializer of a variable."""
  init = variable.var_params.init
  whole = tuple(variable.shape.as_list())
  stacked = variable.num_stacked_dims
  if init.method in _GIVEN:
    return Given(init.custom_v_init, whole, variable.dtype)
  shape = whole[stacked:]
  if init.method in _SKIPS_TWICE:
    shape = shape[stacked:]
  elif init.method in _COUNTS_STACKED:
    shape = whole
  return WeightInit(init.method, init.scale).for_shape(shape)
