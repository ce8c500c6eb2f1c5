"""Translators of GShard's `DenseBuilder`, and of the network that it builds.

`UniTransformer` and `BertTransformer` are tasks with the same kind of network:
an embedding of tokens, perhaps one of positions, a stack of layers, and a
softmax that shares the embedding's matrix. Here it is a `TransformerLm`. The
translator of a task calls:

    builder = gshard_builder.read(view)
    network = gshard_builder.network(
      view, builder, gshard_builder.Kind(side='enc', attention=name)
    )
    mesh = gshard_mesh.model_fields(builder)

`read` reads the task's `builder`. `network` reads the fields that both tasks
have; the variables of its result have the task's Lingvo paths (`enc_emb`,
`enc`, ...). `mesh` are fields of the model's config. `Kind` has the fields that
only one of the tasks has.

Shapes: D model dims.
"""

import dataclasses
from typing import Any

from adaptors.translate import registry
from adaptors.translate.gshard import gshard_mesh, gshard_norms, gshard_stack
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import pipelines
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)


@dataclasses.dataclass(frozen=True)
class Kind:
  """The fields of a network that differ between the tasks.

  Attributes:
    side: Lingvo's name of the network: 'dec' for a decoder (causal), 'enc' for
      an encoder (bidirectional).
    attention: the name of the attention's variables.
    gated_activation: 'gelu' or 'silu'; None if feed-forwards are not gated.
    norm_type: of the layers; see `gshard_norms.norm`.
    norm_policy: 'pre', 'primer' or 'primer_hybrid'.
    sub_layer_types: with mixtures of experts, 'attn', 'moe' and 'ffw' in order;
      None for attention, mixture, attention, feed-forward.
    sinusoid: whether positions are sinusoids instead of a table.
    max_timescale: of the sinusoids.
    softmax_bias: whether logits have a bias.
    softmax_logit_cap: soft cap of the logits if positive.
    scale_outputs: whether the softmax's inputs are multiplied by D^-0.5.
    over_all_positions: whether the loss is a mean over all positions, padding
      included.
  """

  side: str
  attention: str
  gated_activation: str | None = None
  norm_type: str = 'ln'
  norm_policy: str = 'pre'
  sub_layer_types: tuple[str, ...] | None = None
  sinusoid: bool = False
  max_timescale: float = 10_000.0
  softmax_bias: bool = False
  softmax_logit_cap: float = 0.0
  scale_outputs: bool = True
  over_all_positions: bool = False


@dataclasses.dataclass(frozen=True)
class Builder:
  """The fields of a `DenseBuilder`, as attributes.

  Attributes:
    view: of its Params, all of which are read; for further issues.
    fields: values by name.
  """

  view: ParamsView
  fields: dict[str, Any]

  def __getattr__(self, name: str) -> Any:
    try:
      return self.fields[name]
    except KeyError:
      raise AttributeError(name) from None


# Fields that only mixtures of experts use.
MIXTURE_FIELDS = (
  'num_devices',
  'num_groups',
  'moe_dropout_rate',
  'e_dim',
  'c_dim',
  'moe_hidden_dim',
  'moe_activation',
  'second_expert_policy',
  'second_expert_threshold',
  'legacy_mtf_behavior',
  'capacity_factor',
  'gating_func',
  'gating_logits_dtype',
  'mask_dtype',
  'egcm_split',
  'gecm_split',
  'gsec_split',
  'gecs_split',
  'gec_split',
  'eah_split',
  'eam_split',
  'emh_split',
  'ehm_split',
)
_OF_MIXTURES = ('attn', 'moe', 'attn', 'ffw')
_WITHOUT_EFFECT = {
  'the result is the same': (
    'attention_combine_qkv',
    'deterministic_dropout',
    'inflate_universal_relative_bias_to_match_batch_dimension',
    'model_dim_reshape_segments',
  ),
  'logits of attention are always float32': ('attention_logits_dtype',),
  "the task's label_smoothing is used": ('label_smoothing',),
  'there are no convolutions': (
    'conv_vars_reshape',
    'mdha_rope',
    'use_fused_depthwise_conv_autoregressive',
  ),
  'positions are not rotated': ('rope_emb_max_timescale',),
  'it concerns decoding only': ('use_xla_dynamic_update_slice',),
  'only other builders read it': ('kv_mhd_w_split',),
  'it is left to the compiler': (
    'one_hot_ids_split',
    'experimental_fix_split_dims_mapping',
  ),
}


