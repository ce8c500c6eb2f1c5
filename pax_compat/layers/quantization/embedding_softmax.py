"""Quantized embeddings and softmax layers.

Shapes: D model dims, V vocabulary, "..." positions.
"""

from collections.abc import Sequence
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
  QuantizationMethods,
  settings_field,
)


def _rows(
  layer: QuantizationMethods,
  table: jax.Array,
  ids: jax.Array,
  style: str,
  *,
  transposed: bool = False,
) -> jax.Array:
  """Returns rows [..., D] of a layer's integers as floats.

  Args:
    layer: the layer.
    table: its integers as [V, D].
    ids: [...], int.
    style: see `embedding_tables.lookup`.
    transposed: whether the layer has them as [D, V].
  """
  _, scale, zero = layer.get_quantized_weight()
  rows = embedding_tables.lookup(table.astype(scale.dtype), ids, style)

  def of_rows(x: jax.Array) -> jax.Array:
    """Returns values of the rows, [..., blocks, 1]."""
    x = x.T if transposed else x
    return x.reshape(len(table), -1)[ids][..., None]

  scale = of_rows(scale)
  blocks = rows.reshape(*scale.shape[:-1], -1) * scale
  if zero is not None:
    blocks = blocks - of_rows(zero)
  return blocks.reshape(rows.shape)


class Embedding(QuantizationMethods, embedding_tables.Embedding):
  """A quantized table [V, D], with one scale for each row.

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  QUANTIZED: ClassVar[Sequence[str]] = ('emb_var',)
  _PACK_4BIT_DIM: ClassVar[int | None] = 1

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'd,vd->v'

  def _vectors(self, ids: jax.Array) -> jax.Array:
    table = self.theta.emb_var
    if self.is_quantized:
      return _rows(self, table, ids, self.lookup_style)
    table = self.rounded_weight(self._equation(), table)
    return embedding_tables.lookup(table, ids, self.lookup_style)


class NClassMajorSharedEmbeddingSoftmax(
  QuantizationMethods, embedding_softmax.NClassMajorSharedEmbeddingSoftmax
):
  """A softmax and an embedding with one quantized matrix [V, D].

  Before it is quantized, the matrix is [V, D] too; in Pax, where a layer is for
  materialization only, it is [D, V].

  Attributes:
    quantization: the settings; None is the layer without quantization.
  """

  _PACK_4BIT_DIM: ClassVar[int | None] = 1

  quantization: QuantizationParams | None = settings_field()

  def _equation(self) -> str:
    return 'd,vd->v'

  def _vectors(self, ids: jax.Array) -> jax.Array:
    table = self.theta.w
    if self.is_quantized:
      return _rows(self, table, ids, self.lookup_style)
    table = self.rounded_weight(self._equation(), table)
    return embedding_tables.lookup(table, ids, self.lookup_style)


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
    table = linear.theta.w.T
    return _rows(linear, table, ids, self.lookup_style, transposed=True)

  def _table(self) -> jax.Array:
    linear = self.logits_ffn.linear
    return linear.rounded_weight('y,yz->z', linear.theta.w).T
