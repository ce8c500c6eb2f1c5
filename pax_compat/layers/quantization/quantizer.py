"""What quantized layers share: integer weights, and products with them."""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config, instance_field
from pax_compat.layer_core.weight_hparams import Quantized
from pax_compat.layers.quantization import (
  operations,
  rounding,
  stored_weights,
  training_products,
  utils,
)
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
)
from pax_compat.layers.quantization.stored_weights import SCALE, ZERO_POINT
from pax_compat.layers.quantization.tensor_quantizers import (
  TensorQuantizer,
  create_tensor_quantizer,
)

__all__ = [
  'QuantizationLayer',
  'QuantizationMethods',
  'TensorQuantizer',
  'create_tensor_quantizer',
  'quantized',
  'quantized_conv',
  'settings_field',
]


def settings_field():
  """Declares the field `quantization`, with default settings."""
  return instance_field(QuantizationParams)


class QuantizationMethods:
  """Mixin of layers with quantized weights.

  A layer names it before the layer whose product it quantizes, defines
  `_equation`, and has the field `quantization`, which `settings_field` makes.
  It is not a layer, since its fields would override those of the layer that
  follows it; `QuantizationLayer` is, for layers that are written with
  `set_up_weights` and `quantized_einsum` instead. At inference the weight is an
  integer; its scales and, unless it is symmetric, its zero points are weights
  with the suffixes `_quantized_scale` and `_quantized_zp`.
  """

  # Names of the weights.
  QUANTIZED: ClassVar[Sequence[str]] = ('w',)
  # Whether inputs have one scale at inference, whatever `per_channel` is.
  ONE_INPUT_SCALE: ClassVar[bool] = False
  # The dimension along which they are packed; the name is Pax's.
  _PACK_4BIT_DIM: ClassVar[int | None] = 0

  @property
  def is_quantized(self) -> bool:
    """Whether the weights are integers."""
    return self.quantization is not None and self.quantization.is_inference

  def _equation(self) -> str | None:
    """Returns the equation of the product, with the weight as it is stored.

    None if the layer calls `set_up_weights` and `quantized_einsum` itself.
    """
    return None

  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> jax.Array:
    """Creates and returns a weight; a quantized one with its scales."""
    if (
      name not in self.QUANTIZED
      or self.quantization is None
      or self._equation() is None
    ):
      return super().create_variable(name, var_hparams, trainable)
    self.quantization.check(type(self).__name__)
    self._create_state()
    if not self.is_quantized:
      return super().create_variable(name, var_hparams, trainable)
    integers, scales = stored_weights.stored_hparams(
      var_hparams, self._stored(var_hparams.shape)
    )
    super().create_variable(name, integers)
    super().create_variable(name + SCALE, scales)
    if not self.quantization.weight_params.use_symmetric:
      zeros = scales.replace(init=WeightInit.Constant(0.0))
      super().create_variable(name + ZERO_POINT, zeros)
    return self.get_theta(name)

  def _stored(self, shape: Sequence[int]) -> Quantized:
    """Returns how a weight of a shape is stored."""
    dims = operations.eqn_to_weight_contract_dims(self._equation())
    return Quantized(
      tuple(shape),
      tuple(dims),
      self._PACK_4BIT_DIM,
      self.quantization.weight_params,
      is_aqt=self.quantization.is_aqt,
    )

  def set_up_weights(
    self,
    *,
    weight_name: str,
    weight_params: WeightHParams,
    scale_shape: Sequence[int] = (),
    scale_hparams: WeightHParams | None = None,
  ):
    """Creates a weight, at inference with its scales. Call it in `setup`.

    Args:
      weight_name: name of the weight.
      weight_params: metadata of the floats.
      scale_shape: shape of the scales.
      scale_hparams: metadata of the scales, instead of their shape.
    """
    if self.quantization is None:
      self.create_variable(weight_name, weight_params)
      return
    self.quantization.check(type(self).__name__)
    self._create_state()
    if not self.is_quantized:
      self.create_variable(weight_name, weight_params)
      return
    params = self.quantization.weight_params
    shape, dtype = weight_params.shape, stored_weights.stored_dtype(params)
    if params.is_packed:
      shape = utils.get_packed_shape(
        shape, self._pack_dim(), jnp.iinfo(dtype).bits // 4
      )
    self.create_quantized_variable(
      weight_name,
      weight_params.replace(shape=shape),
      scale_shape,
      dtype=dtype,
      use_symmetric=params.use_symmetric,
      scale_hparams=scale_hparams,
    )

  def _pack_dim(self) -> int:
    if self._PACK_4BIT_DIM is None:
      raise errors.UserError(
        f'{type(self).__name__} has weights of 4 bits, but does not set'
        ' _PACK_4BIT_DIM; use use_int4_packed_weights=False'
      )
    return self._PACK_4BIT_DIM

  def _create_state(self):
    """Creates what the settings need beside the weights, once."""
    if self.__dict__.get('_has_state'):
      return
    object.__setattr__(self, '_has_state', True)
    if self.quantization.is_aqt:
      self.create_tensor_quantizers()
    if self.quantization.weight_params.use_step_count:
      count = WeightHParams([], WeightInit.Constant(0), jnp.int32)
      self.create_variable('step_count', count, trainable=False)
    if self.quantization.mode == QuantizationMode.CALIB:
      largest = WeightHParams([1], WeightInit.Constant(0), jnp.bfloat16)
      self.create_variable('framestat', largest, trainable=False)

  def create_tensor_quantizers(self):
    """Creates the children `act_quantizer` and `weight_quantizer`."""
    settings = self.quantization
    for name in ('act_quantizer', 'weight_quantizer'):
      kind = name.replace('quantizer', 'params')
      params = None if settings is None else getattr(settings, kind)
      self.create_child(name, create_tensor_quantizer(name, params))

  def get_theta(self, name: str) -> jax.Array:
    """Returns a weight; a quantized one unpacked, as int8."""
    value = super().get_theta(name)
    stored = self._weight_hparams[name].quantized if self.is_quantized else None
    if stored is None:
      return value
    return self._integers(value, stored).reshape(stored.shape)

  def _integers(self, value: jax.Array, stored: Quantized) -> jax.Array:
    pack_dim = stored_weights.layout(stored).pack_dim
    return stored_weights.unpacked(value, stored.params, pack_dim)

  def get_quantized_weight(
    self, name: str | None = None, use_symmetric: bool | None = None
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the integers, the scales and the zero points (or None).

    Args:
      name: name of the weight; None for that of the layer.
      use_symmetric: False returns zero points, too; None is the setting.
    """
    name = name or self.QUANTIZED[0]
    params = self.quantization.weight_params
    symmetric = params.use_symmetric if use_symmetric is None else use_symmetric
    zero = None if symmetric else self.get_theta(name + ZERO_POINT)
    stored = self._weight_hparams[name].quantized
    value = super().get_theta(name)
    if stored is not None:
      value = self._integers(value, stored)
    else:
      pack_dim = self._pack_dim() if params.is_packed else 0
      value = stored_weights.unpacked(value, params, pack_dim)
    return value, self.get_theta(name + SCALE), zero

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the weights of this layer at inference, from those in training.

    See `quantize.quantize_variables` for a model.
    """
    tree = self._float_tree()
    for name, stored in self._to_quantize(tree).items():
      tree[base_layer.PARAMS] |= stored_weights.quantized_weight(
        name, tree[base_layer.PARAMS][name], stored, self.dtype
      )
    return tree

  def _float_tree(self) -> dict[str, Any]:
    """Returns the weights that `quantize_weight` converts."""
    return super().quantize_weight()

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns a `BoxedPartitionSpec` for each weight of `quantize_weight`."""
    tree = super().quantized_partition_specs()
    for name, stored in self._to_quantize(tree).items():
      integers, scales = stored_weights.stored_hparams(
        self._weight_hparams[name], stored
      )
      specs = tree[base_layer.PARAMS]
      specs[name] = self._spec_of(integers)
      specs[name + SCALE] = self._spec_of(scales)
      if not stored.params.use_symmetric:
        specs[name + ZERO_POINT] = self._spec_of(scales)
    return tree

  def _to_quantize(self, tree: dict[str, Any]) -> dict[str, Quantized]:
    """Returns how the floats among this layer's weights are quantized.

    A layer whose mode is INFERENCE may have floats, too, to be converted.
    """
    if self.quantization is None or self._equation() is None:
      return {}
    own = tree.get(base_layer.PARAMS, {})
    values = {
      name: self.get_var(name) for name in self.QUANTIZED if name in own
    }
    return {
      name: self._stored(value.shape)
      for name, value in values.items()
      if jnp.issubdtype(value.dtype, jnp.floating)
    }

  def product(
    self, equation: str, inputs: jax.Array, weight: jax.Array, name: str = ''
  ) -> jax.Array:
    """Returns the product; at inference `weight` is integers.

    Args:
      equation: its equation.
      inputs: the inputs.
      weight: `theta` of the weight, which may have another shape.
      name: its name; '' for that of the layer.
    """
    if not self.is_quantized:
      return self.quantized_einsum(eqn=equation, x=inputs, w=weight)
    name = name or self.QUANTIZED[0]
    self._count_step()
    values, scale, zero = self.get_quantized_weight(name)
    layout = stored_weights.layout(self._weight_hparams[name].quantized)
    if layout.block_dim is not None:
      whole = values * jnp.expand_dims(scale, layout.dims)
      if zero is not None:
        whole = whole - jnp.expand_dims(zero, layout.dims)
      inputs = self._rounded_in_blocks(equation, inputs)
      return self._plain_product(equation, inputs, whole.reshape(weight.shape))
    dims = operations.eqn_to_weight_contract_dims(equation)
    kept = [n for i, n in enumerate(weight.shape) if i not in dims]
    inputs, scale_act, zero_act = self._rounded_inputs(equation, inputs)
    return operations.einsum(
      equation,
      inputs,
      weight,
      scale.reshape(kept),
      None if zero is None else zero.reshape(kept),
      scale_act,
      zero_act,
    )

  def _rounded_inputs(self, equation: str, inputs: jax.Array):
    """Returns the inputs in few bits, their scales and zero points."""
    act = self.quantization.act_params
    if act is None:
      return inputs, None, None
    return operations.reduce_einsum_activation_precision(
      equation,
      inputs,
      bits=act.precision,
      per_channel=act.per_channel and not self.ONE_INPUT_SCALE,
      symmetric=act.symmetric,
      percentile=act.clipping_coeff,
    )

  def _rounded_in_blocks(self, equation: str, inputs: jax.Array) -> jax.Array:
    """Returns the inputs after rounding with a scale for each block."""
    act = self.quantization.act_params
    if act is None:
      return inputs
    size = self.quantization.weight_params.block_size
    if operations.eqn_to_activation_contract_dims(equation) != [-1]:
      raise errors.UserError(
        f'{type(self).__name__}: block_size with act_params is only supported'
        ' where the last dimension of the inputs is summed over'
      )
    blocks = inputs.reshape(*inputs.shape[:-1], -1, size)
    rounded = operations.fakequant_activation(
      blocks,
      act.precision,
      '...c,cz->...z',
      act.per_channel,
      act.symmetric,
      act.clipping_coeff,
    )
    return rounded.reshape(inputs.shape)

  def quantized_einsum(
    self,
    *,
    eqn: str,
    x: jax.Array,
    w: jax.Array,
    reshape: Sequence[int] = (),
    weight_name: str = 'w',
    scale_eqn: str | None = None,
    zp_eqn: str | None = None,
    swap_xw: bool = False,
  ) -> jax.Array:
    """Returns a product with a weight that `set_up_weights` created.

    Args:
      eqn: the equation of the product.
      x: the inputs.
      w: `theta` of the weight; not used at inference.
      reshape: shape of the weight in the product; empty for its own.
      weight_name: its name.
      scale_eqn: at inference: see `operations.einsum`.
      zp_eqn: likewise.
      swap_xw: whether the equation is 'weight,inputs->outputs'; only without
        quantization and at inference.
    """
    settings = self.quantization
    step = None if settings is None else self._count_step()
    if self.is_quantized:
      values, scale, zero = self.get_quantized_weight(weight_name)
      x, scale_act, zero_act = self._rounded_inputs(eqn, x)
      return operations.einsum(
        eqn,
        x,
        values,
        scale,
        zero,
        scale_act,
        zero_act,
        scale_eqn=scale_eqn,
        zp_eqn=zp_eqn,
        swap_xw=swap_xw,
      )
    w = w.reshape(reshape) if len(reshape) else w
    if swap_xw and settings is None:
      return self._plain_product(eqn, w, x)
    if swap_xw:
      raise errors.UserError('swap_xw is only supported at inference')
    return self._training_product(eqn, x, w, step)

  def _training_product(self, eqn, x, w, step) -> jax.Array:
    """Returns the product of floats, rounded as the settings say."""
    settings, kinds = self.quantization, QuantizationType
    if settings is None:
      return self._plain_product(eqn, x, w)
    if settings.mode == QuantizationMode.QT:
      return training_products.custom_einsum(
        x,
        w,
        eqn=eqn,
        prng_key=self.next_prng_key(),
        params=settings.quantized_training_params,
      )
    if settings.mode == QuantizationMode.CALIB:
      largest = jnp.maximum(jnp.max(x), self.get_var('framestat'))
      self.update_var('framestat', largest.astype(jnp.bfloat16))
      return self._plain_product(eqn, *map(jax.lax.stop_gradient, (x, w)))
    if settings.is_aqt:
      return operations.aqt_einsum(
        eqn,
        x,
        w,
        lhs_quantizer=self.act_quantizer,
        rhs_quantizer=self.weight_quantizer,
      )
    if settings.quantization_type == kinds.FQ:
      return self._rounded_product(eqn, x, w)
    if settings.quantization_type == kinds.FQ_VN:
      w = self._with_noise(eqn, w, step)
    return self._plain_product(eqn, x, w)

  def _rounded_product(self, eqn, x, w) -> jax.Array:
    """Returns the product of floats after rounding."""
    act, params = (
      self.quantization.act_params,
      self.quantization.weight_params,
    )
    if act is not None:
      x = operations.fakequant_activation(
        x,
        act.precision,
        eqn,
        act.per_channel,
        act.symmetric,
        act.clipping_coeff,
      )
    w = operations.fakequant_einsum(
      eqn,
      w,
      bits=params.precision,
      calculation_dtype=params.calculation_dtype,
      use_symmetric=params.use_symmetric,
      block_size=params.block_size,
      quant_method=params.quant_method,
    )
    product = self._plain_product(eqn, x, w)
    if act is not None and act.fp16:
      product = rounding.clip_to_fp16(product)
    return product

  def rounded_weight(self, equation: str, weight: jax.Array) -> jax.Array:
    """Returns a weight as training sees it, for lookups in a table.

    Args:
      equation: the equation of its product, which defines its scales.
      weight: the floats.

    Raises:
      UserError: the noise of FQ_VN begins at a later step.
    """
    settings, kinds = self.quantization, QuantizationType
    if settings is None or settings.mode == QuantizationMode.QT:
      return weight
    params = settings.weight_params
    if settings.is_aqt:
      dims = operations.eqn_to_weight_contract_dims(equation)
      quantizer = self.weight_quantizer
      values, scale, zero = quantizer.quantize(
        weight, dims, False, weight.dtype
      )
      return quantizer.dequantize(values, scale, dims, zero)
    if settings.quantization_type == kinds.FQ:
      return operations.fakequant_einsum(
        equation,
        weight,
        bits=params.precision,
        calculation_dtype=params.calculation_dtype,
        use_symmetric=params.use_symmetric,
      )
    if settings.quantization_type == kinds.FQ_VN:
      dtype = params.calculation_dtype
      return self._with_noise(equation, weight, calculation_dtype=dtype)
    return weight

  def _with_noise(self, equation, weight, step=None, **settings) -> jax.Array:
    params = self.quantization.weight_params
    return training_products.fakequant_vn(
      equation,
      weight,
      self.next_prng_key(),
      params,
      step,
      self.do_eval,
      bits=params.precision,
      use_symmetric=params.use_symmetric,
      **settings,
    )

  def _plain_product(self, equation, inputs, weight) -> jax.Array:
    product = getattr(super(), 'product', jnp.einsum)
    return product(equation, inputs, weight)

  def _count_step(self) -> jax.Array | None:
    """Counts a call in training; returns the count before, None if not kept."""
    if not self.quantization.weight_params.use_step_count:
      return None
    count = self.get_var('step_count')
    if not self.do_eval:
      self.update_var('step_count', count + 1)
    self.add_summary('step_count', count)
    return count


class QuantizationLayer(QuantizationMethods, base_layer.BaseLayer):
  """Base class of layers with quantized weights.

  Such a layer calls `set_up_weights` in `setup` and `quantized_einsum` in
  `__call__`. It sets `_PACK_4BIT_DIM` if values of 4 bits are to be packed.

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  _PACK_4BIT_DIM: ClassVar[int | None] = None

  quantization: QuantizationParams | None = settings_field()


def quantized_conv(
  layer: base_layer.BaseLayer,
  x: jax.Array,
  padding: Any,
  dimension_numbers: Sequence[str],
  feature_group_count: int,
) -> jax.Array:
  """Returns a convolution with the integers `w` of a layer, at inference.

  Args:
    layer: has the fields `quantization`, `filter_stride` and `dilations`.
    x: the inputs.
    padding: see `jax.lax.conv_general_dilated`.
    dimension_numbers: likewise.
    feature_group_count: likewise.

  Raises:
    UserError: the mode is not INFERENCE, or there are zero points.
  """
  settings = layer.quantization
  act = settings.act_params
  if (
    not settings.is_inference
    or not settings.weight_params.use_symmetric
    or (act is not None and not act.symmetric)
  ):
    raise errors.UserError(
      f'{type(layer).__name__}: convolutions are only quantized in the mode'
      ' INFERENCE, with use_symmetric and act_params.symmetric'
    )
  values, scale, _ = layer.get_quantized_weight('w')
  if act is not None:
    x, act_scale, _ = rounding.reduce_precision_activation(
      x, bits=act.precision, percentile=act.clipping_coeff
    )
    scale = scale * jnp.squeeze(act_scale)
  is_integer = jnp.issubdtype(x.dtype, jnp.integer)
  outputs = jax.lax.conv_general_dilated(
    x,
    values.astype(x.dtype),
    layer.filter_stride or (1,) * (x.ndim - 2),
    padding,
    rhs_dilation=layer.dilations,
    dimension_numbers=tuple(dimension_numbers),
    feature_group_count=feature_group_count,
    preferred_element_type=jnp.int32 if is_integer else None,
  )
  return outputs * scale


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
