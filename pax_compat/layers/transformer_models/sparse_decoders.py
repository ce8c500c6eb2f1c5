"""Decoders with experts: the configs of GLaM's and Grok's language models.

GLaM (https://arxiv.org/abs/2112.06905) alternates layers with experts and dense
ones; every layer of Grok has experts. Both have gated feed-forward layers and
RMS norms; GLaM has no biases and relative attention biases, Grok groups of
heads that share keys and values.

Shapes: D model, F hidden layer, N heads, K groups of heads, H per head, E
experts, V vocabulary.
"""

import dataclasses
from typing import ClassVar

from pax_compat import errors
from pax_compat.config import Config
from pax_compat.layers import activations
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.normalizations import RmsNorm
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformers import (
  PipelinedTransformer,
  StackedTransformer,
  StackedTransformerRepeated,
)


@dataclasses.dataclass(frozen=True)
class Block:
  """One or more layers, which a decoder repeats; fields have Pax's names.

  Attributes:
    PERIOD: number of layers of a block whose first one has experts.
    model_dim: D.
    ff_dim: F.
    attention_num_heads: N.
    attention_key_value_dim: H.
    name: name of the stack.
    moe: whether the first layer has experts.
    moe_hidden_dim: F of each expert; None for `ff_dim`.
    moe_gating_embedding_level: what the gate sees; see
      `TransformerFeedForwardMoe`, as for the following of experts.
    ffn_activation_cls: class of the activation of hidden layers.
    use_gated_activation: whether these are gated.
    mask_self_attention: whether self-attention is causal.
    cross_attention: whether there is cross-attention.
    atten_logit_cap: soft cap of the attention's logits.
    attention_extra_logit: logit of attending to nothing.
    relative_attention_num_buckets: see `RelativeBias`.
    relative_attention_max_distance: likewise.
    moe_load_balance_loss_weight: factor of the load-balancing loss.
    moe_gating_func: how tokens choose experts.
    moe_gating_logit_cap: soft cap of the gate's logits.
    num_groups: groups in which tokens are dispatched.
    c_dim: minimum of an expert's slots.
    capacity_factor: likewise, relative to equal loads.
    e_dim: E.
    combine_qkv: whether the projections are one weight.
    bidirectional: see `RelativeBias`.
  """

  PERIOD: ClassVar[int]

  model_dim: int
  ff_dim: int
  attention_num_heads: int
  attention_key_value_dim: int
  name: str = 'transformer'
  moe: bool = False
  moe_hidden_dim: int | None = None
  moe_gating_embedding_level: str = 'token'
  ffn_activation_cls: type = activations.GELU
  use_gated_activation: bool = True
  mask_self_attention: bool = True
  cross_attention: bool = False
  atten_logit_cap: float = 0.0
  attention_extra_logit: float | None = 0.0
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  moe_load_balance_loss_weight: float = 0.01
  moe_gating_func: str = 'top2'
  moe_gating_logit_cap: float = 0.0
  num_groups: int = 1
  c_dim: int | None = None
  capacity_factor: float | None = 0.0
  e_dim: int | None = None
  combine_qkv: bool = False
  bidirectional: bool = False

  @property
  def num_layers(self) -> int:
    """Number of layers."""
    return self.PERIOD if self.moe else 1

  def config(self) -> Config[StackedTransformer]:
    """Returns the config of the layers."""
    stack = StackedTransformer.config(
      name=self.name,
      packed_input=True,
      model_dims=self.model_dim,
      hidden_dims=self.ff_dim,
      num_layers=self.num_layers,
      moe_layers=[0] if self.moe else None,
      num_heads=self.attention_num_heads,
      dim_per_head=self.attention_key_value_dim,
      num_experts=self.e_dim,
      num_groups=self.num_groups,
      mask_self_attention=self.mask_self_attention,
      use_cross_attention=self.cross_attention,
    )
    layer = stack.transformer_layer_params_tpl
    layer.ln_tpl = RmsNorm.config(direct_scale=True)
    self._set_layer(layer)
    self._set_experts(stack.moe_layer_tpl)
    return stack

  def _set_layer(self, layer: Config):
    """Sets the attention and the feed-forward layer."""
    raise NotImplementedError

  def _set_experts(self, moe: Config):
    moe.set(
      input_dims=self.model_dim,
      hidden_dims=self.moe_hidden_dim or self.ff_dim,
      ln_tpl=RmsNorm.config(direct_scale=True),
      num_experts=self.e_dim,
      num_groups=self.num_groups,
      gating_logit_cap=self.moe_gating_logit_cap,
      expert_capacity_dim=self.c_dim,
      unadjusted_expert_capacity_factor=self.capacity_factor,
      internal_gshard_variance_scaling_fan_in_init=True,
      moe_load_balance_loss_weight=self.moe_load_balance_loss_weight,
      gating_func=self.moe_gating_func,
      moe_gating_embedding_level=self.moe_gating_embedding_level,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
  """A language model of such blocks.

  Attributes:
    block: its layers; those of a pipeline stage have more of them.
    num_layers: all layers.
    vocab_size: V.
    is_repeated: whether the layers are repeated, not stacked.
    num_stages: pipeline stages; 1 for no pipeline.
    num_microbatches: microbatches of the pipeline.
    z_loss_weight: of the softmax.
    divides_by_size: whether the loss is divided by the number of targets,
      padding included.
    model_type: which positions attention sees.
    checkpoint_policy: of the repeated layers.
    name: name of the network.
  """

  block: Block
  num_layers: int
  vocab_size: int
  is_repeated: bool = True
  num_stages: int = 1
  num_microbatches: int = 1
  z_loss_weight: float = 1e-4
  divides_by_size: bool = True
  model_type: str = LanguageModelType.CAUSAL
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING
  name: str = 'transformer'

  def config(self) -> Config[TransformerLm]:
    """Returns the config of the language model.

    Raises:
      UserError: pipeline stages would have different numbers of layers.
    """
    dims = self.block.model_dim
    return TransformerLm.config(
      name=self.name,
      packed_input=True,
      model_dims=dims,
      vocab_size=self.vocab_size,
      position_emb_tpl=None,
      model_type=self.model_type,
      final_ln_tpl=RmsNorm.config(name='rms_norm', dim=dims),
      softmax_tpl=GShardSharedEmbeddingSoftmax.config(
        name='emb',
        input_dims=dims,
        num_classes=self.vocab_size,
        z_loss_weight=self.z_loss_weight,
        use_tgt_labels_size_as_loss_denominator=self.divides_by_size,
      ),
      stacked_transformer_tpl=self._stack(),
    )

  def _stack(self) -> Config:
    block = self.block.config()
    repeats = self.num_layers // self.block.num_layers
    if self.num_stages > 1:
      if repeats % self.num_stages:
        raise errors.UserError(
          f'{repeats} blocks of {self.block.num_layers} layers are not'
          f' divisible by num_pipeline_stages {self.num_stages}'
        )
      self._set_layers(block, self.num_layers // self.num_stages)
      return PipelinedTransformer.config(
        pipeline_stage=block,
        num_pipeline_stages=self.num_stages,
        num_pipeline_microbatches=self.num_microbatches,
        stream_io=True,
      )
    if not self.is_repeated:
      self._set_layers(block, self.num_layers)
      return block
    return StackedTransformerRepeated.config(
      name='decoder',
      unroll_in_decode=True,
      block=block,
      x_times=repeats,
      checkpoint_policy=self.checkpoint_policy,
    )

  def _set_layers(self, block: Config, count: int):
    block.set(
      num_layers=count, moe_layers=list(range(0, count, self.block.PERIOD))
    )
