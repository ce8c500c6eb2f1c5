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
    FQ: in training, weights are rounded as they will be at inference; gradients
      ignore the rounding.
    AQT: not supported.
    FQ_VN: not supported.
    FR: not supported.
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
    QT: not supported.
    CALIB: not supported.
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
    precision: number of bits, at most 8.
    clipping_coeff: factor on the largest absolute value; larger ones are
      clipped.
    per_channel: whether each row that is summed over has a scale; else the
      whole array has one.
    symmetric: must be True.
  """

  precision: int = 8
  clipping_coeff: float = 1.0
  per_channel: bool = True
  symmetric: bool = True


@dataclasses.dataclass
class WeightQuantizationParams:
  """Quantization of a weight, with a scale for each output.

  Attributes:
    precision: number of bits, at most 8.
    clipping_coeff: factor on the largest absolute value; larger ones are
      clipped.
    use_symmetric: whether zero is the integer 0; else there is a zero point
      for each scale.
    dtype: integer type of the values, `int8` or `int4`.
    calculation_dtype: dtype of scales while they are computed in training.
    use_int4_packed_weights: whether values of 4 bits are packed into larger
      integers. Not with the dtype `int4`, which needs no packing.
    int4_packed_weights_container_dtype: `int32`, which holds 8 of them, or
      `int8`, which holds 2.
    block_size: must be 0: a scale is for all inputs.
  """

  precision: int = 8
  clipping_coeff: float = 1.0
  use_symmetric: bool = True
  dtype: Any = jnp.int8
  calculation_dtype: Any = jnp.float32
  use_int4_packed_weights: bool = True
  int4_packed_weights_container_dtype: Any = jnp.int32
  block_size: int = 0

  @property
  def is_packed(self) -> bool:
    """Whether several values are stored in one integer."""
    return self.precision == 4 and self.use_int4_packed_weights


@dataclasses.dataclass
class QuantizationParams:
  """Quantization of a layer.

  Attributes:
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    act_params: quantization of the inputs; None leaves them as they are.
    weight_params: quantization of the weight.
  """

  quantization_type: QuantizationType = QuantizationType.PTQ
  mode: QuantizationMode = QuantizationMode.INFERENCE
  act_params: ActQuantizationParams | None = None
  weight_params: WeightQuantizationParams = dataclasses.field(
    default_factory=WeightQuantizationParams
  )

  def check(self, where: str):
    """Raises a `UserError` for settings that are not supported.

    Args:
      where: the layer, for the message.
    """
    weights, act = self.weight_params, self.act_params
    _check_one_of(
      f'{where}.quantization.quantization_type',
      self.quantization_type,
      (QuantizationType.PTQ, QuantizationType.FQ),
    )
    _check_one_of(
      f'{where}.quantization.mode',
      self.mode,
      (
        QuantizationMode.TRAINING,
        QuantizationMode.MATERIALIZE,
        QuantizationMode.INFERENCE,
      ),
    )
    where = f'{where}.quantization.weight_params'
    _check_one_of(f'{where}.precision', weights.precision, range(2, 9))
    _check_one_of(f'{where}.block_size', weights.block_size, (0,))
    dtypes = ('int8', 'int4') if weights.precision <= 4 else ('int8',)
    _check_one_of(f'{where}.dtype', jnp.dtype(weights.dtype).name, dtypes)
    if weights.is_packed:
      _check_one_of(f'{where}.dtype', jnp.dtype(weights.dtype).name, ('int8',))
      _check_one_of(
        f'{where}.int4_packed_weights_container_dtype',
        jnp.dtype(weights.int4_packed_weights_container_dtype).name,
        ('int32', 'int8'),
      )
    if act is not None:
      where = where.replace('weight_params', 'act_params')
      _check_one_of(f'{where}.precision', act.precision, range(2, 9))
      _check_one_of(f'{where}.symmetric', act.symmetric, (True,))


def _check_one_of(name: str, value, known):
  if value not in known:
    expected = ' or '.join(repr(getattr(x, 'value', x)) for x in known)
    raise errors.UserError(
      f'{name} is {value!r}, which is not supported; expected {expected}'
    )
