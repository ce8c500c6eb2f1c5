"""Templates of a stack's layers, made of the stack's fields."""

from collections.abc import Sequence
from typing import Any

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, set_fields
from pax_compat.layers.template_fields import agreed


def with_experts(stack: base_layer.BaseLayer, layer: Config) -> dict[str, Any]:
  """Returns the fields that replace a layer's feed-forward by experts."""
  tpl = stack.moe_layer_tpl
  sets = set_fields(tpl)
  hidden_dims = sets.get('hidden_dims', REQUIRED)
  if hidden_dims is REQUIRED:
    hidden_dims = layer.hidden_dims or stack.hidden_dims
  num_groups = stack.num_groups
  if num_groups is None and sets.get('num_groups', REQUIRED) is REQUIRED:
    num_groups = 1
  experts = agreed(
    'StackedTransformer.moe_layer_tpl',
    tpl,
    num_experts=stack.num_experts,
    num_groups=num_groups,
    min_group_size=stack.min_group_size,
    gating_func=stack.gating_func,
    unadjusted_expert_capacity_factor=stack.unadjusted_expert_capacity_factor,
  )
  return dict(
    hidden_dims=hidden_dims, tr_fflayer_tpl=tpl.clone().set(**experts)
  )


def ngrammer(stack: base_layer.BaseLayer, i: int) -> Config | None:
  """Returns the n-grammer of layer `i`, a separate config for each layer."""
  if stack.ngrammer_tpls is None:
    return None
  tpl = _of_layer(stack, 'ngrammer_tpls', i)
  return None if tpl is None else tpl.clone()


def windowed(
  stack: base_layer.BaseLayer, i: int, layer: Config
) -> dict[str, Any]:
  """Returns the field that gives the attention of layer `i` a local window."""
  window = stack.local_window_size
  if not all(isinstance(side, int) for side in window):
    window = _of_layer(stack, 'local_window_size', i)
  if window is None:
    return {}
  attention = layer.tr_atten_tpl
  where = 'StackedTransformer.transformer_layer_params_tpl.tr_atten_tpl'
  fields = agreed(where, attention, local_window_size=tuple(window))
  return dict(tr_atten_tpl=attention.clone().set(**fields))


def _of_layer(stack: base_layer.BaseLayer, field: str, i: int) -> Any:
  """Returns entry `i` of a field that has one for each layer."""
  values: Sequence[Any] = getattr(stack, field)
  if len(values) != stack.num_layers:
    raise errors.UserError(
      f'StackedTransformer.{field} has {len(values)} entries; expected one for'
      f' each layer, num_layers is {stack.num_layers}'
    )
  return values[i]
