"""Translators of the Transformer language models of `lingvo.tasks.lm.layers`.

Lingvo's are time-major, ours batch-major.
"""

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView
from pax_compat.layers.embeddings.given_vectors import GivenVectors
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)


@translates('lingvo.tasks.lm.layers.TransformerLm')
def transformer_lm(view: ParamsView) -> Translated | None:
  """Returns the decoder-only Transformer."""
  vocab, dims = view.get('vocab_size'), view.get('model_dim')
  for name, value in (('vocab_size', vocab), ('embedding_dim', dims)):
    found = view.params.emb.Get(name)
    if found != value:
      view.issue(f'emb.{name}', f'{found} is not what the model has, {value}')
  embedding = registry.translate(view.child('emb'))
  return _transformer_lm(view, embedding)


@translates('lingvo.tasks.lm.layers.TransformerLmNoEmbedding')
def transformer_lm_no_embedding(view: ParamsView) -> Translated | None:
  """Returns a language model whose inputs are vectors."""
  return _transformer_lm(view, Translated(GivenVectors.config()))


def _transformer_lm(
  view: ParamsView, embedding: Translated | None
) -> Translated | None:
  vocab, dims = view.get('vocab_size'), view.get('model_dim')
  if view.get('packed_input'):
    view.issue(
      'packed_input',
      'True is not translated: in Lingvo this class takes no segment ids, and a'
      ' task that sets it fails at its first batch',
    )
  position_emb = registry.translate(
    view.child('position_emb', embedding_dim=dims)
  )
  softmax = registry.translate(
    view.child('softmax', input_dim=dims, num_classes=vocab)
  )
  layer = registry.translate(
    view.adopt(_layer_template(view), 'trans_tpl', source_dim=dims)
  )
  num_layers = view.get('num_trans_layers')
  input_drop = view.get('input_dropout_prob')
  if None in (position_emb, embedding, softmax, layer):
    return None
  masked = layer.config.mask_self_attention
  config = TransformerLm.config(
    vocab_size=vocab,
    model_dims=dims,
    model_type=(
      LanguageModelType.CAUSAL if masked else LanguageModelType.BIDIRECTIONAL
    ),
    separate_embedding_tpl=embedding.config,
    position_emb_tpl=position_emb.config,
    stacked_transformer_tpl=StackedTransformer.config(
      model_dims=dims,
      num_layers=num_layers,
      input_dropout_prob=input_drop,
      transformer_layer_params_tpl=layer.config,
    ),
    final_ln_tpl=None,
    softmax_tpl=softmax.config,
  )
  variables = embedding.variables.under('emb', 'embedding_lookup')
  variables += position_emb.variables.under('position_emb', 'position_emb')
  for i in range(num_layers):
    variables += layer.variables.under(
      f'trans[{i}]', f'transformer/x_layers_{i}'
    )
  return Translated(
    config, variables + softmax.variables.under('softmax', 'softmax')
  )


def _layer_template(view: ParamsView):
  """Returns the Params of the layers, with the fields the model sets."""
  drops = {
    name: view.get(name)
    for name in (
      'residual_dropout_prob',
      'atten_dropout_prob',
      'relu_dropout_prob',
    )
  }
  template = view.get('trans_tpl').Copy()
  template.tr_atten_tpl.Set(
    residual_dropout_prob=drops['residual_dropout_prob'],
    atten_dropout_prob=drops['atten_dropout_prob'],
  )
  template.tr_fflayer_tpl.Set(
    residual_dropout_prob=drops['residual_dropout_prob'],
    relu_dropout_prob=drops['relu_dropout_prob'],
  )
  for name in ('packed_input', 'has_aux_atten', 'is_decoder'):
    if name in template and template.Get(name):
      view.issue(
        f'trans_tpl.{name}',
        'True is not translated: in Lingvo too the model passes its layers'
        ' neither segment ids nor another sequence',
      )
  return template
