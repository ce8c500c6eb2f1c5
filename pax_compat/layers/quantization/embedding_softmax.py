"""Quantized embeddings and softmax layers.

Shapes: D model dims, V vocabulary, "..." positions.
"""

from typing import ClassVar

import jax

from pax_compat.config import Config
from pax_compat.layers import embedding_softmax
from pax_compat.layers.embeddings import embedding_tables
from pax_compat.layers.quantization import linears, quantizer
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationLayer,
  settings_field,
)


def _rows(
  layer: QuantizationLayer, table: jax.Array, ids: jax.Array, style: str
) -> jax.Array:
  """Returns rows [..., D] of a layer's integers `table` [V, D] as floats."""
  _, scale, zero = layer.get_quantized_weight()
  rows = embedding_tables.lookup(table.astype(scale.dtype), ids, style)
  rows = rows * scale[ids][..., None]
  return rows if zero is None else rows - zero[ids][..., None]


class Embedding(QuantizationLayer, embedding_tables.Embedding):
  """A quantized table [V, D], with one scale for each row.

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  QUANTIZED: ClassVar[str] = 'emb_var'
  PACK_DIM: ClassVar[int] = 1

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'd,vd->v'

  def _vectors(self, ids: jax.Array) -> jax.Array:
    if not self.is_quantized:
      return super()._vectors(ids)
    return _rows(self, self.theta.emb_var, ids, self.lookup_style)


class NClassMajorSharedEmbeddingSoftmax(
  QuantizationLayer, embedding_softmax.NClassMajorSharedEmbeddingSoftmax
):
  """A softmax and an embedding with one quantized matrix [V, D].

  Before it is quantized, the matrix is [V, D] too; in Pax, where a layer is for
  materialization only, it is [D, V].

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  PACK_DIM: ClassVar[int] = 1

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'd,vd->v'

  def _vectors(self, ids: jax.Array) -> jax.Array:
    if not self.is_quantized:
      return super()._vectors(ids)
    return _rows(self, self.theta.w, ids, self.lookup_style)


class SharedEmbeddingSoftmax(embedding_softmax.SharedEmbeddingSoftmax):
  """A softmax and an embedding with one quantized matrix [D, V].

  Attributes:
    quantization: settings of the linear layer.
  """

  quantization: QuantizationParams | None = settings_field()

  def create_child(self, name: str, tpl: Config, **fields):
    if name == 'logits_ffn':
      tpl = tpl.clone()
      tpl.linear_tpl = quantizer.quantized(
        tpl.linear_tpl, linears.Linear, self.quantization
      )
    super().create_child(name, tpl, **fields)

  def _vectors(self, ids: jax.Array) -> jax.Array:
    linear = self.logits_ffn.linear
    if not linear.is_quantized:
      return super()._vectors(ids)
    return _rows(linear, linear.theta.w.T, ids, self.lookup_style)
