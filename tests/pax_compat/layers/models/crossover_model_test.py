"""Tests of the crossed sentence pairs of XEnDec, without Lingvo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.base_layer import NON_TRAINABLE
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.models import crossover_model
from pax_compat.layers.normalizations.norm_layers import LayerNorm
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.transformer_models.crossover_encoder_decoder import (
  CrossoverEncoderDecoder,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from pax_compat.layers.transformers.transformer_layers import Transformer
from pax_compat.nested_map import NestedMap

_VOCAB, _DIMS, _ROWS, _LENGTH = 7, 8, 3, 4


def _model(**fields):
  def stack():
    return StackedTransformer.config(
      num_layers=1,
      hidden_dims=_DIMS,
      num_heads=2,
      transformer_layer_params_tpl=Transformer.config(
        ln_tpl=LayerNorm.config(),
        cross_atten_tpl=DotProductAttention.config(return_atten_probs=True),
      ),
    )

  network = CrossoverEncoderDecoder.config(
    model_dims=_DIMS,
    encoder_embedding_tpl=Embedding.config(num_classes=_VOCAB),
    decoder_embedding_tpl=Embedding.config(num_classes=_VOCAB),
    encoder_stacked_transformer_tpl=stack(),
    decoder_stacked_transformer_tpl=stack(),
    softmax_tpl=FullSoftmax.config(
      num_classes=_VOCAB, label_smoothing_prob=0.1
    ),
  )
  return crossover_model.CrossoverModel.config(
    model_tpl=network, **fields
  ).Instantiate()


def _batch(mask):
  rng = np.random.default_rng(0)

  def sentences():
    paddings = np.zeros([_ROWS, _LENGTH], np.float32)
    ids = rng.integers(0, _VOCAB, paddings.shape, np.int32)
    return NestedMap(ids=ids, paddings=paddings)

  pairs = NestedMap(src=sentences(), tgt=sentences())
  pairs.tgt.update(labels=sentences().ids, weights=1 - pairs.tgt.paddings)
  pairs.src.source_mask = np.full([_ROWS, _LENGTH], mask, np.float32)
  return pairs


@pytest.mark.slow
def test_without_crossed_words_the_mixture_is_the_pair():
  """And with all of them it is the other pair, but for its first token."""
  model, metrics = _model(), {}
  variables = model.init(jax.random.key(0), _batch(0))
  for mask in (0, 1):
    (metrics[mask], _), updates = model.apply(
      variables, _batch(mask), mutable=[NON_TRAINABLE]
    )
    assert updates[NON_TRAINABLE]['global_step'] == 1
  losses = {
    name: float(metrics[0][name][0])
    for name in ('loss', 'clean_loss', 'other_loss', 'mix_loss')
  }
  np.testing.assert_allclose(
    losses['mix_loss'], losses['clean_loss'], rtol=1e-5
  )
  # The other pairs are those of the rows before: the same, in another order.
  np.testing.assert_allclose(
    losses['other_loss'], losses['clean_loss'], rtol=1e-5
  )
  np.testing.assert_allclose(
    losses['loss'], sum(losses.values()) - losses['loss']
  )
  assert metrics[1]['mix_loss'][0] != metrics[0]['mix_loss'][0]


def test_attention_gets_sharp():
  attention = jnp.array([[[0.1, 0.2, 0.7], [0.4, 0.3, 0.3]]])
  paddings = jnp.array([[0.0, 1.0]])
  for progress, expected in (
    (0.0, [1 / 3] * 3),
    (1.0, attention[0, 0]),
    (5.0, attention[0, 0] ** 2 / 0.54),
  ):
    found = crossover_model._sharpened(attention, paddings, progress)
    np.testing.assert_allclose(found[0, 0], expected, atol=2e-5)
    # A padded word attends to all equally.
    np.testing.assert_allclose(found[0, 1], [1 / 3] * 3, rtol=1e-5)
