"""The feed-forward block of a Transformer as a mixture of experts.

Shapes: B batch, T time, M (or D) model dims, H hidden dims, E experts, G groups
of tokens, S tokens of a group, C slots of an expert per group (its capacity).
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core import flop_scopes
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import activations, base_ops, stochastics
from pax_compat.layers.paddings import apply_paddings
from pax_compat.layers.template_fields import refuse_mappings
from pax_compat.layers.transformers import expert_gating
from pax_compat.layers.transformers.transformer_residuals import (
  FeedForwardBlock,
)

_GATING_FUNCS = ('top2', 'expert_choice', 'expert_choice_v2', 'dense_top2')
_EMBEDDING_LEVELS = ('token', 'sentence')


class TransformerFeedForwardMoe(FeedForwardBlock):
  """A gated mixture of feed-forward experts.

  It replaces a `TransformerFeedForward`. All tokens of a batch are split into
  groups, within which they are dispatched to experts; see `expert_gating`. The
  load-balancing loss is added by `add_aux_loss`.

  Attributes:
    hidden_dims: H.
    apply_padding_first: whether padded positions are zeroed in the input too;
      in the output they always are.
    activation_tpl: activation of the hidden layer.
    use_gated_activation: whether the hidden layer is a gated linear unit: the
      product of a linear projection and an activated one.
    combine_gated_weights: whether those two are one weight [E, M, 2 H], the
      activated one first.
    relu_dropout_tpl: dropout of the hidden layer.
    relu_dropout_prob: its probability.
    residual_dropout_tpl: dropout of the branch's output.
    add_skip_connection: whether there is a residual connection.
    residual_weight: factor of the branch's output.
    gating_func: 'top2', each token chooses two experts; 'expert_choice', each
      expert chooses tokens, padding included; 'expert_choice_v2', likewise
      without padding; 'dense_top2', all experts compute all tokens, and the two
      best are combined, without a capacity, which suits decoding.
    num_experts: E.
    num_groups: G. It is required, and None is a value: one group per row of the
      batch.
    min_group_size: minimum of S: G is reduced if groups would be smaller; None
      for no minimum.
    expert_capacity_dim: minimum of C; 0 or None for no minimum. Not for
      'expert_choice'.
    unadjusted_expert_capacity_factor: minimum of C * E / S; 0 for no minimum.
    second_expert_policy: see `expert_gating.top2_gating`, as for the next two.
    second_expert_threshold: gates from which on the policy 'random' always uses
      the second expert.
    legacy_mtf_behavior: whether gates are normalised before slots are assigned.
    gating_logit_cap: soft cap of the gate's logits; 0 for no cap.
    moe_gating_embedding_level: the gate's input: 'token', each token;
      'sentence', the mean over its packed example.
    moe_load_balance_loss_weight: factor of the load-balancing loss, which is 1
      for equal loads.
    internal_gshard_variance_scaling_fan_in_init: whether the initializer of
      weights is uniform with variance 1 / fan_in; else it is `params_init`.
    explicit_fan_in_fan_out_axes: whether `params_init` computes fans of an
      expert's matrix, without the dimension of experts.
    einsum_tpl: products that dispatch and combine tokens, and that of the
      output projection; see `base_ops`. 'dense_top2' does not use it.
    einsum_gated_tpl: the two products of a gated hidden layer.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights.

    Attributes:
      me: of the gate [M, E].
      emh: of the experts' projections to the hidden layer [E, M, H].
      ehm: of their output projections [E, H, M].
    """

    me: SplitDimsMapping = None
    emh: SplitDimsMapping = None
    ehm: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations.

    Attributes:
      gsm: of the inputs and outputs [G, S, M].
      gs: of the paddings [G, S].
      gsec: of the dispatch and combine tensors [G, S, E, C].
      gecs: of the tokens that experts choose [G, E, C, S].
      gec: of their gates [G, E, C].
      egcm: of the experts' inputs and outputs [E, G, C, M].
      egch: of their hidden layer [E, G, C, H].
      gecm: of their transposed outputs [G, E, C, M].
    """

    gsm: SplitDimsMapping = None
    gs: SplitDimsMapping = None
    gsec: SplitDimsMapping = None
    gecs: SplitDimsMapping = None
    gec: SplitDimsMapping = None
    egcm: SplitDimsMapping = None
    egch: SplitDimsMapping = None
    gecm: SplitDimsMapping = None

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *FeedForwardBlock.SILENT_UNLESS_SET,
    'einsum_tpl',
    'einsum_gated_tpl',
  )

  hidden_dims: int = REQUIRED
  apply_padding_first: bool = False
  activation_tpl: Config = sub_config_field(activations.ReLU)
  use_gated_activation: bool = False
  combine_gated_weights: bool = False
  relu_dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  relu_dropout_prob: float = 0.0
  residual_dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  add_skip_connection: bool = True
  residual_weight: float = 1.0
  gating_func: str = 'top2'
  num_experts: int = REQUIRED
  num_groups: int | None = REQUIRED
  min_group_size: int | None = None
  expert_capacity_dim: int | None = 0
  unadjusted_expert_capacity_factor: float | None = 2.0
  second_expert_policy: str = 'all'
  second_expert_threshold: float = 0.0
  legacy_mtf_behavior: bool = True
  gating_logit_cap: float = 0.0
  moe_gating_embedding_level: str = 'token'
  moe_load_balance_loss_weight: float = 1.0
  internal_gshard_variance_scaling_fan_in_init: bool = True
  explicit_fan_in_fan_out_axes: bool = False
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)
  einsum_gated_tpl: Config = sub_config_field(base_ops.EinsumGatedOp)

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self._check()
    self._create_norms('', self.input_dims)
    self.create_child('activation', self.activation_tpl)
    self._create_all_dropouts()
    self._create_weights()
    self._create_products()

  def _check(self):
    for field, known in (
      ('gating_func', _GATING_FUNCS),
      ('moe_gating_embedding_level', _EMBEDDING_LEVELS),
      ('second_expert_policy', expert_gating.SECOND_EXPERT_POLICIES),
    ):
      errors.check_choice(self, field, known)
    errors.check_least(self, 1, 'num_experts', 'num_groups')
    if self.combine_gated_weights and not self.use_gated_activation:
      raise errors.UserError(
        'TransformerFeedForwardMoe.combine_gated_weights is True, but'
        ' use_gated_activation is False'
      )
    if self.gating_func != 'top2' and self.second_expert_policy != 'all':
      raise errors.UserError(
        'TransformerFeedForwardMoe.second_expert_policy is'
        f" {self.second_expert_policy!r}, which is for the gating_func 'top2';"
        f' this one is {self.gating_func!r}'
      )
    if self.gating_func == 'expert_choice' and self.expert_capacity_dim:
      raise errors.UserError(
        'TransformerFeedForwardMoe.expert_capacity_dim is'
        f" {self.expert_capacity_dim}, but with the gating_func 'expert_choice'"
        ' unadjusted_expert_capacity_factor alone sets the capacity'
      )

  def _create_weights(self):
    split = self.weight_split_dims_mapping
    m, e, h = self.input_dims, self.num_experts, self.hidden_dims
    self._create_weight('gate', [m, e], split.me)
    if self.use_gated_activation and not self.combine_gated_weights:
      self._create_weight('wi_gate_0', [e, m, h], split.emh)
    width = 2 * h if self.combine_gated_weights else h
    self._create_weight('wi_0', [e, m, width], split.emh)
    self._create_weight('wo_0', [e, h, m], split.ehm)

  def _create_products(self):
    for name in ('dispatch_einsum', 'ffn2_einsum', 'combine_einsum'):
      self.create_child(name, self.einsum_tpl.clone())
    if self.use_gated_activation:
      self.create_child('gated_ffn1_einsum', self.einsum_gated_tpl.clone())

  def _create_weight(self, name: str, shape: list[int], mapping):
    settings = {}
    if self.internal_gshard_variance_scaling_fan_in_init:
      settings['init'] = WeightInit.Uniform(math.sqrt(3.0 / shape[-2]))
    elif self.explicit_fan_in_fan_out_axes:
      settings.update(fan_in_axes=[-2], fan_out_axes=[-1])
    weight = WeightHParams(shape, tensor_split_dims_mapping=mapping, **settings)
    self.create_variable(name, weight)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the block; returns [B, T, M].

    Args:
      inputs: [B, T, M].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      segment_ids: [B, T], the packed example of each position, 0 for padding;
        None if a row is one example. Only sentence-level gating uses them.

    Raises:
      UserError: the number of tokens is not a multiple of the groups.
    """
    if self.apply_padding_first and paddings is not None:
      inputs = apply_paddings(inputs, paddings)

    def compute(x):
      y = self._mix(x, paddings, segment_ids)
      return y if paddings is None else apply_paddings(y, paddings)

    return self._add_residual(
      inputs,
      compute,
      skip=self.add_skip_connection,
      residual_weight=self.residual_weight,
    )

  def _mix(self, inputs, paddings, segment_ids) -> jax.Array:
    """Returns the combined outputs of each token's experts, [B, T, M]."""
    split = self.activation_split_dims_mapping
    gate_inputs = inputs
    if self.moe_gating_embedding_level == 'sentence':
      gate_inputs = _means(inputs, paddings, segment_ids)
    groups = self._groups(*inputs.shape[:2])

    def grouped(x, mapping):
      return self.shard(x.reshape([groups, -1, *x.shape[2:]]), mapping)

    tokens = grouped(inputs, split.gsm)
    if gate_inputs is not inputs:
      gate_inputs = grouped(gate_inputs, split.gsm)
    else:
      gate_inputs = tokens
    if paddings is not None:
      paddings = grouped(paddings, split.gs)
    logits = jnp.einsum(
      'gsm,me->gse',
      gate_inputs,
      self.theta.gate,
      preferred_element_type=jnp.float32,
    )
    logits = expert_gating.cap_logits(logits, self.gating_logit_cap)
    if self.gating_func == 'dense_top2':
      mixed = self._all_experts(tokens, logits)
    else:
      mixed = self._chosen_experts(tokens, logits, paddings)
    return self.shard(mixed, split.gsm).reshape(inputs.shape)

  def _groups(self, rows: int, length: int) -> int:
    """Returns G for a batch of `rows` by `length` tokens."""
    tokens = rows * length
    groups = rows if self.num_groups is None else self.num_groups
    if self.min_group_size and tokens / groups < self.min_group_size:
      groups = -(-tokens // self.min_group_size)
    if tokens % groups:
      raise errors.UserError(
        f'TransformerFeedForwardMoe.num_groups makes {groups} groups, but there'
        f' are {tokens} tokens (batch times time); expected groups of one size'
      )
    return groups

  def _all_experts(self, tokens, logits) -> jax.Array:
    """Returns the outputs [G, S, M] of 'dense_top2', whose loss is 0."""
    self._add_balance_loss(jnp.zeros([]))
    hidden = self._hidden('gsm,emh->egsh', tokens, None)
    outputs = jnp.einsum('egsh,ehm->egsm', hidden, self.theta.wo_0)
    gates = expert_gating.dense_top2_gates(logits).astype(outputs.dtype)
    return jnp.einsum('egsm,gse->gsm', outputs, gates)

  def _add_balance_loss(self, loss: jax.Array):
    loss = loss * self.moe_load_balance_loss_weight
    self.add_aux_loss('aux_moe_load_balance_loss', loss)
    self.add_summary('aux_moe_load_balance_loss', loss)

  def _chosen_experts(self, tokens, logits, paddings) -> jax.Array:
    """Returns the outputs [G, S, M] of gating with slots."""
    split = self.activation_split_dims_mapping
    gating = self._gating(logits, paddings)
    self._add_balance_loss(gating.aux_loss)
    for name, value in gating.summaries.items():
      self.add_summary(name, value)
    dispatch = self.shard(gating.dispatch.astype(tokens.dtype), split.gsec)
    combine = self.shard(gating.combine.astype(tokens.dtype), split.gsec)
    with flop_scopes.selection():
      inputs = self.dispatch_einsum('gsec,gsm->egcm', dispatch, tokens)
    inputs = self.shard(inputs, split.egcm)
    hidden = self._hidden('egcm,emh->egch', inputs, split.egch)
    outputs = self.ffn2_einsum('egch,ehm->egcm', hidden, self.theta.wo_0)
    outputs = jnp.swapaxes(self.shard(outputs, split.egcm), 0, 1)
    outputs = self.shard(outputs, split.gecm)
    with flop_scopes.selection():
      return self.combine_einsum('gecm,gsec->gsm', outputs, combine)

  def _hidden(self, equation: str, inputs, mapping) -> jax.Array:
    """Returns the experts' hidden layers."""
    weight = self.theta.wi_0
    if self.use_gated_activation and not self.combine_gated_weights:
      hidden, gate = self.gated_ffn1_einsum(
        equation, inputs, weight, self.theta.wi_gate_0
      )
      gate = self.activation(self.shard(gate, mapping))
      return self.relu_dropout(gate * self.shard(hidden, mapping))
    hidden = self.shard(jnp.einsum(equation, inputs, weight), mapping)
    if self.combine_gated_weights:
      gate, hidden = jnp.split(hidden, 2, axis=-1)
      hidden = self.activation(gate) * hidden
    else:
      hidden = self.activation(hidden)
    return self.relu_dropout(hidden)

  def _gating(self, logits, paddings) -> expert_gating.Gating:
    """Returns the dispatch of tokens to slots."""
    factor = self.unadjusted_expert_capacity_factor
    if self.gating_func == 'expert_choice':
      split = self.activation_split_dims_mapping
      gate, picked = expert_gating.expert_choice(logits, capacity_factor=factor)
      picked = self.shard(picked, split.gecs)
      gate = self.shard(gate, split.gec)
      with flop_scopes.selection():
        combine = jnp.einsum('gec,gecs->gsec', gate, picked)
      return expert_gating.Gating(
        combine=combine,
        dispatch=jnp.einsum('gecs->gsec', picked),
        aux_loss=jnp.zeros([]),
        summaries={},
      )
    capacity = expert_gating.expert_capacity(
      logits.shape[1],
      self.num_experts,
      capacity_dim=self.expert_capacity_dim,
      capacity_factor=factor,
    )
    if self.gating_func == 'expert_choice_v2':
      return expert_gating.expert_choice_v2(logits, paddings, capacity=capacity)
    draws = self.second_expert_policy != 'all'
    return expert_gating.top2_gating(
      logits,
      paddings,
      capacity=capacity,
      second_expert_policy=self.second_expert_policy,
      second_expert_threshold=self.second_expert_threshold,
      legacy_mtf_behavior=self.legacy_mtf_behavior,
      key=self.next_prng_key() if draws else None,
    )


def _means(inputs, paddings, segment_ids) -> jax.Array:
  """Returns for each token the mean over its example, [B, T, M], 0 for padding.

  Args:
    inputs: [B, T, M].
    paddings: [B, T], excluded from the means; or None.
    segment_ids: [B, T], 0 for padding; None if a row is one example.
  """
  if segment_ids is None:
    segment_ids = jnp.ones(inputs.shape[:2], int)
  is_token = segment_ids > 0
  if paddings is not None:
    is_token &= paddings == 0
  same = segment_ids[:, :, None] == segment_ids[:, None]
  same = (same & is_token[:, :, None] & is_token[:, None]).astype(inputs.dtype)
  total = jnp.einsum('bts,bsm->btm', same, inputs)
  return total / jnp.maximum(jnp.sum(same, -1, keepdims=True), 1)
