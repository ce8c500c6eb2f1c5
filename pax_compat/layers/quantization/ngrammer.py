"""N-grammers with quantized tables."""

from pax_compat.config import Config
from pax_compat.layers import ngrammer
from pax_compat.layers.quantization import embedding_softmax, quantizer
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)


class Ngrammer(ngrammer.Ngrammer):
  """An n-grammer whose tables are quantized.

  Attributes:
    quantization: settings of the tables.
  """

  quantization: QuantizationParams | None = quantizer.settings_field()

  def create_children(self, name: str, params, **fields):
    if name == 'ngram_table':
      params = [
        quantizer.quantized(tpl, embedding_softmax.Embedding, self.quantization)
        for tpl in params
      ]
    return super().create_children(name, params, **fields)


class VQNgrammer(ngrammer.VQNgrammer):
  """An n-grammer of clusters whose tables are quantized.

  Attributes:
    quantization: settings of the tables.
  """

  quantization: QuantizationParams | None = quantizer.settings_field()

  def create_child(self, name: str, params: Config, **fields):
    if name == 'ngram_layer':
      params = quantizer.quantized(params, Ngrammer, self.quantization)
    return super().create_child(name, params, **fields)
