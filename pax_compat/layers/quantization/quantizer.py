"""What quantized layers share: integer weights, and products with them."""

import copy
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config, instance_field
from pax_compat.layer_core.weight_hparams import Quantized
from pax_compat.layers.quantization import operations
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
  WeightQuantizationParams,
)

SCALE = '_quantized_scale'
ZERO_POINT = '_quantized_zp'


def settings_field():
  """Declares the field `quantization`, with default settings."""
  return instance_field(QuantizationParams)


class QuantizationLayer:
  """Mixin of layers with one quantized weight.

  A layer names it before the layer whose product it quantizes, defines
  `_equation`, and has the field `quantization`, which `settings_field` makes.
  It is not a layer, since its fields would override those of the layer that
  follows it. At inference the weight is an integer; its scales and, unless it
  is symmetric, its zero points are weights with the suffixes `SCALE` and
  `ZERO_POINT`.
  """

  # Name of the weight, and the dimension along which it is packed.
  QUANTIZED: ClassVar[str] = 'w'
  PACK_DIM: ClassVar[int] = 0

  @property
  def is_quantized(self) -> bool:
    """Whether the weight is an integer."""
    settings = self.quantization
    return settings is not None and settings.mode == QuantizationMode.INFERENCE

  @property
  def _rounds_in_training(self) -> bool:
    settings = self.quantization
    return (
      settings is not None
      and not self.is_quantized
      and settings.quantization_type == QuantizationType.FQ
    )

  def _equation(self) -> str:
    """Returns the equation of the product, with the weight as it is stored."""
    raise NotImplementedError(type(self).__name__)

  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> jax.Array:
    """Creates and returns a weight; the quantized one with its scales."""
    if self.quantization is not None:
      self.quantization.check(type(self).__name__)
    if name != self.QUANTIZED or not self.is_quantized:
      return super().create_variable(name, var_hparams, trainable)
    params = self.quantization.weight_params
    dims = operations.eqn_to_weight_contract_dims(self._equation())
    split = var_hparams.tensor_split_dims_mapping
    scale = WeightHParams(
      [n for i, n in enumerate(var_hparams.shape) if i not in dims],
      WeightInit.Constant(1.0),
      tensor_split_dims_mapping=split
      and [x for i, x in enumerate(split) if i not in dims],
    )
    stored = Quantized(dims=tuple(dims), pack_dim=self.PACK_DIM, params=params)
    super().create_variable(
      name,
      dataclasses.replace(
        var_hparams,
        shape=stored_shape(var_hparams.shape, stored),
        dtype=stored_dtype(params),
        init=WeightInit.Constant(0),
        fan_in_axes=None,
        fan_out_axes=None,
        quantized=stored,
      ),
    )
    super().create_variable(name + SCALE, scale)
    if not params.use_symmetric:
      zero = dataclasses.replace(scale, init=WeightInit.Constant(0.0))
      super().create_variable(name + ZERO_POINT, zero)
    return self.get_theta(name)

  def get_theta(self, name: str) -> jax.Array:
    """Returns a weight; the quantized one unpacked, int8."""
    value = super().get_theta(name)
    if name != self.QUANTIZED or not self.is_quantized:
      return value
    if self.quantization.weight_params.is_packed:
      return operations.unpack_4bit(value, self.PACK_DIM)
    return value.astype(jnp.int8)

  def get_quantized_weight(
    self,
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the integers, the scales and the zero points (or None)."""
    name = self.QUANTIZED
    zero = None
    if not self.quantization.weight_params.use_symmetric:
      zero = self.get_theta(name + ZERO_POINT)
    return self.get_theta(name), self.get_theta(name + SCALE), zero

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the weights of this layer at inference, from those in training.

    Those of children are not included; see `quantize.quantize_variables`.
    """
    if self.quantization is None:
      return super().quantize_weight()
    params = self.quantization.weight_params
    dims = operations.eqn_to_weight_contract_dims(self._equation())
    stored = Quantized(dims=tuple(dims), pack_dim=self.PACK_DIM, params=params)
    name = self.QUANTIZED
    own = {
      other: self.get_var(other)
      for other, value in self.variables.get(base_layer.PARAMS, {}).items()
      if other != name and not isinstance(base_layer.unbox(value), dict)
    }
    own |= quantized_weight(name, self.get_var(name), stored, self.dtype)
    return {base_layer.PARAMS: own}

  def product(
    self, equation: str, inputs: jax.Array, weight: jax.Array
  ) -> jax.Array:
    """Returns the product; at inference `weight` is integers."""
    if self.quantization is None:
      return super().product(equation, inputs, weight)
    settings = self.quantization
    if self.is_quantized:
      return self._integer_product(equation, inputs, weight)
    if self._rounds_in_training:
      inputs = self._rounded_inputs(equation, inputs)
      params = settings.weight_params
      weight = operations.fakequant_einsum(
        equation,
        weight,
        bits=params.precision,
        calculation_dtype=params.calculation_dtype,
        use_symmetric=params.use_symmetric,
      )
    return super().product(equation, inputs, weight)

  def _rounded_inputs(self, equation: str, inputs: jax.Array) -> jax.Array:
    if self.quantization.act_params is None:
      return inputs
    values, scale = self._reduced_inputs(equation, inputs, need_gradient=True)
    return (values * scale).astype(inputs.dtype)

  def _reduced_inputs(
    self, equation: str, inputs: jax.Array, *, need_gradient: bool = False
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the inputs of a product in few bits, and their scale."""
    act = self.quantization.act_params
    dims = operations.eqn_to_activation_contract_dims(equation)
    values, scale, _ = operations.reduce_precision(
      inputs,
      dims if act.per_channel else None,
      need_gradient=need_gradient,
      bits=act.precision,
      percentile=act.clipping_coeff,
    )
    return values, scale

  def _integer_product(self, equation, inputs, weight) -> jax.Array:
    _, scale, zero = self.get_quantized_weight()
    dims = operations.eqn_to_weight_contract_dims(equation)
    kept = [n for i, n in enumerate(weight.shape) if i not in dims]
    scale = scale.reshape(kept)
    zero = None if zero is None else zero.reshape(kept)
    scale_act = None
    if self.quantization.act_params is not None:
      inputs, scale_act = self._reduced_inputs(equation, inputs)
    return operations.einsum(equation, inputs, weight, scale, zero, scale_act)


def quantized(
  tpl: Config, cls: type, quantization: QuantizationParams | None
) -> Config:
  """Returns the template of a quantized layer.

  Args:
    tpl: template of the layer that it replaces, or of a quantized one. It is
      not changed.
    cls: the quantized layer.
    quantization: its settings; a copy is used.

  Raises:
    UserError: the template's class has no quantized one: `cls` is not a
      subclass of it.
  """
  if not issubclass(cls, tpl.cls):
    raise errors.UserError(
      f'{config_lib.class_name(tpl)} cannot become a quantized {cls.__name__},'
      ' which is not its subclass'
    )
  new = cls.config(quantization=copy.deepcopy(quantization))
  own = {
    name: copy.deepcopy(value)
    for name, value in config_lib.set_fields(tpl).items()
    if name != 'quantization'
  }
  return new.set(**own)


def stored_dtype(params: WeightQuantizationParams):
  """Returns the integer type that a weight is stored in."""
  if params.is_packed:
    return params.int4_packed_weights_container_dtype
  return params.dtype


def stored_shape(shape, stored: Quantized) -> list[int]:
  """Returns the shape that a weight is stored in."""
  shape = list(shape)
  if stored.params.is_packed:
    count = jnp.iinfo(stored_dtype(stored.params)).bits // 4
    operations.check_packing(shape, stored.pack_dim, count)
    shape[stored.pack_dim] //= count
  return shape


def quantized_weight(
  name: str, value: jax.Array, stored: Quantized, dtype, stacked: int = 0
) -> dict[str, jax.Array]:
  """Returns the integers, scales and zero points of a weight, by name.

  Args:
    name: its name.
    value: the floats, after `stacked` leading dimensions of repeated layers.
    stored: how it is stored.
    dtype: dtype of the scales.
    stacked: number of leading dimensions.
  """
  params = stored.params
  dims = [i + stacked for i in stored.dims]
  values, scale, zero = operations.reduce_precision(
    value.astype(dtype),
    dims,
    bits=params.precision,
    percentile=params.clipping_coeff,
    use_symmetric=params.use_symmetric,
  )
  if params.is_packed:
    values = operations.pack_4bit(
      values, stored.pack_dim + stacked, stored_dtype(params)
    )
  found = {name: values.astype(stored_dtype(params))}
  found[name + SCALE] = jnp.squeeze(scale, dims)
  if zero is not None:
    found[name + ZERO_POINT] = jnp.squeeze(zero, dims)
  return found
