"""Translators of the Transformer that translates."""

from adaptors.translate import registry
from adaptors.translate.mt.parts import (
  Part,
  model_fields,
  search_settings,
  smoothing,
)
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers import embedding_softmax
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)

_SHARED = (
  embedding_softmax.SharedEmbeddingSoftmax,
  embedding_softmax.NClassMajorSharedEmbeddingSoftmax,
)


@translates('lingvo.tasks.mt.encoder.TransformerEncoder')
def encoder(view: ParamsView) -> Part | None:
  dims = view.get('model_dim')
  packed = view.get('packed_input')
  view.require('shared_emb', None)
  view.require('task_emb', None)
  view.require('ln_input', None)
  view.require('apply_source_mask', False)
  view.ignore('apply_source_mask is off', 'source_mask_id')
  view.require('individually_tagged_input', False)
  view.ignore('the embedding has the dims of the model', 'emb_projection_tpl')
  _check_dims(view, dims, 'token_emb.embedding_dim')
  _check_dims(view, dims, 'position_emb.embedding_dim')
  tokens = registry.translate(view.child('token_emb', dtype=view.params.dtype))
  positions = registry.translate(view.child('position_emb'))
  drop = view.get('input_dropout_prob')
  stack = registry.translate(
    view.child('transformer_stack', model_dim=dims, packed_input=packed)
  )
  view.base_fields()
  view.get('params_init')
  if None in (tokens, positions, stack):
    return None
  return Part(
    TransformerEncoderDecoder,
    fields=dict(
      encoder_embedding_tpl=tokens.config,
      encoder_position_emb_tpl=positions.config,
      encoder_stacked_transformer_tpl=stack.config.set(
        input_dropout_prob=float(drop)
      ),
      encoder_ln_tpl=None,
    ),
    both=_of_both(dims, packed),
    variables=tokens.variables.under('token_emb', 'encoder_embedding_lookup')
    + positions.variables.under('position_emb', 'encoder_position_emb')
    + stack.variables.under('transformer_stack', 'encoder'),
  )


def _of_both(dims: int, packed: bool) -> dict:
  """Returns the fields that an encoder and its decoder agree on."""
  return dict(model_dims=dims, packed_input=packed, position_emb_tpl=None)


def _check_dims(view: ParamsView, dims: int, path: str):
  """Adds an issue unless an embedding has the dims of the model."""
  found = view.params.Get(path)
  if found != dims:
    view.issue(
      path,
      f'{found} is not model_dim, {dims}; a projection is not translated',
    )


@translates('lingvo.tasks.mt.layers.TransformerStack')
def stack(view: ParamsView) -> Translated | None:
  """Returns a `StackedTransformer`."""
  view.require('is_transparent', False)
  view.ignore(
    'is_transparent is off',
    'num_transparent_outputs',
    'transparent_merger_tpl',
  )
  view.require('has_aux_attention', False)
  view.get('params_init')
  dims, packed = view.get('model_dim'), view.get('packed_input')
  return _stacked(
    view,
    'transformer_tpl',
    view.get('num_transformer_layers'),
    dims,
    packed=packed,
    normalizes=view.get('ln_output'),
    source_dim=dims,
    has_aux_atten=False,
    mask_self_atten=view.get('mask_self_atten'),
  )