@translates('lingvo.core.gshard_builder.DenseBuilder')
def dense_builder(view: ParamsView) -> Builder:
  """Reads all fields; their meaning depends on the task.

  The order of the devices in its mesh has no effect: JAX orders them by their
  connections.
  """
  view.require('use_rotary_position_emb', False)
  view.require('noise_shape_broadcast_dims', None)
  view.require('attention_num_memory_heads', None, 1)
  for why, names in _WITHOUT_EFFECT.items():
    view.ignore(why, *names)
  fields = {name: view.get(name) for name, _ in view.params.IterParams()}
  for name in ('weight_split_dims_mapping', 'activation_split_dims_mapping'):
    view.require(name, None)
  return Builder(view, fields)


def read(view: ParamsView) -> Builder | None:
  """Returns a task's builder; None if it is not translated."""
  template = view.get('builder')
  if template is None or 'cls' not in template:
    view.issue('builder', 'it is not set; expected Params of a DenseBuilder')
    return None
  builder_view = ParamsView(
    template.Copy(), f'{view.path}.builder', view.report
  )
  builder = registry.translate(builder_view)
  if builder is not None:
    _check_dtypes(view, builder)
    if not view.params.moe:
      builder_view.ignore('there are no mixtures of experts', *MIXTURE_FIELDS)
  return builder


def _check_dtypes(view: ParamsView, builder: Builder):
  """Adds an issue if the dtypes of builder and task differ."""
  p = view.params
  for name, own, found in (
    ('dtype', p.dtype, builder.dtype),
    ('fprop_dtype', p.fprop_dtype or p.dtype, builder.fprop_dtype or p.dtype),
  ):
    if own != found:
      view.issue(f'builder.{name}', f'{found} is not that of the task, {own}')


def network(
  view: ParamsView, builder: Builder, kind: Kind
) -> Translated | None:
  """Returns the network of a task as a `TransformerLm`.

  It reads these fields of the task: vocab_size, sequence_length, max_length,
  batch_size, num_transformer_layers, loss_denominator, aux_loss_coef,
  label_smoothing, logits_abs_max, z_loss, positional_embedding, activation,
  use_repeat_layer, num_spmd_pipeline_stages, num_spmd_pipeline_microbatches,
  moe and moe_gated_gelu.

  Args:
    view: of the task.
    builder: see `read`.
    kind: the fields that differ between the tasks.

  Returns:
    The network, whose softmax leaves the z-loss to the model; None after an
    issue.
  """
  view.ignore('Lingvo does not read it', 'batch_size', 'sequence_length')
  positions = _positions(view, builder, kind)
  layers = _layers(view, builder, kind)
  stack = layers and gshard_stack.stack(view, builder, layers)
  stack = stack and _in_stages(view, stack)
  side, is_decoder = kind.side, kind.side == 'dec'
  final_norm = gshard_norms.norm(
    builder,
    builder.view,
    'final_norm_type',
    kind=builder.final_norm_type if is_decoder else 'ln',
    names={f'{side}.final_layer_norm': 'final_ln'},
  )
  softmax = _softmax(view, builder, kind)
  if stack is None:
    return None
  causal = is_decoder and not builder.decoder_skip_causal_mask
  drop = builder.dropout_rate
  config = TransformerLm.config(
    vocab_size=view.get('vocab_size'),
    model_dims=builder.model_dim,
    model_type=(
      LanguageModelType.CAUSAL if causal else LanguageModelType.BIDIRECTIONAL
    ),
    packed_input=True,
    order_by_position=causal,
    position_emb_tpl=positions and positions.config,
    stacked_transformer_tpl=stack.config,
    final_ln_tpl=final_norm.config,
    input_dropout_prob=drop,
    output_dropout_prob=0.0 if builder.skip_output_dropout else drop,
    softmax_tpl=softmax.config,
  )
  variables = softmax.variables + final_norm.variables
  variables += stack.variables.under(side, 'transformer')
  if positions is not None:
    variables += positions.variables
  return Translated(config, variables)


def _in_stages(view: ParamsView, stack: Translated) -> Translated:
  """Returns the pipeline whose stages are the stack, or the stack if S is 1.

  As in Lingvo, no mesh axis shards the stages.
  """
  stages = view.get('num_spmd_pipeline_stages')
  microbatches = view.get('num_spmd_pipeline_microbatches')
  if stages == 1:
    view.ignore('the model is not pipelined', 'num_spmd_pipeline_microbatches')
    return stack
  if view.get('moe') or view.get('use_repeat_layer'):
    view.issue(
      'num_spmd_pipeline_stages',
      f'{stages} stages are not translated together with moe or'
      ' use_repeat_layer',
    )
  if not microbatches or view.get('num_transformer_layers') % stages:
    view.issue(
      'num_spmd_pipeline_stages',
      f'{stages} stages need a number of layers that is a multiple, and'
      ' num_spmd_pipeline_microbatches',
    )
  return pipelines.of_stages(stack, stages=stages, microbatches=microbatches)


