"""Settings of quantization, with Pax's names."""

import dataclasses
import enum
from typing import Any

import jax.numpy as jnp

from pax_compat import errors


@enum.unique
class QuantizationType(enum.StrEnum):
  """How a model is quantized.

  Attributes:
    PTQ: weights are quantized after training.
    AQT: in training, weights and inputs are rounded to integers, see
      `TensorQuantizer`; gradients ignore the rounding.
    FQ: in training, weights are rounded as they will be at inference; gradients
      ignore the rounding.
    FQ_VN: in training, weights have noise as large as the rounding.
    FR: training measures the largest input; not at inference.
  """

  PTQ = 'ptq'
  AQT = 'aqt'
  FQ = 'fq'
  FQ_VN = 'fq_vn'
  FR = 'fr'


@enum.unique
class QuantizationMode(enum.StrEnum):
  """What a layer's weights are.

  Attributes:
    TRAINING: floats.
    MATERIALIZE: floats, to be converted.
    INFERENCE: integers and their scales.
    QT: floats; products and their gradients are of integers.
    CALIB: floats that are not trained; the weight `framestat` [1] keeps the
      largest input.
  """

  TRAINING = 'training'
  MATERIALIZE = 'materialize'
  INFERENCE = 'inference'
  QT = 'qt'
  CALIB = 'calib'


@enum.unique
class TransformerLayer(enum.StrEnum):
  """Kinds of weights and activations, for settings by kind."""

  LINEAR = 'linear'
  LINEAR_ACT = 'linear_activation'
  ATTENTION = 'attention'
  ATTENTION_ACT = 'attention_activation'
  EMBEDDING_SOFTMAX = 'embedding_softmax'
  EMBEDDING_SOFTMAX_ACT = 'embedding_softmax_activation'
  EMBEDDING_NGRAMMER = 'embedding_ngrammer'


@dataclasses.dataclass
class ActQuantizationParams:
  """Quantization of the inputs of a product, at each call.

  Attributes:
    precision: number of bits, at most 23.
    unsigned_int_bounds: with AQT: whether integers begin at 0.
    clipping_coeff: factor on the largest absolute value; larger ones are
      clipped.
    stop_scale_gradient: with AQT: whether scales have no gradient.
    fp16: whether FQ clips the product to the range of float16.
    per_channel: whether each row that is summed over has a scale; else the
      whole array has one.
    symmetric: whether zero is the integer 0. AQT needs True.
    override_quantizer_cls: a subclass of `TensorQuantizer` for AQT.
  """

  precision: int = 8
  unsigned_int_bounds: bool = False
  clipping_coeff: float = 1.0
  stop_scale_gradient: bool = False
  fp16: bool = False
  per_channel: bool = True
  symmetric: bool = True
  override_quantizer_cls: type | None = None


@dataclasses.dataclass
class WeightQuantizationParams:
  """Quantization of a weight, with a scale for each output.

  Attributes:
    precision: number of bits, at most 8.
    unsigned_int_bounds: with AQT: whether integers begin at 0.
    clipping_coeff: factor on the largest absolute value; larger ones are
      clipped.
    stop_scale_gradient: with AQT and FQ_VN: whether scales have no gradient.
    min_clipping: with AQT: see `TensorQuantizer`.
    num_optimize_clipping: likewise.
    use_symmetric: whether zero is the integer 0; else there is a zero point
      for each scale.
    add_scale_eps: with AQT: see `TensorQuantizer`.
    dequant_upfront: no effect, as in Pax.
    dtype: integer type of the values, `int8`, `uint8` or `int4`.
    quant_loss_weight: with AQT: see `TensorQuantizer`.
    optimize_clipping_per_channel: likewise.
    sub_channels: likewise.
    calculation_dtype: dtype of scales while they are computed in training.
    use_step_count: whether the weight `step_count` [] counts the calls in
      training.
    use_int4_packed_weights: whether values of 4 bits are packed into larger
      integers. Not with the dtype `int4`, which needs no packing.
    int4_packed_weights_container_dtype: `int32`, which holds 8 of them, or
      `int8`, which holds 2.
    vn_scale: with FQ_VN: the noise, relative to the largest weight.
    vn_start_step: with FQ_VN: the step from which there is noise; needs
      `use_step_count`.
    vn_noise_type: 'uniform' or 'normal'.
    vn_weight_norm_type: 'PerChannelLinf', or 'Linf' for the whole weight.
    kurt_loss_weight: with AQT: see `TensorQuantizer`.
    kurt: likewise.
    block_size: size of the blocks of inputs that have a scale of their own; 0
      is one block. Not with AQT.
    quant_method: see `rounding.reduce_precision`.
    override_quantizer_cls: a subclass of `TensorQuantizer` for AQT.
  """

  precision: int = 8
  unsigned_int_bounds: bool = False
  clipping_coeff: float = 1.0
  stop_scale_gradient: bool = False
  min_clipping: float | None = None
  num_optimize_clipping: int | None = None
  use_symmetric: bool = True
  add_scale_eps: bool | None = True
  dequant_upfront: bool = False
  dtype: Any = jnp.int8
  quant_loss_weight: float | None = None
  optimize_clipping_per_channel: bool = False
  sub_channels: int | None = None
  calculation_dtype: Any = jnp.float32
  use_step_count: bool = False
  use_int4_packed_weights: bool = True
  int4_packed_weights_container_dtype: Any = jnp.int32
  vn_scale: float | None = None
  vn_start_step: int = 0
  vn_noise_type: str = 'uniform'
  vn_weight_norm_type: str = 'PerChannelLinf'
  kurt_loss_weight: float | None = None
  kurt: float = 1.8
  block_size: int = 0
  quant_method: str = 'default'
  override_quantizer_cls: type | None = None

  @property
  def is_packed(self) -> bool:
    """Whether several values are stored in one integer."""
    return self.precision == 4 and self.use_int4_packed_weights