def _stacked(
  view: ParamsView,
  field: str,
  count: int,
  dims: int,
  *,
  packed: bool,
  normalizes: bool,
  **settings,
) -> Translated | None:
  """Translates a stack of Transformer layers.

  Args:
    view: of the stack.
    field: with the template of the layers, or a list of them.
    count: number of layers.
    dims: of the model.
    packed: whether examples are packed.
    normalizes: whether the output is normalised.
    **settings: fields that the stack sets on each layer.
  """
  templates = view.get(field)
  if not isinstance(templates, list | tuple):
    templates = [templates]
  if count < 1 or count % len(templates):
    view.issue(
      field, f'{len(templates)} templates do not divide {count} layers'
    )
    return None
  layers = [
    registry.translate(
      view.adopt(
        templates[i % len(templates)],
        f'{field}[{i}]',
        packed_input=packed,
        **settings,
      )
    )
    for i in range(count)
  ]
  norm = None
  if normalizes:
    norm = registry.translate(view.child('ln_tpl', input_dim=dims))
  else:
    view.ignore('ln_output is off', 'ln_tpl')
  if None in layers or (normalizes and norm is None):
    return None
  config = StackedTransformer.config(
    model_dims=dims,
    num_layers=count,
    packed_input=packed,
    transformer_layer_params_tpl=[layer.config for layer in layers],
  )
  variables = VariableMap()
  for i, layer in enumerate(layers):
    variables += layer.variables.under(f'trans[{i}]', f'x_layers_{i}')
  if norm is not None:
    config.set(output_norm_tpl=norm.config)
    variables += norm.variables.under('layer_norm_out', 'output_norm')
  return Translated(config, variables)


@translates('lingvo.tasks.mt.decoder.TransformerDecoder')
def decoder(view: ParamsView) -> Part | None:
  dims, packed = view.get('model_dim'), view.get('packed_input')
  _check_decoder(view, dims)
  search = search_settings(view, has_coverage=False)
  softmax = registry.translate(view.child('softmax', input_dim=dims))
  shared = softmax is not None and softmax.config.cls in _SHARED
  tokens = None
  if shared:
    view.ignore('the softmax is the embedding', 'token_emb')
  else:
    _check_dims(view, dims, 'token_emb.embedding_dim')
    tokens = registry.translate(view.child('token_emb'))
  positions = registry.translate(view.child('position_emb'))
  drop, prob = view.get('input_dropout_prob'), smoothing(view)
  layers = _stacked(
    view,
    'trans_tpl',
    view.get('num_trans_layers'),
    dims,
    packed=packed,
    normalizes=view.get('ln_output'),
    has_aux_atten=True,
    mask_self_atten=True,
  )
  view.base_fields()
  view.get('params_init')
  of_model = model_fields(view, search)
  if None in (softmax, positions, layers, prob) or (
    tokens is None and not shared
  ):
    return None
  fields = dict(
    decoder_position_emb_tpl=positions.config,
    decoder_stacked_transformer_tpl=layers.config.set(
      input_dropout_prob=float(drop)
    ),
    decoder_ln_tpl=None,
    softmax_tpl=softmax.config.set(label_smoothing_prob=prob),
  )
  variables = positions.variables.under('position_emb', 'decoder_position_emb')
  variables += layers.variables.under('', 'decoder')
  variables += softmax.variables.under('softmax', 'softmax')
  if tokens is not None:
    fields['decoder_embedding_tpl'] = tokens.config
    variables += tokens.variables.under('token_emb', 'decoder_embedding_lookup')
  return Part(
    TransformerEncoderDecoder,
    fields,
    _of_both(dims, packed),
    variables,
    of_model,
  )


def _check_decoder(view: ParamsView, dims: int):
  """Adds issues with fields of a decoder that are not translated."""
  view.require('source_dim', dims)
  view.require('is_transparent', False)
  view.require('task_emb', None)
  view.require('use_lang_dependent_atten', False)
  view.require('zero_token_embs_first_time_step', False)
  view.require('ln_input', None)
  view.ignore(
    'it only selects summaries', 'add_multiheaded_attention_scalar_summary'
  )
  view.ignore(
    'Lingvo does not read it',
    'unidi_rnn_type',
    'feed_attention_context_vec_to_softmax',
  )
  for name, found in (
    ('token_emb.vocab_size', view.params.token_emb.vocab_size),
    ('position_emb.embedding_dim', view.params.position_emb.embedding_dim),
  ):
    wanted = (
      view.params.softmax.num_classes if name.startswith('token') else dims
    )
    is_embedding = view.params.softmax.cls.__name__ != 'SharedSoftmaxLayer'
    if found != wanted and (is_embedding or name.startswith('position')):
      view.issue(name, f'{found} is not what the model has, {wanted}')
