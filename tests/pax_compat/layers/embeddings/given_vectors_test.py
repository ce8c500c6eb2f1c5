"""Vectors in place of token embeddings.

Shapes: B batch, T time, D dims.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.embeddings.given_vectors import GivenVectors
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)

B, T, D, V = 2, 5, 4, 7


def _model(embedding):
  return TransformerLm.config(
    vocab_size=V,
    model_dims=D,
    separate_embedding_tpl=embedding,
    stacked_transformer_tpl=StackedTransformer.config(
      num_layers=1, num_heads=2, hidden_dims=8
    ),
    softmax_tpl=FullSoftmax.config(),
  ).Instantiate()


def test_a_model_of_vectors_is_that_of_their_tokens():
  ids = np.random.default_rng(0).integers(0, V, [B, T])
  paddings = np.zeros([B, T], np.float32)
  of_tokens = _model(Embedding.config())
  weights = base_layer.unbox(of_tokens.init(jax.random.key(0), ids, paddings))
  weights = dict(weights[PARAMS])
  want = of_tokens.apply({PARAMS: weights}, ids, paddings).logits
  table = weights.pop('embedding_lookup')['emb_var']
  y = _model(GivenVectors.config()).apply(
    {PARAMS: weights}, table[ids], paddings
  )
  np.testing.assert_allclose(y.logits, want, rtol=1e-5, atol=1e-6)


def test_tokens_are_no_vectors():
  layer = GivenVectors.config(input_dims=D).Instantiate()
  with pytest.raises(errors.UserError, match='vectors of 4 dims'):
    layer.apply({}, np.zeros([B, T], np.int32))
