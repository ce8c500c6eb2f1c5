"""Configs of GLaM, https://arxiv.org/abs/2112.06905."""

from typing import Any

from pax_compat.config import Config
from pax_compat.layers import activations
from pax_compat.layers.attentions.relative_bias import RelativeBias
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
) -> sparse_decoders.Block:
  """Returns a block; see `GlamStackedTransformerHParams`."""
  return sparse_decoders.Block(
    name=name,
    model_dims=model_dim,
    hidden_dims=ff_dim,
    num_heads=attention_num_heads,
    dim_per_head=attention_key_value_dim,
    num_layers=2 if moe else 1,
    moe_layers=[0] if moe else None,
    activation=ffn_activation_cls,
    is_gated=use_gated_activation,
    is_causal=mask_self_attention,
    cross_attention=cross_attention,
    logit_cap=atten_logit_cap,
    extra_logit=attention_extra_logit,
    combine_qkv=combine_qkv,
    relative_bias=RelativeBias.config(
      relative_attention_num_buckets=relative_attention_num_buckets,
      relative_attention_max_distance=relative_attention_max_distance,
      bidirectional=bidirectional,
    ),
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


def GlamStackedTransformerHParams(
  *sizes: Any, **fields: Any
) -> Config[StackedTransformer]:
  """Returns a block: a layer with experts and a dense one, or a dense one.

  Args:
    *sizes: in this order: model_dim, ff_dim, attention_num_heads,
      attention_key_value_dim; also by name.
    **fields: name; moe: whether there are experts; e_dim: their number;
      moe_hidden_dim: of their hidden layer; num_groups, c_dim (capacity),
      capacity_factor and the `moe_...` fields: see
      `TransformerFeedForwardMoe`; ffn_activation_cls and use_gated_activation
      of dense layers; mask_self_attention; cross_attention; atten_logit_cap;
      attention_extra_logit; relative_attention_num_buckets,
      relative_attention_max_distance and bidirectional: see `RelativeBias`;
      combine_qkv.
  """
  return _block(*sizes, **fields).config()


def GlamUniTransformerLmHParams(
  vocab_size: int,
  model_dim: int,
  ff_dim: int,
  attention_num_heads: int,
  attention_key_value_dim: int,
  num_transformer_layers: int,
  name: str = 'transformer',
  moe: bool = False,
  *,
  use_tgt_labels_size_as_loss_denominator: bool = True,
  z_loss_weight: float = 1e-4,
  repeat: bool = True,
  num_pipeline_stages: int = 1,
  num_pipeline_microbatches: int = 1,
  model_type: str = LanguageModelType.CAUSAL,
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING,
  **of_block: Any,
) -> Config[TransformerLm]:
  """Returns a decoder that GLaM's blocks make up.

  Args:
    vocab_size: number of tokens.
    model_dim: of the model.
    ff_dim: of the hidden layers.
    attention_num_heads: heads.
    attention_key_value_dim: of a head.
    num_transformer_layers: number of layers.
    name: name of the network.
    moe: whether every other layer has experts.
    use_tgt_labels_size_as_loss_denominator: whether the loss is divided by the
      number of targets, padding included.
    z_loss_weight: of the softmax.
    repeat: whether the layers are repeated, with stacked weights.
    num_pipeline_stages: stages of a pipeline; 1 for none.
    num_pipeline_microbatches: its microbatches.
    model_type: which positions attention sees.
    checkpoint_policy: what repeated layers save for the backward pass.
    **of_block: see `GlamStackedTransformerHParams`.
  """
  block = _block(
    model_dim,
    ff_dim,
    attention_num_heads,
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
    period=2,
    is_repeated=repeat,
    num_stages=num_pipeline_stages,
    num_microbatches=num_pipeline_microbatches,
    z_loss_weight=z_loss_weight,
    divides_by_size=use_tgt_labels_size_as_loss_denominator,
    model_type=model_type,
    checkpoint_policy=checkpoint_policy,
  ).config()
