"""Configs of Grok-1."""

from typing import Any

from pax_compat import errors
from pax_compat.config import Config
from pax_compat.layers import activations
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.transformer_models import sparse_decoders
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformers import StackedTransformer


def _block(
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_num_groups: int,
  attention_key_value_dim: int,
  name: str = 'transformer',
  moe: bool = False,
  moe_hidden_dim: int | None = None,
  moe_gating_embedding_level: str = 'token',
  ffn_activation_cls: type = activations.GELU,
  use_gated_activation: bool = True,
  mask_self_attention: bool = True,
  cross_attention: bool = False,
  atten_logit_cap: float = 0.0,
  attention_extra_logit: float | None = 0.0,
  relative_attention_num_buckets: int = 32,
  relative_attention_max_distance: int = 128,
  moe_load_balance_loss_weight: float = 0.01,
  moe_gating_func: str = 'top2',
  moe_gating_logit_cap: float = 0.0,
  num_groups: int = 1,
  c_dim: int | None = None,
  capacity_factor: float | None = 0.0,
  e_dim: int | None = None,
  combine_qkv: bool = False,
  bidirectional: bool = False,
  use_fp8: bool = False,
) -> sparse_decoders.Block:
  """Returns a block; see `GrokStackedTransformerHParams`."""
  # Grok has no relative biases, and its projections of q, k, v are separate.
  del relative_attention_num_buckets, relative_attention_max_distance
  del bidirectional, combine_qkv, atten_logit_cap, attention_extra_logit
  if use_fp8:
    raise errors.UserError(
      'use_fp8 is not supported; set the einsum_tpl of the layers instead'
    )
  return sparse_decoders.Block(
    name=name,
    model_dims=model_dim,
    hidden_dims=ff_dim,
    num_heads=attention_num_heads,
    dim_per_head=attention_key_value_dim,
    num_layers=1,
    num_kv_heads=attention_num_groups,
    moe_layers=[0] if moe else None,
    activation=ffn_activation_cls,
    is_gated=use_gated_activation,
    is_causal=mask_self_attention,
    cross_attention=cross_attention,
    experts=sparse_decoders.Experts(
      count=e_dim,
      hidden_dims=moe_hidden_dim or ff_dim,
      groups=num_groups,
      capacity=c_dim,
      capacity_factor=capacity_factor,
      gating_func=moe_gating_func,
      gating_logit_cap=moe_gating_logit_cap,
      gating_embedding_level=moe_gating_embedding_level,
      loss_weight=moe_load_balance_loss_weight,
    ),
  )


def GrokStackedTransformerHParams(
  *sizes: Any, **fields: Any
) -> Config[StackedTransformer]:
  """Returns a block: one layer, with experts or dense.

  Args:
    *sizes: in this order: model_dim, ff_dim, attention_num_heads,
      attention_num_groups, attention_key_value_dim; also by name.
    **fields: name; moe: whether there are experts; e_dim: their number;
      moe_hidden_dim: of their hidden layer; num_groups, c_dim (capacity),
      capacity_factor and the `moe_...` fields: see
      `TransformerFeedForwardMoe`; ffn_activation_cls and use_gated_activation
      of experts; mask_self_attention; cross_attention. As in Pax,
      atten_logit_cap, attention_extra_logit, relative_attention_num_buckets,
      relative_attention_max_distance, bidirectional and combine_qkv have no
      effect on its attention, whose groups of heads share keys and values.
  """
  return _block(*sizes, **fields).config()


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
  block = _block(
    model_dim,
    ff_dim,
    attention_num_heads,
    attention_num_groups,
    attention_key_value_dim,
    name='decoder_block',
    moe=moe,
    **of_block,
  )
  return sparse_decoders.Decoder(
    block=block,
    name=name,
    num_layers=num_transformer_layers,
    vocab_size=vocab_size,
    period=1,
    num_stages=num_pipeline_stages,
    num_microbatches=num_pipeline_microbatches,
    z_loss_weight=z_loss_weight,
    divides_by_size=use_tgt_labels_size_as_loss_denominator,
    model_type=model_type,
    checkpoint_policy=checkpoint_policy,
  ).config()
