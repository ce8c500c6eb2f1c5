"""A convolution with quantized weights."""

import jax

from pax_compat import errors
from pax_compat.layers import convolutions
from pax_compat.layers.quantization import quantizer
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
  QuantizationType,
)


class Conv2D(quantizer.QuantizationMethods, convolutions.Conv2D):
  """A convolution with one scale for each output channel.

  In training, weights are floats: only PTQ quantizes a convolution.

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  quantization: QuantizationParams | None = quantizer.settings_field()

  def _equation(self) -> str:
    return 'hwi,hwio->o'

  def check_dimensions(self):
    super().check_dimensions()
    settings = self.quantization
    if settings is None or settings.is_inference:
      return
    if settings.quantization_type != QuantizationType.PTQ:
      raise errors.UserError(
        f'{type(self).__name__}.quantization has the type'
        f" {settings.quantization_type.value!r}; expected 'ptq'"
      )

  def run_convolution(
    self, inputs: jax.Array, weight: jax.Array, padding, **settings
  ) -> jax.Array:
    """Returns the convolution of [B, H, W, I]; see `BaseConv`."""
    if not self.is_quantized:
      return super().run_convolution(inputs, weight, padding, **settings)
    return quantizer.quantized_conv(self, inputs, padding, **settings)
