"""Weights that belong together: of integers with scales, or with a mask."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layer_core.weight_hparams import WeightHParams
from pax_compat.layer_core.weight_init import WeightInit

# Suffixes of the names of scales, zero points and masks.
QUANTIZED_SCALE_NAME_POSTFIX = '_quantized_scale'
QUANTIZED_ZP_NAME_POSTFIX = '_quantized_zp'
SPARSITY_NAME_POSTFIX = '_sparsity_mask'


class DerivedWeights:
  """Methods of a layer, which has `create_variable`, `theta` and `get_var`."""

  def create_quantized_variable(
    self,
    name: str,
    weight_hparams: WeightHParams,
    scale_shape: Sequence[int] = (),
    dtype: Any = jnp.int8,
    use_symmetric: bool = True,
    scale_hparams: WeightHParams | None = None,
  ):
    """Creates a weight of integers and its scale. Call it in `setup`.

    Args:
      name: name of the weight.
      weight_hparams: its shape and sharding; the initial value is 0.
      scale_shape: shape of the scale.
      dtype: of the weight.
      use_symmetric: False creates a zero point of the scale's shape, too.
      scale_hparams: metadata of the scale, instead of its shape.

    Raises:
      UserError: both `scale_shape` and `scale_hparams` are given.
    """
    if scale_hparams is not None and scale_shape:
      raise errors.UserError(
        f'{name}: expected scale_shape or scale_hparams, got both'
      )
    zeros = weight_hparams.replace(dtype=dtype, init=WeightInit.Constant(0))
    scale = scale_hparams or WeightHParams(shape=scale_shape)
    self.create_variable(name, zeros)
    self.create_variable(name + QUANTIZED_SCALE_NAME_POSTFIX, scale)
    if not use_symmetric:
      self.create_variable(name + QUANTIZED_ZP_NAME_POSTFIX, scale)

  def get_quantized_weight(
    self, name: str, use_symmetric: bool = True
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns a weight of integers, its scale and its zero point, if any."""
    zero = None
    if not use_symmetric:
      zero = self.theta[name + QUANTIZED_ZP_NAME_POSTFIX]
    scale = self.theta[name + QUANTIZED_SCALE_NAME_POSTFIX]
    return self.theta[name], scale, zero

  def create_sparse_variable(self, name: str, weight_hparams: WeightHParams):
    """Creates a weight and its mask, which is False. Call it in `setup`."""
    self.create_variable(name, weight_hparams)
    mask = weight_hparams.replace(
      dtype=jnp.bool_, init=WeightInit.Constant(False)
    )
    self.create_variable(name + SPARSITY_NAME_POSTFIX, mask, trainable=False)

  def get_sparse_weight(self, name: str) -> tuple[jax.Array, jax.Array]:
    """Returns a weight and its mask."""
    return self.theta[name], self.get_var(name + SPARSITY_NAME_POSTFIX)
