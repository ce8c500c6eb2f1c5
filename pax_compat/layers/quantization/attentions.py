"""Quantized projections of attention, and attention with rounded products.

Shapes: B batch, T targets, S sources, D model dims, N heads, H dims of a head.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from pax_compat import errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import attentions, normalizations
from pax_compat.layers.attentions import (
  attention_masks,
  attention_ops,
  attention_projections,
)
from pax_compat.layers.quantization import operations
from pax_compat.layers.quantization.linears import LowRankUpdate
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)
from pax_compat.layers.quantization.quantizer import (
  QuantizationMethods,
  settings_field,
)
from pax_compat.layers.quantization.sparsity.sparsifier import SparseProduct
from pax_compat.layers.quantization.sparsity.sparsity_hparams import (
  SparsityHParams,
)


class AttentionProjection(
  SparseProduct, QuantizationMethods, attention_projections.AttentionProjection
):
  """A projection with one scale for each output: [N, H] or [D].

  Attributes:
    quantization: the settings; None is the layer without quantization.
    sparsity: settings of a sparse weight; None prunes nothing.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *attention_projections.AttentionProjection.SILENT_UNLESS_SET,
    'sparsity',
  )

  quantization: QuantizationParams | None = settings_field()
  sparsity: SparsityHParams | None = None

  def _equation(self) -> str:
    heads = 'h' if self.attention_combine_dims else 'nh'
    if not self.is_output_projection:
      return f'd,d{heads}->{heads}'
    weight = f'{heads}d' if self.use_nhd_shape else f'd{heads}'
    return f'{heads},{weight}->d'


class AttentionProjectionLoRA(LowRankUpdate, AttentionProjection):
  """A projection with an update of low rank.

  Attributes:
    lora_rank: see `linears.LinearLoRA`.
    init_method: likewise.
    norm_tpl: likewise.
    norm_order: likewise.
    max_reduction: for an output projection: whether only the larger one of N
      and H is mapped to the rank; else both are.
  """

  lora_rank: int = 0
  init_method: str = 'one_zero'
  norm_tpl: Config = sub_config_field(normalizations.LayerNorm)
  norm_order: str | None = None
  max_reduction: bool = True

  def setup(self):
    super().setup()
    if not self.lora_rank:
      return
    dims, heads, head = self.input_dim, self.num_heads, self.dim_per_head
    equation, sizes = '...D,DNH->...NH', (self.lora_rank, heads * head)
    if self.is_output_projection:
      weight = 'NHD' if self.use_nhd_shape else 'DNH'
      equation = f'...NH,{weight}->...D'
      sizes = (max(heads, head) * self.lora_rank, dims)
    norm_dims = (dims, head)
    self.create_low_rank(
      equation,
      self.shape,
      self.weight_split_dims_mapping.wt,
      sizes=sizes,
      norm_dims=norm_dims[::-1] if self.is_output_projection else norm_dims,
      max_reduction=self.max_reduction,
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps [..., D] to [..., N, H], or [..., N, H] to [..., D]."""
    inputs = inputs.astype(self.compute_dtype)
    outputs = super().__call__(inputs)
    return outputs + self.low_rank(inputs) if self.lora_rank else outputs


class CombinedQKVProjectionLayer(
  SparseProduct,
  QuantizationMethods,
  attention_projections.CombinedQKVProjectionLayer,
):
  """Projections of queries, keys and values, with scales [3, N, H].

  Attributes:
    quantization: the settings; None is the layer without quantization.
    sparsity: settings of a sparse weight; None prunes nothing.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *attention_projections.CombinedQKVProjectionLayer.SILENT_UNLESS_SET,
    'sparsity',
  )
  ONE_INPUT_SCALE: ClassVar[bool] = True
  _PACK_4BIT_DIM: ClassVar[int | None] = 1

  quantization: QuantizationParams | None = settings_field()
  sparsity: SparsityHParams | None = None

  def _equation(self) -> str:
    heads = 'h' if self.attention_combine_dims else 'nh'
    return f'd,kd{heads}->k{heads}'


class RoundedAttention(QuantizationMethods):
  """Methods of an attention that rounds queries, keys, values and weights.

  It has no quantized weights itself; `act_params` are the settings of all.
  """

  def setup(self):
    super().setup()
    if self.quantization is None or not self.quantization.is_aqt:
      raise errors.UserError(
        f'{type(self).__name__}.quantization has the type'
        f' {getattr(self.quantization, "quantization_type", None)}; expected'
        " 'aqt': other types quantize the projections, proj_tpl and"
        ' combined_qkv_proj_tpl'
      )
    self.create_tensor_quantizers()

  def _product(self, equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return operations.aqt_einsum(
      equation,
      x,
      y,
      lhs_quantizer=self.act_quantizer,
      rhs_quantizer=self.act_quantizer,
    )

  def _run_kernel(
    self,
    inputs: attention_ops.AttentionInputs,
    options: attention_ops.AttentionOptions,
  ) -> jax.Array:
    heads = inputs.query.shape[2]
    key, value = (
      jnp.repeat(x, heads // x.shape[2], axis=2)
      for x in (inputs.key, inputs.value)
    )
    logits = self._product('btnh,bsnh->bnts', inputs.query, key)
    logits = checkpoint_name(logits, 'logits').astype(jnp.float32)
    logits = attention_ops.capped_logits(logits, inputs.bias, options)
    mask = attention_masks.as_array(inputs.mask)
    if inputs.causal:
      past = jnp.tri(*logits.shape[2:], dtype=bool)
      mask = past if mask is None else mask & past
    weights, total = attention_ops.exponentials(
      logits, mask, options.extra_logit
    )
    probs = (weights / total[..., None]).astype(key.dtype)
    if options.dropout is not None:
      probs = options.dropout(probs)
    return self._product('bnts,bsnh->btnh', probs, value)

  def _encode_with_probs(self, inputs, time_step=None):
    # The weights are rounded with the values that they multiply.
    _, probs = super()._encode_with_probs(inputs, time_step)
    return self._encode(inputs, time_step), probs


class DotProductAttention(RoundedAttention, attentions.DotProductAttention):
  """Attention whose products are of rounded numbers, for AQT.

  Attributes:
    quantization: the settings, of the type AQT.
  """

  quantization: QuantizationParams | None = settings_field()
