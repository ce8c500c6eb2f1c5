"""A quantized product with a weight of any shape."""

from pax_compat.layers import einsum
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationMethods,
  settings_field,
)


class Einsum(QuantizationMethods, einsum.Einsum):
  """An einsum with a weight that has one scale for each output.

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return self.eqn
