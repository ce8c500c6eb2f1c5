"""A quantized linear layer."""

from pax_compat.layers import linears
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationLayer,
  settings_field,
)


class Linear(QuantizationLayer, linears.Linear):
  """A product with a quantized matrix [I, O]; one scale for each output.

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'i,io->o'
