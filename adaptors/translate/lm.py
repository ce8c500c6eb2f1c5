"""Translators of Lingvo's language models."""

from adaptors.translate import registry
from adaptors.translate.layers import base_fields
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView
from pax_compat.layers import models
from pax_compat.layers.stacked_transformers import StackedTransformer
from pax_compat.layers.transformer_models import (
  LanguageModelType,
  TransformerLm,
)


@translates('lingvo.tasks.lm.layers.TransformerLm')
def transformer_lm(view: ParamsView) -> Translated | None:
  """`TransformerLm`, the decoder-only Transformer."""
  vocab, dims = view.get('vocab_size'), view.get('model_dim')
  view.require('packed_input', False)
  view.get('params_init')  # For children, which take it over.
  drops = {
    name: view.get(name)
    for name in (
      'residual_dropout_prob',
      'atten_dropout_prob',
      'relu_dropout_prob',
    )
  }
  position_emb = registry.translate(
    view.child('position_emb', embedding_dim=dims)
  )
  for name, value in (('vocab_size', vocab), ('embedding_dim', dims)):
    found = view.params.emb.Get(name)
    if found != value:
      view.issue(f'emb.{name}', f'{found} is not what the model has, {value}')
  embedding = registry.translate(view.child('emb'))
  softmax = registry.translate(
    view.child('softmax', input_dim=dims, num_classes=vocab)
  )
  template = view.get('trans_tpl').Copy()
  template.tr_atten_tpl.Set(
    residual_dropout_prob=drops['residual_dropout_prob'],
    atten_dropout_prob=drops['atten_dropout_prob'],
  )
  template.tr_fflayer_tpl.Set(
    residual_dropout_prob=drops['residual_dropout_prob'],
    relu_dropout_prob=drops['relu_dropout_prob'],
  )
  layer = registry.translate(view.adopt(template, 'trans_tpl', source_dim=dims))
  num_layers = view.get('num_trans_layers')
  input_drop = view.get('input_dropout_prob')
  fields = base_fields(view)
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
    **fields,
  )
  variables = embedding.variables.under('emb', 'embedding_lookup')
  for i in range(num_layers):
    variables += layer.variables.under(
      f'trans[{i}]', f'transformer/x_layers_{i}'
    )
  return Translated(
    config, variables + softmax.variables.under('softmax', 'softmax')
  )


@translates('lingvo.tasks.lm.model.LanguageModel')
def language_model(view: ParamsView) -> Translated | None:
  """`LanguageModel`: the model, without how it is trained.

  Lingvo cuts each batch to its longest example; the inputs here are cut to
  their bucket's bound instead, which changes no number.
  """
  view.require('packed_input', False)
  view.get('params_init')  # For children, which take it over.
  view.ignore('it concerns exporting for inference', 'inference')
  _check_vocabulary(view)
  lm = registry.translate(
    view.child('lm', packed_input=view.get('packed_input'))
  )
  sum_loss = view.group('train').get('sum_loss_across_tokens_in_batch')
  fields = base_fields(view)
  if lm is None:
    return None
  config = models.LanguageModel.config(
    lm_tpl=lm.config, sum_loss=sum_loss, **fields
  )
  return Translated(config, lm.variables.under('lm', 'lm'))


def _check_vocabulary(view: ParamsView):
  """Adds an issue where the input's tokens are not the model's."""
  data = view.get('input')
  if data is None or 'tokenizer' not in data or data.tokenizer is None:
    return
  tokens, classes = data.tokenizer.vocab_size, view.params.lm.vocab_size
  if tokens != classes:
    view.issue(
      'lm.vocab_size',
      f"{classes} is not the vocab_size of the input's tokenizer, {tokens}",
    )