@dataclasses.dataclass
class QuantizedTrainingParams:
  """Products of integers in training, in the mode QT.

  Attributes:
    bits_fwd: bits of inputs and weights; None does not round.
    bits_bwd: bits of gradients, likewise.
    cast_bits_fwd: 8 or 4: bits to cast to, without scales, for measurements of
      speed only; None for no cast.
    cast_bits_bwd: likewise of gradients.
    random_rounding_bwd: whether gradients are rounded at random.
    einsum_output_dtype: dtype of products.
    einsum_scale_output_dtype: dtype of their products with scales.
    bwd_output_dtype: dtype of outputs and gradients; None for the previous.
  """

  bits_fwd: int | None = 8
  bits_bwd: int | None = 8
  cast_bits_fwd: int | None = None
  cast_bits_bwd: int | None = None
  random_rounding_bwd: bool = True
  einsum_output_dtype: Any = jnp.bfloat16
  einsum_scale_output_dtype: Any = jnp.float32
  bwd_output_dtype: Any = None


@dataclasses.dataclass
class QuantizationParams:
  """Quantization of a layer.

  Attributes:
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    act_params: quantization of the inputs; None leaves them as they are.
    weight_params: quantization of the weight.
    quantized_training_params: products in the mode QT.
  """

  quantization_type: QuantizationType = QuantizationType.PTQ
  mode: QuantizationMode = QuantizationMode.INFERENCE
  act_params: ActQuantizationParams | None = None
  weight_params: WeightQuantizationParams = dataclasses.field(
    default_factory=WeightQuantizationParams
  )
  quantized_training_params: QuantizedTrainingParams = dataclasses.field(
    default_factory=QuantizedTrainingParams
  )

  @property
  def is_inference(self) -> bool:
    """Whether weights are integers."""
    return self.mode == QuantizationMode.INFERENCE

  @property
  def is_aqt(self) -> bool:
    """Whether a `TensorQuantizer` rounds."""
    return self.quantization_type == QuantizationType.AQT

  def check(self, where: str):
    """Raises a `UserError` for settings that are not supported.

    Args:
      where: the layer, for the message.
    """
    weights, act = self.weight_params, self.act_params
    where = f'{where}.quantization'
    kinds, modes = QuantizationType, QuantizationMode
    _check_one_of(f'{where}.quantization_type', self.quantization_type, kinds)
    _check_one_of(f'{where}.mode', self.mode, modes)
    if self.mode == modes.CALIB:
      _check_one_of(
        f'{where}.quantization_type', self.quantization_type, (kinds.FR,)
      )
    elif self.is_inference and self.quantization_type == kinds.FR:
      _check_one_of(f'{where}.mode', self.mode, (modes.TRAINING, modes.CALIB))
    name = f'{where}.weight_params'
    _check_one_of(f'{name}.precision', weights.precision, range(1, 9))
    methods = ('default', 'bin', 'bin_norm')
    _check_one_of(f'{name}.quant_method', weights.quant_method, methods)
    dtypes = ('int8', 'uint8', 'int4')
    dtypes = dtypes if weights.precision <= 4 else dtypes[:2]
    dtypes = dtypes[:2] if weights.is_packed else dtypes
    _check_one_of(f'{name}.dtype', jnp.dtype(weights.dtype).name, dtypes)
    if weights.is_packed:
      _check_one_of(
        f'{name}.int4_packed_weights_container_dtype',
        jnp.dtype(weights.int4_packed_weights_container_dtype).name,
        ('int32', 'int8'),
      )
    if self.is_aqt:
      _check_one_of(f'{name}.block_size', weights.block_size, (0,))
    if act is not None:
      name = f'{where}.act_params'
      _check_one_of(f'{name}.precision', act.precision, range(1, 24))
      if self.is_aqt:
        _check_one_of(f'{name}.symmetric', act.symmetric, (True,))


def _check_one_of(name: str, value, known):
  if value not in known:
    if isinstance(known, range):
      expected = f'{known[0]} to {known[-1]}'
    else:
      expected = ' or '.join(repr(getattr(x, 'value', x)) for x in known)
    raise errors.UserError(
      f'{name} is {value!r}, which is not supported; expected {expected}'
    )
