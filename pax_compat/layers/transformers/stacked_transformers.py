"""Stacks of Transformer layers.

Shapes: B batch, T time, S source time, L new positions of a decoding step, D
model dims, N heads. Masks are `AttentionMask`s, or additive or boolean arrays
that broadcast to [B, N, T, S]; see `AttentionMask.of`.
"""

import copy
from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax
from absl import logging
from jax.ad_checkpoint import checkpoint_name

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core import child_layers
from pax_compat.layer_core.decode_states import ForwardsDecodeStates
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import checkpoint_policy as policies
from pax_compat.layers import repeats, stochastics
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
  Mask,
  example_mask,
  padding_mask,
  self_attention_segments,
  takes_structure,
  with_steps,
)
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformers import layer_arguments, layer_templates
from pax_compat.layers.transformers.transformer_layers import Transformer
from pax_compat.layers.transformers.transformer_moe import (
  TransformerFeedForwardMoe,
)
from pax_compat.nested_map import NestedMap


class StackedTransformer(ForwardsDecodeStates, base_layer.BaseLayer):
  """A stack of Transformer layers.

  Fields about the layers are set on their templates; None, and a dropout
  probability of 0, keep the value of the template.

  Attributes:
    model_dims: D.
    num_layers: number of layers.
    hidden_dims: dims of the feed-forward's hidden layer.
    num_heads: N.
    dim_per_head: dims of a head; None for D / N.
    mask_self_attention: whether self-attention is causal.
    use_cross_attention: whether the layers attend to another sequence.
    dropout_prob: default of the following three.
    atten_dropout_prob: dropout probability of attention weights.
    residual_dropout_prob: of the residual branches' outputs.
    relu_dropout_prob: of hidden layers.
    residual_droppath_prob: probability of dropping a residual branch of an
      example (stochastic depth), scaled by i / num_layers in layer i.
    input_dropout_prob: dropout probability of the input.
    transformer_layer_params_tpl: the layers: one template, copied for each
      layer; or a list of templates, one per layer, where the same object twice
      is one layer with shared weights; or a shorter list, whose length divides
      num_layers, each copied for consecutive layers.
    packed_input: whether examples are packed, so that segment ids are required.
    fold_padding_with_segment_mask: whether segment ids distinguish padding, so
      that paddings need not be masked too.
    moe_layers: indices of the layers with a mixture of experts instead of a
      feed-forward. An index without a layer has no effect.
    moe_layer_tpl: the mixture, copied for each; the following five are fields
      of it. It may set its own hidden_dims.
    num_experts: number of experts.
    num_groups: number of groups into which a batch's tokens are split; None
      keeps that of the template, or 1.
    min_group_size: minimum size of a group.
    gating_func: the gating algorithm.
    unadjusted_expert_capacity_factor: slots of all experts together, relative
      to the number of tokens.
    remat: whether layers are rematerialised, except for values that the policy
      saves.
    checkpoint_policy: the policy; an `AutodiffCheckpointType` or its name.
    output_norm_tpl: a normalisation of the output, or None.
    ngrammer_tpls: the `ngrammer_tpl` of each layer, or None in it; or None.
    local_window_size: the `local_window_size` of the layers' `tr_atten_tpl`, or
      one for each layer, or None in it; or None.
  """

  # Unless they are set, the text of a config omits these fields.
  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'moe_layers',
    'moe_layer_tpl',
    'num_experts',
    'num_groups',
    'min_group_size',
    'gating_func',
    'unadjusted_expert_capacity_factor',
    'ngrammer_tpls',
    'local_window_size',
  )

  model_dims: int = REQUIRED
  num_layers: int = REQUIRED
  hidden_dims: int | None = None
  num_heads: int | None = None
  dim_per_head: int | None = None
  mask_self_attention: bool | None = None
  use_cross_attention: bool | None = None
  dropout_prob: float = 0.0
  atten_dropout_prob: float | None = None
  residual_dropout_prob: float | None = None
  relu_dropout_prob: float | None = None
  residual_droppath_prob: float = 0.0
  input_dropout_prob: float = 0.0
  transformer_layer_params_tpl: Config | Sequence[Config] = sub_config_field(
    Transformer
  )
  packed_input: bool = False
  fold_padding_with_segment_mask: bool = False
  moe_layers: Sequence[int] | None = ()
  moe_layer_tpl: Config = sub_config_field(TransformerFeedForwardMoe)
  num_experts: int | None = None
  num_groups: int | None = None
  min_group_size: int | None = None
  gating_func: str | None = None
  unadjusted_expert_capacity_factor: float | None = None
  remat: bool = False
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS_FFN1
  output_norm_tpl: Config | None = None
  ngrammer_tpls: Sequence[Config | None] | None = None
  local_window_size: Sequence[Sequence[int] | int | None] | None = None

  def setup(self):
    refuse_mappings(self, 'wt')
    self._policy = policies.custom_policy(
      self.checkpoint_policy, where='StackedTransformer.checkpoint_policy'
    )
    self._check_moe_layers()
    layers = []
    for i, tpl in enumerate(self._templates()):
      name = f'x_layers_{i}'
      if self.remat:
        child_layers.keep_apart(self, name, tpl)
      fields = self._layer_fields(i, tpl)
      layers.append(child_layers.build_child(self, name, tpl, fields))
    self.x_layers = layers
    self.create_child(
      'input_dropout',
      stochastics.Dropout.config(keep_prob=1.0 - self.input_dropout_prob),
    )
    if self.output_norm_tpl is not None:
      tpl = self.output_norm_tpl
      where = 'StackedTransformer.output_norm_tpl'
      self.create_child(
        'output_norm', tpl, **agreed(where, tpl, dim=self.model_dims)
      )

  def _templates(self) -> list[Config]:
    """Returns the template of each layer."""
    tpls = self.transformer_layer_params_tpl
    if isinstance(tpls, Config):
      tpls = [tpls]
      copies = self.num_layers
    else:
      copies, rest = divmod(self.num_layers, max(1, len(tpls)))
      if rest or not copies:
        raise errors.UserError(
          f'StackedTransformer.num_layers is {self.num_layers}, but'
          f' transformer_layer_params_tpl has {len(tpls)} layers; expected as'
          ' many, or a divisor of it'
        )
      if copies == 1:
        return list(tpls)
    return [tpl.clone() for tpl in tpls for _ in range(copies)]

  def _layer_fields(self, i: int, tpl: Config) -> dict:
    """Returns the fields that this stack sets on layer `i`."""
    is_moe = i in (self.moe_layers or ())
    fields = agreed(
      'StackedTransformer.transformer_layer_params_tpl',
      tpl,
      input_dims=self.model_dims,
      hidden_dims=None if is_moe else self.hidden_dims,
      num_heads=self.num_heads,
      dim_per_head=self.dim_per_head,
      mask_self_attention=self.mask_self_attention,
      use_cross_attention=self.use_cross_attention,
      atten_dropout_prob=self._drop_prob(self.atten_dropout_prob),
      residual_dropout_prob=self._drop_prob(self.residual_dropout_prob),
      relu_dropout_prob=self._drop_prob(self.relu_dropout_prob),
      residual_droppath_prob=(
        self.residual_droppath_prob * i / self.num_layers or None
      ),
      ngrammer_tpl=layer_templates.ngrammer(self, i),
    )
    if self.local_window_size is not None:
      fields |= layer_templates.windowed(self, i, tpl)
    if is_moe:
      fields |= layer_templates.with_experts(self, tpl)
    return fields

  def _check_moe_layers(self):
    for i in self.moe_layers or ():
      if not 0 <= i < self.num_layers:
        logging.log_first_n(
          logging.WARNING,
          'StackedTransformer.moe_layers has %d; layers are 0 to %d',
          1,
          i,
          self.num_layers - 1,
        )

  def _drop_prob(self, own: float | None) -> float | None:
    return (self.dropout_prob or None) if own is None else own

  @takes_structure
  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_mask: Mask = None,
    cross_inputs: jax.Array | None = None,
    cross_paddings: jax.Array | None = None,
    cross_segment_mask: Mask = None,
    segment_pos: jax.Array | None = None,
    *,
    segment_ids: jax.Array | None = None,
    cross_segment_ids: jax.Array | None = None,
    cross_segment_pos: jax.Array | None = None,
    atten_probs: list[NestedMap] | None = None,
  ) -> jax.Array:
    """Applies all layers; returns [B, T, D].

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      segment_mask: the mask of packed examples, or any additional one; or None.
        Segment ids are cheaper.
      cross_inputs: [B, S, D], the other sequence.
      cross_paddings: [B, S], its paddings.
      cross_segment_mask: the mask of packed examples of both sequences, or
        None.
      segment_pos: [B, T], the position of each token within its example; None
        for 0, 1, ...
      segment_ids: [B, T], the packed example of each position.
      cross_segment_ids: [B, S], those of the other sequence.
      cross_segment_pos: [B, S], positions of the other sequence.
      atten_probs: gets what each layer returns of its attention weights; see
        `Transformer.__call__`.

    Raises:
      UserError: examples are packed, but segment ids and masks of either
        sequence are missing.
    """
    self._check_packed(segment_ids, segment_mask, 'segment_ids')
    mask = self._self_mask(segment_ids, paddings, segment_mask)
    kwargs = dict(segment_pos=segment_pos)
    cross_mask = None
    if cross_inputs is not None:
      self._check_packed(
        cross_segment_ids, cross_segment_mask, 'cross_segment_ids'
      )
      cross_mask = self._mask(
        segment_ids, cross_segment_ids, cross_paddings, cross_segment_mask
      )
      kwargs['cross_inputs'] = cross_inputs

    def apply(layer, x):
      own = layer_arguments.of_layer(
        layer,
        (mask, x.shape[1]),
        (cross_mask, 0 if cross_inputs is None else cross_inputs.shape[1]),
        cross_segment_pos,
        segment_ids,
      )
      outputs, probs = layer(x, paddings, **kwargs, **own)
      return outputs, None if atten_probs is None else probs

    if self.remat:
      apply = nn.remat(apply, policy=self._policy)
    hidden = [self.input_dropout(inputs)]
    for layer in self.x_layers:
      outputs, probs = apply(layer, hidden[-1])
      hidden.append(checkpoint_name(outputs, 'transformer_layer_out'))
      if atten_probs is not None:
        atten_probs.append(probs)
    return self._output(self._combined(hidden))

  def _combined(self, hidden: list[jax.Array]) -> jax.Array:
    """Combines the layers' outputs to [B, T, D].

    Args:
      hidden: the first layer's input, then each layer's output.
    """
    return hidden[-1]

  def _output(self, hidden: jax.Array) -> jax.Array:
    """Normalises and shards the output [B, T, D]."""
    if self.output_norm_tpl is not None:
      hidden = self.output_norm(hidden)
    return self.shard(hidden, self.activation_split_dims_mapping.out)

  def _check_packed(self, segment_ids, mask, name: str):
    if self.packed_input and segment_ids is None and mask is None:
      raise errors.UserError(
        f'StackedTransformer.packed_input is True, but there are no {name}'
      )

  def _self_mask(self, segment_ids, paddings, mask) -> AttentionMask:
    """Returns the mask of self-attention, as segment ids for fused kernels."""
    if mask is None and all(map(layer_arguments.takes_segments, self.x_layers)):
      return AttentionMask(self_attention_segments(segment_ids, paddings))
    return self._mask(segment_ids, segment_ids, paddings, mask)

  def _mask(
    self, segment_ids, source_segment_ids, paddings, mask=None
  ) -> AttentionMask:
    """Returns the attention mask, computed once for all layers."""
    by_segment = source_segment_ids is not None
    if by_segment and segment_ids is None:
      raise errors.UserError(
        'StackedTransformer: there are cross_segment_ids, but no segment_ids;'
        ' expected both or neither'
      )
    masks = []
    if by_segment:
      masks.append(
        attention_masks.segment_mask(segment_ids, source_segment_ids)
      )
    if paddings is not None and not (
      by_segment and self.fold_padding_with_segment_mask
    ):
      masks.append(padding_mask(paddings))
    given = AttentionMask.of(mask, where='StackedTransformer')
    return given.restricted(*masks)

  def init_states(
    self,
    target_batch_size: int,
    target_max_length: int,
    *,
    cross_inputs: jax.Array | None = None,
  ):
    """Initialises the decode states; see `Transformer.init_states`."""
    for layer in self.x_layers:
      layer.init_states(
        target_batch_size, target_max_length, cross_inputs=cross_inputs
      )

  def _layers_with_states(self) -> Sequence[base_layer.BaseLayer]:
    return self.x_layers

  @takes_structure
  def extend_step(
    self,
    inputs: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
    cross_paddings: jax.Array | None = None,
    cross_segment_mask: Mask = None,
  ) -> jax.Array:
    """Applies all layers to new positions.

    Args:
      inputs: [B, L, D]; or [B, D], a single position.
      time_step: see `Transformer.extend_step`.
      segment_pos: likewise. For a single position and without a mask, [B], it
        also hides what is before the example's first position.
      atten_mask: the `attention_mask` of `Transformer.extend_step`.
      cross_paddings: [B, S], of the other sequence.
      cross_segment_mask: [B, N, L, S], or [B, 1, S] with a single position; or
        None.

    Returns:
      [B, L, D], or [B, D] for a single position.
    """
    if inputs.ndim == 2:
      if atten_mask is None and segment_pos is not None:
        length = self.x_layers[0].decoding_sequence_length()
        atten_mask = example_mask(time_step - segment_pos, length)
      return self.extend_step(
        inputs[:, None],
        time_step=time_step,
        segment_pos=None if segment_pos is None else segment_pos[:, None],
        atten_mask=with_steps(atten_mask),
        cross_paddings=cross_paddings,
        cross_segment_mask=with_steps(cross_segment_mask),
      )[:, 0]
    cross_mask = None
    if cross_paddings is not None or cross_segment_mask is not None:
      cross_mask = self._mask(None, None, cross_paddings, cross_segment_mask)
    hidden = [self.input_dropout(inputs)]
    for layer in self.x_layers:
      outputs = layer.extend_step(
        hidden[-1],
        time_step=time_step,
        segment_pos=segment_pos,
        attention_mask=atten_mask,
        cross_attention_mask=cross_mask,
      )
      hidden.append(outputs)
    return self._output(self._combined(hidden))


