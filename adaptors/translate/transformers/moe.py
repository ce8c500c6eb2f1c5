"""Translators of Lingvo's mixtures of experts, except GShard's.

Shapes: D model dims.
"""

from adaptors.translate import activations, registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import sublayers
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import Concat, Identity, Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.transformers.transformer_moe import (
  TransformerFeedForwardMoe,
)


@translates('lingvo.core.layers_with_attention.TransformerShardedMoeLayer')
def sharded_moe(view: ParamsView) -> Translated | None:
  """Returns a mixture that replaces a feed-forward layer.

  It has no auxiliary loss, as in Lingvo's tasks without `aux_loss_weight`.
  """
  on_one_device(view)
  dims, hidden = view.get('input_dim'), view.get('hidden_dim')
  view.require('output_dim', dims)
  view.require('add_skip_connection', True)
  norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  keep_inner, keep = (
    registry.translate(
      view.child('dropout_tpl', keep_prob=1.0 - view.get(drop))
    )
    for drop in ('relu_dropout_prob', 'residual_dropout_prob')
  )
  gating = _gating(view)
  droppath = view.get('residual_droppath_prob')
  weight = 1.0 if droppath else view.get('residual_weight')
  if droppath:
    view.ignore('residual_droppath_prob is set', 'residual_weight')
  gated = view.get('use_glu')
  fields = dict(
    activation_tpl=activations.layer(view, 'activation'),
    norm_policy=sublayers.norm_policy(view),
  )
  experts, shards = view.get('num_experts'), view.get('expert_weight_shards')
  if None in (norm, keep_inner, keep, gating):
    return None
  config = TransformerFeedForwardMoe.config(
    input_dims=dims,
    hidden_dims=hidden,
    ln_tpl=norm.config,
    use_gated_activation=gated,
    combine_gated_weights=gated,
    relu_dropout_prob=1.0 - keep_inner,
    residual_dropout_prob=1.0 - keep,
    residual_droppath_prob=float(droppath),
    residual_weight=weight,
    num_experts=experts,
    moe_load_balance_loss_weight=0.0,
    **gating,
    **fields,
  )
  return Translated(
    config, sublayers.norm_variables(norm) + _weights(dims, shards)
  )


def _gating(view: ParamsView) -> dict | None:
  """Returns the fields of gating and capacity; None after an issue."""
  name, capacity = view.get('gating_func'), view.get('expert_capacity_dim') or 0
  factor = view.get('expert_capacity_factor')
  groups, least = view.get('num_groups'), view.get('min_group_size')
  policy = view.get('second_expert_policy')
  if view.get('disable_grouping'):
    view.ignore('disable_grouping is on', 'num_groups', 'min_group_size')
    groups = least = None
  fields = dict(num_groups=groups, min_group_size=least)
  if name == 'token_shuffle':
    # An expert's capacity is the number of tokens, up to rounding.
    view.ignore(
      'the size of a group sets it',
      'expert_capacity_dim',
      'expert_capacity_factor',
    )
    view.ignore('experts choose tokens', 'second_expert_policy')
    experts = view.get('num_experts')
    return fields | dict(
      gating_func='expert_choice',
      unadjusted_expert_capacity_factor=float(experts),
    )
  if name != 'top_2':
    view.require('gating_func', 'top_2', 'token_shuffle')
    return None
  if capacity:
    view.ignore('expert_capacity_dim is set', 'expert_capacity_factor')
  return fields | dict(
    expert_capacity_dim=capacity,
    # Each token goes to two experts.
    unadjusted_expert_capacity_factor=0.0 if capacity else 2.0 * factor,
    second_expert_policy=policy,
  )


def _weights(dims: int, shards: int) -> VariableMap:
  """Returns the variables of gate and experts.

  Args:
    dims: D.
    shards: the number of variables that Lingvo splits a weight into, along D.
  """

  def joined(name: str, axis: int) -> Variable:
    parts = tuple(f'{name}_{i}' for i in range(shards))
    each = (dims // shards,) * shards
    transform = Identity() if shards == 1 else Concat(axis, each, dims)
    return Variable(parts, f'{name}_0', transform)

  return VariableMap(
    [Variable(('gate',), 'gate'), joined('wi', 1), joined('wo', 2)]
  )


def _refused(view: ParamsView, why: str):
  """Adds one issue with a class, and none with its fields."""
  for name, _ in view.params.IterParams():
    view.get(name)
  view.issue('', why)


@translates('lingvo.core.layers_with_attention.MoEFeedforwardLayer')
def moe_feed_forward(view: ParamsView):
  """Refused: only conformers use it, which are not translated."""
  _refused(
    view,
    'mixtures of experts that MoEBuilder makes for a single layer are not'
    ' translated, only TransformerShardedMoeLayer and those of UniTransformer'
    ' and BertTransformer',
  )


@translates('lingvo.core.layers_with_attention.HybridFeedforwardLayer')
def hybrid_feed_forward(view: ParamsView):
  """Refused: which layer computes is only known at run time."""
  _refused(
    view,
    'a symbol, which has a value only while Lingvo builds its graph, selects'
    ' the layer that computes; set that layer itself',
  )
