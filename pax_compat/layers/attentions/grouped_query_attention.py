"""Grouped-query attention, https://arxiv.org/abs/2305.13245.

Shapes: B batch, T target time, S source time, D model dims, N heads, K heads of
keys and values, H dims of a head.
"""

import jax

from pax_compat import base_layer
from pax_compat.config import RequiredError
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.attentions import multi_query_attention


class GroupedQueryAttention(
  multi_query_attention.MultiQueryDotProductAttention
):
  """Multi-query attention with the field names of Pax's class.

  Attributes:
    hidden_dim: N * H; ignored if `dim_per_head` is set.
    atten_temp: divides the logits, in addition to sqrt(H).
    rope_min_max_timescales: timescales of the rotary embeddings of queries and
      keys, or None for no rotation.
  """

  hidden_dim: int | None = None
  atten_temp: float = 1.0
  rope_min_max_timescales: tuple[int, int] | None = None

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights over the mesh.

    Attributes:
      dnh: mapping of the query and output projections [D, N, H].
      dkh: mapping of the key and value projections [D, K, H]; None takes `dnh`.
        If K is 1, its second entry is ignored.
      dconv: mapping of the weights [N, H] or [K, H] of the convolutions.
    """

    dnh: SplitDimsMapping = None
    dkh: SplitDimsMapping = None
    dconv: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations over the mesh.

    Attributes:
      btd: mapping of the output [B, T, D].
      btnh: mapping of queries and contexts [B, T, N, H].
      bskh: mapping of keys and values [B, S, K, H]; a single head is not split.
    """

    btd: SplitDimsMapping = None
    btnh: SplitDimsMapping = None
    bskh: SplitDimsMapping = None

  def _check_fields(self):
    if self.hidden_dim is None and self.dim_per_head is None:
      raise RequiredError(type(self).__name__, 'dim_per_head')
    super()._check_fields()

  def _rotates(self) -> bool:
    return self.rope_min_max_timescales is not None or super()._rotates()

  def _timescales(self) -> dict[str, int]:
    if self.rope_min_max_timescales is None:
      return {}
    shortest, longest = self.rope_min_max_timescales
    return dict(min_timescale=shortest, max_timescale=longest)

  def _scale_dims(self) -> int:
    return self._head_dims()

  def _scale(self, query: jax.Array) -> jax.Array:
    return super()._scale(query) / self.atten_temp

  def _query_weight_mapping(self) -> SplitDimsMapping:
    return self.weight_split_dims_mapping.dnh

  def _key_weight_mapping(self) -> SplitDimsMapping:
    mappings = self.weight_split_dims_mapping
    mapping = mappings.dnh if mappings.dkh is None else mappings.dkh
    if mapping is None or self.num_kv_heads > 1:
      return mapping
    return [mapping[0], *mapping[2:]]

  def _query_mapping(self) -> SplitDimsMapping:
    return self.activation_split_dims_mapping.btnh

  def _key_mapping(self) -> SplitDimsMapping:
    mapping = self.activation_split_dims_mapping.bskh
    if mapping is None or self.num_kv_heads > 1:
      return mapping
    return [*mapping[:2], None, *mapping[3:]]

  def _output_mapping(self) -> SplitDimsMapping:
    return self.activation_split_dims_mapping.btd