class WrappedStack(ForwardsDecodeStates, base_layer.BaseLayer):
  """Base of layers that apply a stack within another layer, such as a scan."""

  @property
  def _wrapping(self) -> base_layer.BaseLayer:
    """The other layer."""
    raise NotImplementedError

  def _output(self, outputs: jax.Array) -> jax.Array:
    """Returns the output [B, T, D] from that of the other layer."""
    raise NotImplementedError

  def init_states(self, *args: int, **kwargs: jax.Array | None):
    """Initialises the decode states; see `Transformer.init_states`."""
    self._wrapping.init_states(*args, **kwargs)

  def _layers_with_states(self) -> Sequence[base_layer.BaseLayer]:
    return [self._wrapping]

  @takes_structure
  def extend_step(
    self,
    inputs: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
    cross_paddings: jax.Array | None = None,
    cross_segment_mask: Mask = None,
  ) -> jax.Array:
    """Applies all layers to new positions; see `StackedTransformer`."""
    outputs = self._wrapping.extend_step(
      inputs,
      time_step=time_step,
      segment_pos=segment_pos,
      atten_mask=atten_mask,
      cross_paddings=cross_paddings,
      cross_segment_mask=cross_segment_mask,
    )
    return self._output(outputs)


class StackedTransformerRepeated(WrappedStack):
  """A block of layers, repeated in a scan, so that it is compiled once.

  Variables are stacked along a new first dimension; see `Repeat`.

  Attributes:
    block: a stack of one or more layers. A config inside it must not be used
      outside of it too.
    x_times: number of repeats.
    checkpoint_policy: which values of a block are saved for the backward pass;
      an `AutodiffCheckpointType` or its name. Its input is always saved.
    unroll_in_decode: whether decoding unrolls the blocks, which compiles slower
      but does not copy the decode states.
    unpack_summaries: see `Repeat`.
    return_intermediate_outputs: see `Repeat`.
    collect_intermediate_outputs: see `Repeat`.
    nd_prefix_shape: see `Repeat`.
    repeat_layer_name: name of the `Repeat` layer among the variables.
    sublayer_name: name of the block below it.
    model_dims: D; this and the following fields are set on the block, unless
      None.
    mask_self_attention: whether self-attention is causal.
    use_cross_attention: whether the layers attend to another sequence.
    packed_input: whether examples are packed, so that segment ids are required.
    ngrammer_tpls: see `StackedTransformer`.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'nd_prefix_shape',
    'ngrammer_tpls',
  )

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the stacked weights.

    Attributes:
      block: one entry: the mesh axis (or axes) over which the dimension of the
        blocks is sharded, or None. The block shards the other dimensions.
    """

    block: SplitDimsMapping = None

  block: Config = sub_config_field(StackedTransformer)
  x_times: int = REQUIRED
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING
  unroll_in_decode: bool = True
  unpack_summaries: bool = True
  return_intermediate_outputs: bool = False
  collect_intermediate_outputs: bool = False
  nd_prefix_shape: Sequence[int] | None = None
  repeat_layer_name: str = 'repeat'
  sublayer_name: str = 'sub'
  model_dims: int | None = None
  mask_self_attention: bool | None = None
  use_cross_attention: bool | None = None
  packed_input: bool | None = None
  ngrammer_tpls: Sequence[Config | None] | None = None

  def setup(self):
    refuse_mappings(self, 'wt')
    fields = agreed(
      'StackedTransformerRepeated.block',
      self.block,
      model_dims=self.model_dims,
      mask_self_attention=self.mask_self_attention,
      use_cross_attention=self.use_cross_attention,
      packed_input=self.packed_input,
      ngrammer_tpls=self.ngrammer_tpls,
    )
    if getattr(self.block, 'residual_droppath_prob', 0.0):
      raise errors.UserError(
        'StackedTransformerRepeated.block.residual_droppath_prob differs'
        ' between layers, but repeated layers are identical; expected it in'
        ' block.transformer_layer_params_tpl, as one rate for all'
      )
    repeat = repeats.Repeat.config(
      # A shallow copy: templates inside keep their identity.
      sub_tpl=copy.copy(self.block).set(**fields),
      x_times=self.x_times,
      checkpoint_policy=self.checkpoint_policy,
      unpack_summaries=self.unpack_summaries,
      unroll_in_decode=self.unroll_in_decode,
      sublayer_name=self.sublayer_name,
      return_intermediate_outputs=self.return_intermediate_outputs,
      collect_intermediate_outputs=self.collect_intermediate_outputs,
      nd_prefix_shape=self.nd_prefix_shape,
    )
    repeat.weight_split_dims_mapping.sub = self.weight_split_dims_mapping.block
    self.create_child(self.repeat_layer_name, repeat)

  @property
  def _wrapping(self) -> repeats.Repeat:
    return getattr(self, self.repeat_layer_name)

  @takes_structure
  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_mask: Mask = None,
    cross_inputs: jax.Array | None = None,
    cross_paddings: jax.Array | None = None,
    cross_segment_mask: Mask = None,
    segment_pos: jax.Array | None = None,
    **segments: jax.Array | None,
  ) -> jax.Array:
    """Applies all blocks; see `StackedTransformer.__call__`.

    Returns:
      [B, T, D]; or all blocks' outputs [x_times, B, T, D], if
      `return_intermediate_outputs`.
    """
    outputs = self._wrapping(
      inputs,
      paddings,
      segment_mask=_once(segment_mask),
      cross_inputs=cross_inputs,
      cross_paddings=cross_paddings,
      cross_segment_mask=_once(cross_segment_mask),
      segment_pos=segment_pos,
      **segments,
    )
    return (
      outputs if self.return_intermediate_outputs else self._output(outputs)
    )

  def _output(self, outputs: jax.Array) -> jax.Array:
    return self.shard(outputs, self.activation_split_dims_mapping.out)


def _once(mask: Mask) -> AttentionMask | None:
  """Converts an additive mask before the loop, not in each of its rounds."""
  if mask is None:
    return None
  return AttentionMask.of(mask, where='StackedTransformerRepeated')
