"""Attention of conformers with rounded products."""

from pax_compat.layers import conformers
from pax_compat.layers.quantization.attentions import RoundedAttention
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import settings_field


class DotProductAttentionWithContext(
  RoundedAttention, conformers.DotProductAttentionWithContext
):
  """Attention to a window, whose products are of rounded numbers, for AQT.

  Attributes:
    quantization: the settings, of the type AQT.
  """

  quantization: QuantizationParams | None = settings_field()
