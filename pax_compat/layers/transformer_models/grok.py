"""Configs of Grok-1."""

import dataclasses
from typing import Any

from pax_compat.config import Config
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.injection.fp8_nvidia_gpu import (
  Fp8EinsumGatedOp,
  Fp8EinsumOp,
)
from pax_compat.layers.transformer_models import sparse_decoders
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformers import StackedTransformer


@dataclasses.dataclass(frozen=True)
class _Block(sparse_decoders.Block):
  """One layer, with experts or dense.

  It has no relative biases, and its projections of q, k, v are separate.

  Attributes:
    use_fp8: whether projections and feed-forward layers, those of experts
      included, multiply in 8 bits.
    attention_num_groups: K.
  """

  PERIOD = 1

  use_fp8: bool = False
  attention_num_groups: int = dataclasses.field(kw_only=True)

  def _set_layer(self, layer: Config):
    layer.tr_atten_tpl = MultiQueryDotProductAttention.config(
      num_kv_heads=self.attention_num_groups, combine_qkv=False
    )
    layer.tr_atten_tpl.proj_tpl.use_bias = True
    if self.use_fp8:
      for product in (
        layer.tr_atten_tpl.proj_tpl,
        layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl,
      ):
        product.einsum_tpl = Fp8EinsumOp.config()

  def _set_experts(self, moe: Config):
    super()._set_experts(moe)
    moe.set(
      add_skip_connection=True,
      activation_tpl=Config(self.ffn_activation_cls),
      use_gated_activation=self.use_gated_activation,
    )
    if self.use_fp8:
      moe.einsum_tpl = Fp8EinsumOp.config()
      moe.einsum_gated_tpl = Fp8EinsumGatedOp.config()


def GrokStackedTransformerHParams(
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  *others: Any,
  **fields: Any,
) -> Config[StackedTransformer]:
  """Returns a block: one layer, with experts or dense.

  Args:
    model_dim: of the model.
    ff_dim: of the hidden layers.
    attention_num_heads: heads.
    attention_num_groups: groups of heads that share keys and values.
    attention_key_value_dim: of a head.
    *others: the following, in the order of `sparse_decoders.Block`.
    **fields: name; moe: whether there are experts; e_dim: their number;
      moe_hidden_dim: of their hidden layer; num_groups, c_dim (capacity),
      capacity_factor and the `moe_...` fields: see
      `TransformerFeedForwardMoe`; ffn_activation_cls and use_gated_activation
      of experts; mask_self_attention; cross_attention. As in Pax,
      atten_logit_cap, attention_extra_logit, relative_attention_num_buckets,
      relative_attention_max_distance, bidirectional and combine_qkv have no
      effect on its attention, whose groups of heads share keys and values.
  """
  return _Block(
    model_dim,
    ff_dim,
    attention_num_heads,
    attention_key_value_dim,
    *others,
    attention_num_groups=attention_num_groups,
    **fields,
  ).config()


def GrokUniTransformerLmHParams(
  vocab_size: int,
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  num_transformer_layers: int,
  name: str = 'transformer',
  moe: bool = False,
  *,
  use_tgt_labels_size_as_loss_denominator: bool = True,
  z_loss_weight: float = 1e-4,
  num_pipeline_stages: int = 1,
  num_pipeline_microbatches: int = 1,
  model_type: str = LanguageModelType.CAUSAL,
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING,
  **of_block: Any,
) -> Config[TransformerLm]:
  """Returns a decoder that Grok's blocks make up.

  Args:
    vocab_size: number of tokens.
    model_dim: of the model.
    ff_dim: of the hidden layers.
    attention_num_heads: heads.
    attention_num_groups: groups of heads that share keys and values.
    attention_key_value_dim: of a head.
    num_transformer_layers: number of layers.
    name: name of the network.
    moe: whether the layers have experts.
    use_tgt_labels_size_as_loss_denominator: whether the loss is divided by the
      number of targets, padding included.
    z_loss_weight: of the softmax.
    num_pipeline_stages: stages of a pipeline; 1 for none.
    num_pipeline_microbatches: its microbatches.
    model_type: which positions attention sees.
    checkpoint_policy: what repeated layers save for the backward pass.
    **of_block: see `GrokStackedTransformerHParams`.
  """
  block = _Block(
    model_dim,
    ff_dim,
    attention_num_heads,
    attention_key_value_dim,
    name='decoder_block',
    attention_num_groups=attention_num_groups,
    moe=moe,
    **of_block,
  )
  return sparse_decoders.Decoder(
    block=block,
    name=name,
    num_layers=num_transformer_layers,
    vocab_size=vocab_size,
    num_stages=num_pipeline_stages,
    num_microbatches=num_pipeline_microbatches,
    z_loss_weight=z_loss_weight,
    divides_by_size=use_tgt_labels_size_as_loss_denominator,
    model_type=model_type,
    checkpoint_policy=checkpoint_policy,
  ).config()
