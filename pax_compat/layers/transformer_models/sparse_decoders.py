"""Decoders with experts: the configs of GLaM's and Grok's language models.

GLaM (https://arxiv.org/abs/2112.06905) alternates layers with experts and dense
ones; every layer of Grok has experts. Both have gated feed-forward layers and
RMS norms; GLaM has no biases and relative attention biases, Grok groups of
heads that share keys and values.

Shapes: D model, F hidden layer, N heads, K groups of heads, H per head, E
experts, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

from pax_compat import errors
from pax_compat.config import Config
from pax_compat.layers import activations
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.attentions.relative_bias import RelativeBias
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
  """The layers with experts of a decoder.

  Attributes:
    count: E.
    hidden_dims: F of each expert.
    groups: groups in which tokens are dispatched.
    capacity: minimum of an expert's slots; see `TransformerFeedForwardMoe`, as
      for the following.
    capacity_factor: likewise, relative to equal loads.
    gating_func: how tokens choose experts.
    gating_logit_cap: soft cap of the gate's logits.
    gating_embedding_level: what the gate sees.
    loss_weight: factor of the load-balancing loss.
  """

  count: int | None
  hidden_dims: int
  groups: int = 1
  capacity: int | None = None
  capacity_factor: float | None = 0.0
  gating_func: str = 'top2'
  gating_logit_cap: float = 0.0
  gating_embedding_level: str = 'token'
  loss_weight: float = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """One or more layers, which a decoder repeats.

  Attributes:
    model_dims: D.
    hidden_dims: F.
    num_heads: N.
    dim_per_head: H.
    num_kv_heads: K; None for as many as heads.
    experts: of the layers with experts.
    num_layers: number of layers.
    moe_layers: indices of those with experts; None for none.
    activation: class of the activation of hidden layers.
    is_gated: whether these are gated.
    is_causal: whether self-attention is causal.
    cross_attention: whether there is cross-attention.
    use_bias: whether projections of attention have biases.
    relative_bias: a config of relative attention biases; None for none.
    logit_cap: soft cap of the attention's logits.
    extra_logit: logit of attending to nothing.
    combine_qkv: whether the projections are one weight.
    name: name of the stack.
  """

  model_dims: int
  hidden_dims: int
  num_heads: int
  dim_per_head: int
  num_kv_heads: int | None = None
  experts: Experts
  num_layers: int
  moe_layers: Sequence[int] | None
  activation: type = activations.GELU
  is_gated: bool = True
  is_causal: bool = True
  cross_attention: bool = False
  use_bias: bool = False
  relative_bias: Config[RelativeBias] | None = None
  logit_cap: float = 0.0
  extra_logit: float | None = 0.0
  combine_qkv: bool = False
  name: str = 'transformer'

  def config(self) -> Config[StackedTransformer]:
    """Returns the config of the layers."""
    stack = StackedTransformer.config(
      name=self.name,
      packed_input=True,
      model_dims=self.model_dims,
      hidden_dims=self.hidden_dims,
      num_layers=self.num_layers,
      moe_layers=self.moe_layers,
      num_heads=self.num_heads,
      dim_per_head=self.dim_per_head,
      num_experts=self.experts.count,
      num_groups=self.experts.groups,
      mask_self_attention=self.is_causal,
      use_cross_attention=self.cross_attention,
    )
    layer = stack.transformer_layer_params_tpl
    layer.ln_tpl = RmsNorm.config(direct_scale=True)
    if self.num_kv_heads is None:
      self._set_attention(layer.tr_atten_tpl)
      self._set_feed_forward(layer.tr_fflayer_tpl)
    else:
      layer.tr_atten_tpl = MultiQueryDotProductAttention.config(
        num_kv_heads=self.num_kv_heads, combine_qkv=False
      )
      layer.tr_atten_tpl.proj_tpl.use_bias = True
    self._set_experts(stack.moe_layer_tpl)
    return stack

  def _set_attention(self, attention: Config):
    attention.set(
      attention_extra_logit=self.extra_logit,
      use_bias=self.use_bias,
      atten_logit_cap=self.logit_cap,
      internal_gshard_gaussian_init=True,
      internal_enable_query_scale=False,
      internal_enable_per_dim_scale=False,
      relative_bias_tpl=self.relative_bias,
      output_proj_use_nhd_shape=True,
    )
    attention.proj_tpl.attention_combine_dims = True
    if self.combine_qkv:
      attention.combine_qkv = True
      attention.combined_qkv_proj_tpl.set(
        use_bias=False, attention_combine_dims=True
      )

  def _set_feed_forward(self, feed_forward: Config):
    feed_forward.set(
      input_dims=self.model_dims,
      hidden_dims=self.hidden_dims,
      has_bias=False,
      apply_padding_first=True,
      ln_tpl=RmsNorm.config(direct_scale=True),
      add_skip_connection=True,
      activation_tpl=Config(self.activation),
      use_gated_activation=self.is_gated,
      internal_gshard_variance_scaling_fan_in_init=True,
    )

  def _set_experts(self, moe: Config):
    moe.set(
      input_dims=self.model_dims,
      hidden_dims=self.experts.hidden_dims,
      ln_tpl=RmsNorm.config(direct_scale=True),
      num_experts=self.experts.count,
      num_groups=self.experts.groups,
      gating_logit_cap=self.experts.gating_logit_cap,
      expert_capacity_dim=self.experts.capacity,
      unadjusted_expert_capacity_factor=self.experts.capacity_factor,
      internal_gshard_variance_scaling_fan_in_init=True,
      moe_load_balance_loss_weight=self.experts.loss_weight,
      gating_func=self.experts.gating_func,
      moe_gating_embedding_level=self.experts.gating_embedding_level,
    )
    if self.num_kv_heads is not None:
      moe.set(
        add_skip_connection=True,
        activation_tpl=Config(self.activation),
        use_gated_activation=self.is_gated,
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
  """A language model of such blocks.

  Attributes:
    block: its layers; those of a pipeline stage have more of them.
    num_layers: all layers.
    vocab_size: V.
    period: of the layers with experts: each has `period - 1` others after it.
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
  period: int
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
    dims = self.block.model_dims
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
    block.set(num_layers=count, moe_layers=list(range(0, count, self.period)))
