"""Translates the attention of a recurrent decoder."""

from typing import NamedTuple

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import same_init
from adaptors.translate.registry import Translated
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat.layers.rnn.source_attention import AdditiveSourceAttention

_ADDITIVE = 'lingvo.core.attention.AdditiveAttention'
_MULTI_HEADED = 'lingvo.core.attention.MultiHeadedAttention'
_INNER = ('source_var', 'query_var', 'hidden_var')


class SourceAttention(NamedTuple):
  """A translated attention.

  Attributes:
    translated: its config and variables.
    context_dim: dims of a context.
  """

  translated: Translated
  context_dim: int


def source_attention(view: ParamsView) -> SourceAttention | None:
  """Translates an attention that a recurrent layer queries step by step.

  Args:
    view: of an additive attention, or one of several additive heads.

  Returns:
    The attention; None after adding an issue.
  """
  path = class_path(view.params.cls)
  translators = {_ADDITIVE: _additive, _MULTI_HEADED: _multi_headed}
  if path not in translators:
    view.issue(
      '',
      f'not translated in a recurrent decoder, only {_MULTI_HEADED} and'
      f' {_ADDITIVE}',
    )
    return None
  before = len(view.report.issues)
  translated = registry.call(translators[path], view)
  view.finish()
  if translated is None or len(view.report.issues) > before:
    return None
  config = translated.config
  projected = config.values_are_keys or config.project_context
  dim = config.hidden_dim if projected else config.source_dim
  return SourceAttention(translated, config.output_dim or dim)


def _read_common(view: ParamsView):
  view.get('packed_input')  # The layer masks segments.
  view.ignore(
    "random numbers come from the run's own seed", 'atten_dropout_deterministic'
  )


def _additive(view: ParamsView) -> Translated:
  _read_common(view)
  if view.get('same_batch_size') and view.params.atten_dropout_prob:
    view.issue('atten_dropout_prob', 'Lingvo refuses it with same_batch_size')
  init = same_init(view, 'params_init')
  config = AdditiveSourceAttention.config(
    source_dim=view.get('source_dim'),
    query_dim=view.get('query_dim'),
    hidden_dim=view.get('hidden_dim'),
    use_bias=False,
    atten_dropout_prob=float(view.get('atten_dropout_prob')),
    inner_init=init,
  )
  return Translated(config, VariableMap(Variable((n,), n) for n in _INNER))


def _multi_headed(view: ParamsView) -> Translated | None:
  _read_common(view)
  view.require('num_post_proj', 1)
  view.require('proj_init', 'default')
  view.require('attention_head_prob_index', -1)
  view.ignore('only attention by dot products has it', 'enable_per_dim_scale')
  hidden, heads = view.get('hidden_dim'), view.get('num_attention_heads')
  drop = view.get('atten_dropout_prob')
  from_keys = view.get('use_source_vec_as_attention_value')
  inner = _inner(view, hidden // heads)
  fields = dict(
    source_dim=view.get('source_dim'),
    query_dim=view.get('query_dim'),
    hidden_dim=hidden,
    num_heads=heads,
    project_source=view.get('enable_source_proj'),
    project_query=view.get('enable_query_proj'),
    project_context=view.get('enable_ctx_pre_proj') and not from_keys,
    values_are_keys=from_keys,
    use_bias=view.get('use_bias'),
    atten_dropout_prob=float(drop),
    params_init=same_init(view, 'params_init'),
  )
  if view.get('enable_ctx_post_proj'):
    fields['output_dim'] = view.get('ctx_post_proj_dim')
  else:
    view.ignore('enable_ctx_post_proj is off', 'ctx_post_proj_dim')
  if fields['project_context']:
    view.require('context_dim', fields['source_dim'])
  else:
    view.ignore('nothing projects the values', 'context_dim')
  if inner is None:
    return None
  config = AdditiveSourceAttention.config(
    **fields, inner_init=inner.config.inner_init
  )
  names = [
    name
    for name, exists in (
      ('source_proj', config.project_source),
      ('query_proj', config.project_query),
      ('ctx_proj', config.project_context),
      ('ctx_post_proj', config.output_dim),
    )
    if exists
  ]
  if config.use_bias:
    names += [f'{name}_b' for name in names]
  variables = VariableMap(Variable((n,), n) for n in names)
  return Translated(config, variables + inner.variables.under('atten', ''))


def _inner(view: ParamsView, size: int) -> Translated | None:
  """Translates the attention of the heads."""
  if class_path(view.get('inner_atten_params').cls) != _ADDITIVE:
    view.issue('inner_atten_params', f'expected {_ADDITIVE}')
    return None
  inner = view.child(
    'inner_atten_params',
    source_dim=size,
    query_dim=size,
    hidden_dim=size,
    dtype=view.params.dtype,
    atten_dropout_prob=view.params.atten_dropout_prob,
    atten_dropout_deterministic=view.params.atten_dropout_deterministic,
    packed_input=view.params.packed_input,
  )
  translated = registry.call(_additive, inner)
  inner.finish()
  return translated