def _positions(
  view: ParamsView, builder: Builder, kind: Kind
) -> Translated | None:
  """Returns the embedding of positions; None if there is none."""
  length = view.get('max_length')
  if not view.get('positional_embedding'):
    return None
  if kind.sinusoid:
    return Translated(
      positional_embeddings.PositionalEmbedding.config(
        max_timescale=kind.max_timescale
      )
    )
  config = positional_embeddings.TrainablePositionalEmbedding.config(
    max_seq_length=length,
    scale_sqrt_depth=builder.scale_input_embedding_by_dim,
    params_init=WeightInit.Gaussian(1.0),
  )
  config.weight_split_dims_mapping.wt = _split(builder, 'emb_w_split', 2)
  config.activation_split_dims_mapping.emb_out_split_dims_mapping = _split(
    builder, 'emb_out_split', 3
  )
  theta = f'{kind.side}_pos_emb.w.embedding'
  table = Variable((theta,), 'position_emb/emb_var')
  return Translated(config, VariableMap([table]))


def _softmax(view: ParamsView, builder: Builder, kind: Kind) -> Translated:
  """Returns the softmax, which is the embedding of tokens as well."""
  denominator = view.get('loss_denominator')
  config = GShardSharedEmbeddingSoftmax.config(
    use_tgt_labels_size_as_loss_denominator=kind.over_all_positions,
    fixed_loss_denominator=float(denominator) if denominator else None,
    use_bias=kind.softmax_bias,
    scale_sqrt_depth=builder.scale_input_embedding_by_dim,
    scale_before_logits=kind.scale_outputs,
    soft_cap_logits=kind.softmax_logit_cap,
    logits_abs_max=view.get('logits_abs_max'),
    label_smoothing_prob=view.get('label_smoothing'),
    label_smoothing_apply_for_eval=True,
    z_loss_weight=view.get('z_loss'),
    z_loss_is_aux=False,
  )
  config.weight_split_dims_mapping.wt = _split(builder, 'emb_w_split', 2)
  config.activation_split_dims_mapping.set(
    out=_split(builder, 'logits_split', 3),
    emb_out_split_dims_mapping=_split(builder, 'emb_out_split', 3),
  )
  theta = f'{kind.side}_emb.w.embedding'
  variables = [Variable((theta,), 'softmax/embedding/w')]
  if kind.softmax_bias:
    variables.append(Variable(('softmax_bias',), 'softmax/bias/b'))
  return Translated(config, VariableMap(variables))


def _layers(
  view: ParamsView, builder: Builder, kind: Kind
) -> gshard_stack.Layers | None:
  """Returns a task's settings of its layers."""
  num_layers, gated = view.get('num_transformer_layers'), kind.gated_activation
  has_mixtures = view.get('moe')
  relative = not view.get('positional_embedding')
  activation = view.get('activation') if gated is None else gated
  if gated is not None:
    view.ignore('feed-forwards are gated', 'activation')
    builder.view.ignore('gated feed-forwards have no bias', 'ff_use_bias')
  if not relative:
    names = [n for n, _ in builder.view.params.IterParams()]
    builder.view.ignore(
      'with positional_embedding attention is not relative',
      *(n for n in names if n.startswith('relative_attention_')),
      'decoder_bidirectional_relative_attention',
    )
  if has_mixtures:
    types = kind.sub_layer_types or _OF_MIXTURES
    seconds = types[1::2]
    if len(types) % 2 or {*types[::2]} != {'attn'} or 'attn' in seconds:
      view.issue(
        'sub_layer_types',
        f"{list(types)} is not translated, only 'attn' followed by 'moe' or"
        " 'ffw', one or several times",
      )
      return None
  else:
    seconds = ('ffw',)
    view.ignore(
      'there are no mixtures of experts', 'moe_gated_gelu', 'aux_loss_coef'
    )
  return gshard_stack.Layers(
    is_decoder=kind.side == 'dec',
    attention=kind.attention,
    relative=relative,
    activation=activation,
    is_gated=gated is not None,
    norm_type=kind.norm_type,
    norm_policy=kind.norm_policy,
    blocks=num_layers // len(seconds) // view.get('num_spmd_pipeline_stages'),
    seconds=seconds,
    gated_experts=view.get('moe_gated_gelu'),
    aux_loss_coef=view.get('aux_loss_coef'),
    is_repeated=view.get('use_repeat_layer'),
  )


def _split(builder: Builder, field: str, rank: int):
  return gshard_mesh.split(builder, field, rank)
