"""A quantized projection into a single head.

Shapes: D model dims, H dims of the head.
"""

from pax_compat.layers.attentions import attention_projections
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationMethods,
  settings_field,
)


class OneHeadedAttentionProjection(
  QuantizationMethods, attention_projections.OneHeadedAttentionProjection
):
  """A projection into a single head, with scales [H].

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'd,dh->h'
