"""The feed-forward block of a Transformer, as a mixture of experts.

Shapes: B batch, T time, M (or D) model dims, H dims of the inner layer, E
experts, G groups of tokens, S tokens of a group, C slots that an expert has for
a group.
"""

import math

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import activations, stochastics
from pax_compat.layers.paddings import apply_paddings
from pax_compat.layers.template_fields import agreed, keep_prob, refuse_mappings
from pax_compat.layers.transformers import expert_gating
from pax_compat.layers.transformers.transformer_residuals import ResidualBlock

_GATING_FUNCS = ('top2', 'expert_choice', 'expert_choice_v2', 'dense_top2')
_EMBEDDING_LEVELS = ('token', 'sentence')


class TransformerFeedForwardMoe(ResidualBlock):
  """A feed-forward block for each expert, and a gate that chooses experts.

  It takes the place of a `TransformerFeedForward`. All tokens of a batch are
  cut into groups, in which they compete for the experts; see `expert_gating`.
  What it adds to the loss goes by `add_aux_loss`.

  Attributes:
    hidden_dims: H.
    apply_padding_first: whether padded positions are zeroed in the input, too;
      in what is added they always are.
    activation_tpl: activation of the inner layer.
    use_gated_activation: whether the inner layer is the product of a projection
      without the activation and another one with it.
    combine_gated_weights: whether those two are one weight [E, M, 2 H], first
      the one with the activation.
    relu_dropout_tpl: dropout of the inner layer.
    relu_dropout_prob: probability of dropping an element there.
    residual_dropout_tpl: dropout of what the residual adds.
    add_skip_connection: whether there is a residual.
    residual_weight: factor of what the residual adds.
    gating_func: 'top2', each token goes to its two best experts;
      'expert_choice', each expert picks tokens, even padding;
      'expert_choice_v2', each picks among those that are no padding;
      'dense_top2', all experts compute all tokens and the two best ones count,
      which needs no slots, and suits decoding.
    num_experts: E.
    num_groups: G. It is required, and None is a value: it makes each row of a
      batch a group. An expert has slots in each group, so the choice matters.
    min_group_size: the least S: where groups would be smaller, there are as few
      as gives them that size. None lets them be as small as they are.
    expert_capacity_dim: C, at least; 0 or None leaves it to the factor, as the
      first version of expert choice does in any case.
    unadjusted_expert_capacity_factor: C times E over S, at least; 0 leaves C to
      `expert_capacity_dim`.
    second_expert_policy: how top-2 gating comes to a second expert; see
      `expert_gating.top2_gating`, as for the next two.
    second_expert_threshold: the gate from which on the policy 'random' always
      takes it.
    legacy_mtf_behavior: whether gates are not made to sum to 1 again where an
      expert had no slot.
    gating_logit_cap: the gate's logits are bent to within this value; 0 leaves
      them.
    moe_gating_embedding_level: what a token is sent by: 'token', by itself;
      'sentence', by the mean over its packed example.
    moe_load_balance_loss_weight: factor of the loss that spreads the tokens
      over the experts, which is 1 where they are spread evenly.
    internal_gshard_variance_scaling_fan_in_init: whether weights start out with
      a variance of 1 over their input's dims, uniformly distributed; else by
      `params_init`.
    explicit_fan_in_fan_out_axes: whether `params_init` sees experts' weights as
      the matrices that they are, and not the experts as part of their fans.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """How the weights are split over the mesh.

    Attributes:
      me: of the gate's weight [M, E].
      emh: of the experts' weights into the inner layer [E, M, H].
      ehm: of those out of it [E, H, M].
    """

    me: SplitDimsMapping = None
    emh: SplitDimsMapping = None
    ehm: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """How what is computed is split over the mesh.

    Attributes:
      gsm: of the tokens, before and after [G, S, M].
      gs: of the paddings [G, S].
      gsec: of what sends tokens to slots, and back [G, S, E, C].
      gecs: of the tokens that experts picked [G, E, C, S].
      gec: of their gates [G, E, C].
      egcm: of the experts' inputs, and outputs [E, G, C, M].
      egch: of their inner layer [E, G, C, H].
      gecm: of their outputs on the way back [G, E, C, M].
    """

    gsm: SplitDimsMapping = None
    gs: SplitDimsMapping = None
    gsec: SplitDimsMapping = None
    gecs: SplitDimsMapping = None
    gec: SplitDimsMapping = None
    egcm: SplitDimsMapping = None
    egch: SplitDimsMapping = None
    gecm: SplitDimsMapping = None

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

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self._check()
    self._create_norms('', self.input_dims)
    self.create_child('activation', self.activation_tpl)
    where = 'TransformerFeedForwardMoe.relu_dropout_tpl'
    drop = keep_prob(self.relu_dropout_prob)
    self.create_child(
      'relu_dropout',
      self.relu_dropout_tpl,
      **agreed(where, self.relu_dropout_tpl, keep_prob=drop),
    )
    self._create_dropouts(
      'residual_dropout_tpl', self.residual_dropout_tpl, self.residual_weight
    )
    self._create_weights()

  def _check(self):
    for field, known in (
      ('gating_func', _GATING_FUNCS),
      ('moe_gating_embedding_level', _EMBEDDING_LEVELS),
      ('second_expert_policy', expert_gating.SECOND_EXPERT_POLICIES),
    ):
      value = getattr(self, field)
      if value not in known:
        raise errors.UserError(
          f'TransformerFeedForwardMoe.{field} is {value!r}'
          + errors.did_you_mean(value, known)
        )
    for field in ('num_experts', 'num_groups'):
      value = getattr(self, field)
      if value is not None and value < 1:
        raise errors.UserError(
          f'TransformerFeedForwardMoe.{field} is {value}; expected 1 or more'
        )
    if self.combine_gated_weights and not self.use_gated_activation:
      raise errors.UserError(
        'TransformerFeedForwardMoe.combine_gated_weights is on, but'
        ' use_gated_activation is off'
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
        ' unadjusted_expert_capacity_factor alone says how many slots there are'
      )
    if self.residual_droppath_prob and not self.add_skip_connection:
      raise errors.UserError(
        'TransformerFeedForwardMoe.residual_droppath_prob is'
        f' {self.residual_droppath_prob}, but add_skip_connection is off'
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

  def _create_weight(self, name: str, shape: list[int], mapping):
    how = {}
    if self.internal_gshard_variance_scaling_fan_in_init:
      how['init'] = WeightInit.Uniform(math.sqrt(3.0 / shape[-2]))
    elif self.explicit_fan_in_fan_out_axes:
      how.update(fan_in_axes=[-2], fan_out_axes=[-1])
    weight = WeightHParams(shape, tensor_split_dims_mapping=mapping, **how)
    self.create_variable(name, weight)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    *,
    segment_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the block.

    Args:
      inputs: [B, T, M].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      segment_ids: [B, T], the packed example that each position belongs to, 0
        for padding; None if a row is one example. Only sentences' means go by
        it.

    Returns:
      [B, T, M].

    Raises:
      UserError: the tokens cannot be cut into as many groups.
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
    """Returns what the experts of each token make of it, [B, T, M]."""
    split = self.activation_split_dims_mapping
    sent_by = inputs
    if self.moe_gating_embedding_level == 'sentence':
      sent_by = _means(inputs, paddings, segment_ids)
    groups = self._groups(*inputs.shape[:2])

    def grouped(x, mapping):
      return self.shard(x.reshape([groups, -1, *x.shape[2:]]), mapping)

    tokens = grouped(inputs, split.gsm)
    if sent_by is not inputs:
      sent_by = grouped(sent_by, split.gsm)
    else:
      sent_by = tokens
    if paddings is not None:
      paddings = grouped(paddings, split.gs)
    logits = jnp.einsum(
      'gsm,me->gse',
      sent_by,
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
    """Returns G, into which so many rows of tokens are cut."""
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
    """Returns the two best experts' outputs [G, S, M]; all compute them."""
    inner = self._inner('gsm,emh->egsh', tokens, None)
    outputs = jnp.einsum('egsh,ehm->egsm', inner, self.theta.wo_0)
    gates = expert_gating.dense_top2_gates(logits).astype(outputs.dtype)
    return jnp.einsum('egsm,gse->gsm', outputs, gates)

  def _chosen_experts(self, tokens, logits, paddings) -> jax.Array:
    """Returns the experts' outputs [G, S, M], by way of their slots."""
    split = self.activation_split_dims_mapping
    gating = self._gating(logits, paddings)
    aux_loss = gating.aux_loss * self.moe_load_balance_loss_weight
    self.add_aux_loss('aux_moe_load_balance_loss', aux_loss)
    self.add_summary('aux_moe_load_balance_loss', aux_loss)
    for name, value in gating.summaries.items():
      self.add_summary(name, value)
    dispatch = self.shard(gating.dispatch.astype(tokens.dtype), split.gsec)
    combine = self.shard(gating.combine.astype(tokens.dtype), split.gsec)
    inputs = jnp.einsum('gsec,gsm->egcm', dispatch, tokens)
    inputs = self.shard(inputs, split.egcm)
    inner = self._inner('egcm,emh->egch', inputs, split.egch)
    outputs = jnp.einsum('egch,ehm->egcm', inner, self.theta.wo_0)
    outputs = jnp.swapaxes(self.shard(outputs, split.egcm), 0, 1)
    outputs = self.shard(outputs, split.gecm)
    return jnp.einsum('gecm,gsec->gsm', outputs, combine)

  def _inner(self, equation: str, inputs, mapping) -> jax.Array:
    """Returns the experts' inner layers of their inputs."""
    hidden = jnp.einsum(equation, inputs, self.theta.wi_0)
    hidden = self.shard(hidden, mapping)
    if self.combine_gated_weights:
      gate, hidden = jnp.split(hidden, 2, axis=-1)
      hidden = self.activation(gate) * hidden
    elif self.use_gated_activation:
      gate = jnp.einsum(equation, inputs, self.theta.wi_gate_0)
      hidden = self.activation(self.shard(gate, mapping)) * hidden
    else:
      hidden = self.activation(hidden)
    return self.relu_dropout(hidden)

  def _gating(self, logits, paddings) -> expert_gating.Gating:
    """Returns which tokens are in which slots."""
    factor = self.unadjusted_expert_capacity_factor
    if self.gating_func == 'expert_choice':
      split = self.activation_split_dims_mapping
      gate, picked = expert_gating.expert_choice(logits, capacity_factor=factor)
      picked = self.shard(picked, split.gecs)
      gate = self.shard(gate, split.gec)
      return expert_gating.Gating(
        combine=jnp.einsum('gec,gecs->gsec', gate, picked),
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
  """Returns for each token the mean over its example, [B, T, M].

  Args:
    inputs: [B, T, M].
    paddings: [B, T]; they are in no mean, and have a mean of 0.
    segment_ids: [B, T], 0 for padding; None makes a row one example.
  """
  if segment_ids is None:
    segment_ids = jnp.ones(inputs.shape[:2], int)
  counts = segment_ids > 0
  if paddings is not None:
    counts &= paddings == 0
  same = segment_ids[:, :, None] == segment_ids[:, None]
  same = (same & counts[:, :, None] & counts[:, None]).astype(inputs.dtype)
  total = jnp.einsum('bts,bsm->btm', same, inputs)
  return total / jnp.maximum(jnp.sum(same, -1, keepdims=True), 1)
