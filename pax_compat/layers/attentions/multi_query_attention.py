"""Multi-query attention: heads of queries share keys and values.

Shapes: B batch, T target time, S source time, D model dims, N heads, K heads of
keys and values, H dims of a head.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat.config import Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.attentions import attention_masks, dot_product
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from pax_compat.layers.attentions.attention_projections import (
  OneHeadedAttentionProjection,
)


class MultiQueryDotProductAttention(dot_product.DotProductAttention):
  """Attention with fewer heads of keys and values than of queries.

  With one (https://arxiv.org/abs/1911.02150) their weights are [D, H] and their
  biases [H]; with more (https://arxiv.org/abs/2305.13245) [D, K, H] and [K, H].
  Each is shared by N / K successive heads of queries.

  Attributes:
    num_kv_heads: K, a divisor of N.
    internal_enable_per_dim_scale: as in `DotProductAttention`; default False.
    headless_proj_tpl: projections of keys and values if K is 1; else `proj_tpl`
      is used.
    local_window_size: number of sources to the left and to the right of a
      target that it sees, counted by index; None, the default, is all.
    chunked_attn_num_seq_split: has no effect: kernels process blocks of targets
      anyway. Pax expects a causal mask if it is above 1.
  """

  SILENT_UNLESS_SET: ClassVar = (
    *dot_product.DotProductAttention.SILENT_UNLESS_SET,
    'local_window_size',
    'chunked_attn_num_seq_split',
  )

  num_kv_heads: int = 1
  internal_enable_per_dim_scale: bool = False
  headless_proj_tpl: Config = sub_config_field(OneHeadedAttentionProjection)
  local_window_size: tuple[int, int] | None = None
  chunked_attn_num_seq_split: int = 1

  class WeightSharding(dot_product.DotProductAttention.WeightSharding):
    """Sharding of the weights over the mesh.

    Attributes:
      proj: mapping of projections with several heads [D, N, H].
      proj_headless: mapping of projections with one head [D, H].
      dconv: mapping of the weights [N, H] or [K, H] of the convolutions.
    """

    proj_headless: SplitDimsMapping = None

  class ActivationSharding(dot_product.DotProductAttention.ActivationSharding):
    """Sharding of activations over the mesh.

    Attributes:
      blnh: mapping of queries and contexts [B, T, N, H]; of keys and values too
        if K is not 1.
      blh: mapping of keys and values [B, S, H] if K is 1; None takes `blnh`.
      bld: mapping of the output [B, T, D].
    """

    blh: SplitDimsMapping = None

  def _attend(
    self,
    inputs: AttentionInputs,
    *,
    one_step: bool = False,
    time_step: jax.Array | int | None = None,
    positions: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    if self.local_window_size is not None:
      mask = self._window_mask(inputs, time_step)
      inputs = inputs._replace(mask=mask)
    return super()._attend(
      inputs, one_step=one_step, time_step=time_step, positions=positions
    )

  def _window_mask(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None
  ) -> jax.Array:
    """Returns the mask of the inputs, restricted to the local window."""
    left, right = self.local_window_size
    sources = inputs.key.shape[1]
    first = 0
    if time_step is not None:
      first, sources = time_step, sources + self._prefix_length()
    targets = first + jnp.arange(inputs.query.shape[1])
    distances = jnp.arange(sources) - targets[:, None]
    window = (distances >= -left) & (distances <= right)
    return attention_masks.combine_masks(
      attention_masks.as_array(inputs.mask), window[None, None]
    )

  @classmethod
  def takes_segments(cls, tpl: Config) -> bool:
    return tpl.local_window_size is None and super().takes_segments(tpl)

  def _kv_heads(self) -> int:
    return self.num_kv_heads

  def _create_key_or_value(self, name: str, dims: int):
    if self.num_kv_heads > 1:
      super()._create_key_or_value(name, dims)
      return
    self._create_projection(
      name,
      'headless_proj_tpl',
      self._key_weight_mapping(),
      deviation=dims**-0.5,
      input_dim=dims,
      output_dim=self._head_dims(),
    )

  def _project_source(
    self, key_vec: jax.Array, value_vec: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    key, value = self.key(key_vec), self.value(value_vec)
    if self.num_kv_heads == 1:
      key, value = key[..., None, :], value[..., None, :]
    return self._named_source(key, value)

  def _key_weight_mapping(self) -> SplitDimsMapping:
    mappings = self.weight_split_dims_mapping
    return mappings.proj_headless if self.num_kv_heads == 1 else mappings.proj

  def _key_mapping(self) -> SplitDimsMapping:
    mappings = self.activation_split_dims_mapping
    if self.num_kv_heads > 1:
      return mappings.blnh
    if mappings.blh is not None:
      return [*mappings.blh[:2], None, *mappings.blh[2:]]
    if mappings.blnh is None:
      return None
    return [*mappings.blnh[:2], None, *mappings.blnh[3:]]
