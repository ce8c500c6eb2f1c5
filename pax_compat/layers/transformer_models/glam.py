"""Configs of GLaM, https://arxiv.org/abs/2112.06905."""

from typing import Any

from pax_compat.config import Config
from pax_compat.layers.attentions.relative_bias import RelativeBias
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.normalizations import RmsNorm
from pax_compat.layers.transformer_models import sparse_decoders
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformers import StackedTransformer


class _Block(sparse_decoders.Block):
  """A layer with experts and a dense one, or a dense one."""

  PERIOD = 2

  def _set_layer(self, layer: Config):
    self._set_attention(layer.tr_atten_tpl)
    layer.tr_fflayer_tpl.set(
      input_dims=self.model_dim,
      hidden_dims=self.ff_dim,
      has_bias=False,
      apply_padding_first=True,
      ln_tpl=RmsNorm.config(direct_scale=True),
      add_skip_connection=True,
      activation_tpl=Config(self.ffn_activation_cls),
      use_gated_activation=self.use_gated_activation,
      internal_gshard_variance_scaling_fan_in_init=True,
    )

  def _set_attention(self, attention: Config):
    attention.set(
      attention_extra_logit=self.attention_extra_logit,
      use_bias=False,
      atten_logit_cap=self.atten_logit_cap,
      internal_gshard_gaussian_init=True,
      internal_enable_query_scale=False,
      internal_enable_per_dim_scale=False,
      relative_bias_tpl=RelativeBias.config(
        relative_attention_num_buckets=self.relative_attention_num_buckets,
        relative_attention_max_distance=self.relative_attention_max_distance,
        bidirectional=self.bidirectional,
      ),
      output_proj_use_nhd_shape=True,
    )
    attention.proj_tpl.attention_combine_dims = True
    if self.combine_qkv:
      attention.combine_qkv = True
      attention.combined_qkv_proj_tpl.set(
        use_bias=False, attention_combine_dims=True
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
  return _Block(*sizes, **fields).config()


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
  block = _Block(
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
    is_repeated=repeat,
    num_stages=num_pipeline_stages,
    num_microbatches=num_pipeline_microbatches,
    z_loss_weight=z_loss_weight,
    divides_by_size=use_tgt_labels_size_as_loss_denominator,
    model_type=model_type,
    checkpoint_policy=checkpoint_policy,
  ).config()
