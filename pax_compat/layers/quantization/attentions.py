"""Quantized projections of attention.

Shapes: D model dims, N heads, H dims of a head.
"""

from typing import ClassVar

from pax_compat.layers.attentions import attention_projections
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationLayer,
  settings_field,
)


class AttentionProjection(
  QuantizationLayer, attention_projections.AttentionProjection
):
  """A projection with one scale for each output: [N, H] or [D].

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    heads = 'h' if self.attention_combine_dims else 'nh'
    if not self.is_output_projection:
      return f'd,d{heads}->{heads}'
    weight = f'{heads}d' if self.use_nhd_shape else f'd{heads}'
    return f'{heads},{weight}->d'


class OneHeadedAttentionProjection(
  QuantizationLayer, attention_projections.OneHeadedAttentionProjection
):
  """A projection into a single head, with scales [H].

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'd,dh->h'


class CombinedQKVProjectionLayer(
  QuantizationLayer, attention_projections.CombinedQKVProjectionLayer
):
  """Projections of queries, keys and values, with scales [3, N, H].

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  PACK_DIM: ClassVar[int] = 1

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    heads = 'h' if self.attention_combine_dims else 'nh'
    return f'd,kd{heads}->k{heads}'
