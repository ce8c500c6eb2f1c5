"""Translates the mixtures of experts of GShard's builders.

In the names of splits a is the slots of all groups together; the others are as
in `gshard_mesh`.
"""

from typing import Any

from adaptors.translate import activations
from adaptors.translate.gshard import gshard_mesh
from adaptors.translate.registry import Translated
from adaptors.translate.variables import Variable, VariableMap
from pax_compat.layers import stochastics
from pax_compat.layers.transformers.transformer_moe import (
  TransformerFeedForwardMoe,
)

_GATING_FUNCS = {
  'top_2': 'top2',
  'token_shuffle': 'expert_choice',
  'token_shuffle_v2': 'expert_choice_v2',
}


def mixture(
  builder: Any, *, is_gated: bool, loss_weight: float
) -> Translated | None:
  """Returns the translation of `builder.MoE` or `builder.MoEGated`.

  Args:
    builder: a `gshard_builder.Builder`.
    is_gated: whether it is `MoEGated`.
    loss_weight: the task's factor of the auxiliary loss.

  Returns:
    A `TransformerFeedForwardMoe` without norm and residual, and its variables
    by their paths in the graph of the mixture; None after an issue.
  """
  view = builder.view
  gating = _gating(builder, is_gated)
  if gating is None:
    return None
  view.ignore(
    'gates and slots are computed in float32',
    'gating_logits_dtype',
    'mask_dtype',
  )
  note = (
    f'{view.path}: at evaluation, too, tokens are dispatched in num_groups'
    " groups, as Lingvo does on a TPU; on a CPU Lingvo's groups are the rows of"
    ' the batch'
  )
  if note not in view.report.notes:
    view.report.notes.append(note)
  if is_gated:
    view.ignore('gated experts always use GELU', 'moe_activation')
    inner = activations.GSHARD_LAYERS['gelu']()
  else:
    inner = activations.layer(view, 'moe_activation')
  config = TransformerFeedForwardMoe.config(
    hidden_dims=builder.moe_hidden_dim,
    num_experts=builder.e_dim,
    num_groups=builder.num_groups or builder.num_devices or 1,
    apply_padding_first=True,
    activation_tpl=inner,
    use_gated_activation=is_gated,
    moe_load_balance_loss_weight=float(loss_weight),
    **gating,
  )
  if builder.moe_dropout_rate:
    # In Lingvo it is active at evaluation too.
    config.relu_dropout_tpl = stochastics.Dropout.config(
      keep_prob=1.0 - builder.moe_dropout_rate, dropout_at_eval=True
    )
  _split(builder, config)
  names = {'wi': 'wi_0', 'wo': 'wo_0'}
  if is_gated:
    names = {'wi_0': 'wi_gate_0', 'wi_1': 'wi_0', 'wo': 'wo_0'}
  variables = [Variable((f'moe.{t}',), jax) for t, jax in names.items()]
  variables.append(Variable(('ffw.top_2_gating.w',), 'gate'))
  return Translated(config, VariableMap(variables))


def _gating(builder: Any, is_gated: bool) -> dict | None:
  """Returns the fields of gating and capacity; None after an issue."""
  view, name = builder.view, builder.gating_func
  if name not in _GATING_FUNCS:
    view.require('gating_func', *_GATING_FUNCS)
    return None
  fields = dict(
    gating_func=_GATING_FUNCS[name],
    expert_capacity_dim=builder.c_dim or 0,
    unadjusted_expert_capacity_factor=max(builder.capacity_factor or 0.0, 0.0),
  )
  of_top_2 = dict(
    second_expert_policy=builder.second_expert_policy,
    second_expert_threshold=builder.second_expert_threshold,
    legacy_mtf_behavior=builder.legacy_mtf_behavior,
  )
  if name == 'top_2':
    return fields | of_top_2
  view.ignore('experts choose tokens', *of_top_2)
  if name == 'token_shuffle_v2':
    return fields
  if is_gated:
    view.issue(
      'gating_func', 'Lingvo cannot compute gated experts that choose tokens'
    )
    return None
  view.ignore('the size of a group sets it', 'c_dim', 'capacity_factor')
  # An expert's capacity is the number of tokens, up to rounding.
  return fields | dict(unadjusted_expert_capacity_factor=float(builder.e_dim))


def _split(builder: Any, config: Any):
  """Sets the sharding."""

  def split(field: str, rank: int):
    return gshard_mesh.split(builder, field, rank)

  gsm, eah = split('blm_split', 3), split('eah_split', 3)
  config.weight_split_dims_mapping.set(
    emh=split('emh_split', 3), ehm=split('ehm_split', 3)
  )
  config.activation_split_dims_mapping.set(
    gsm=gsm,
    gs=gsm and gsm[:2],
    gsec=split('gsec_split', 4),
    gecs=split('gecs_split', 4),
    gec=split('gec_split', 3),
    egcm=split('egcm_split', 4),
    egch=eah and [eah[0], eah[1], None, eah[2]],
    gecm=split('gecm_split', 4),
  )
  builder.view.ignore('egcm_split sets it', 'eam_split')
