"""Sub-layers of time-major and batch-major Transformer layers.

A Lingvo `TransformerLayer` is made of sub-layers (attention, cross-attention,
feed-forward), each with its norm and residual. Here it is one `Transformer`.
"""

import dataclasses

from adaptors.translate import registry
from adaptors.translate.registry import Translated
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.config import Config

# Fields of a `Transformer` that hold for attention and cross-attention.
_SHARED = (
  'ln_tpl',
  'norm_policy',
  'residual_dropout_prob',
  'residual_droppath_prob',
  'residual_from_normalized',
)


def norm_policy(view: ParamsView, hybrid: bool = False) -> str:
  """Returns where a sub-layer has its norm.

  Args:
    view: of the sub-layer.
    hybrid: whether there is a norm before and another one after it.
  """
  before = view.get('pre_layer_norm')
  if hybrid:
    if not before:
      view.issue('primer_hybrid_norm', 'it needs pre_layer_norm')
    return 'primer_hybrid'
  return 'pre' if before else 'post_skip'


def norm_variables(norm: Translated, hybrid: bool = False) -> VariableMap:
  """Returns the variables of a sub-layer's norm or norms."""
  names = ['pre_layer_norm', 'post_layer_norm'] if hybrid else ['layer_norm']
  variables = VariableMap()
  for name in names:
    variables += norm.variables.under(name, name)
  return variables


def keep_prob(view: ParamsView, template: str) -> float | None:
  """Returns the keep probability of a sub-layer's residual dropout.

  Args:
    view: of the sub-layer.
    template: the field with the dropout's Params.
  """
  drop = view.get('residual_dropout_prob')
  return registry.translate(view.child(template, keep_prob=1.0 - drop))


def transformer(
  view: ParamsView,
  atten: Translated,
  cross: Translated | None,
  feed_forward: Translated,
  *,
  cross_name: str,
  own_template: str,
) -> Translated:
  """Returns the `Transformer` of its sub-layers.

  Args:
    view: of the layer.
    atten: the self-attention with its norm and residual.
    cross: the cross-attention with its norm and residual, or None.
    feed_forward: the feed-forward layer.
    cross_name: the name of the cross-attention's variables in Lingvo.
    own_template: the field of the attention that has its own template, while
      the other one's is `tr_atten_tpl`; for issues.
  """
  # The sub-layers' children have the base fields of their own Params.
  config = atten.config.set(
    tr_fflayer_tpl=feed_forward.config, **view.base_fields()
  )
  variables = atten.variables.under('self_atten', '')
  if cross is not None:
    _check_shared(view, own_template, atten.config, cross.config)
    config.set(
      use_cross_attention=True, cross_atten_tpl=cross.config.tr_atten_tpl
    )
    variables += _cross_variables(cross.variables).under(cross_name, '')
  return Translated(
    config, variables + feed_forward.variables.under('fflayer', 'ff_layer')
  )


def _check_shared(
  view: ParamsView, own_template: str, atten: Config, cross: Config
):
  """Adds an issue for each shared field in which the attentions differ."""
  for name in _SHARED:
    values = getattr(atten, name), getattr(cross, name)
    if values[0] != values[1]:
      view.issue(
        own_template,
        f'it and tr_atten_tpl differ in {name}: {values[0]!r} for'
        f' self-attention, {values[1]!r} for cross-attention; here both have'
        ' the same',
      )


def _cross_variables(variables: VariableMap) -> VariableMap:
  """Returns an attention's variables as those of a cross-attention."""
  return VariableMap(
    dataclasses.replace(v, jax=_cross_path(v.jax)) for v in variables
  )


def _cross_path(path: str) -> str:
  part, rest = path.split('/', 1)
  for name, renamed in (
    ('self_attention', 'cross_attention'),
    ('layer_norm', 'cross_layer_norm'),
  ):
    part = part.replace(name, renamed)
  return f'{part}/{rest}'
