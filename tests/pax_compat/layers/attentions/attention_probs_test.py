"""Attention probabilities, which a field asks for.

Shapes: B batch, T time, D model dims, N heads.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions import multi_query_attention
from pax_compat.layers.attentions.attention_masks import CAUSAL
from tests.pax_compat.layers.naive_attention import random

B, T, D, N = 2, 5, 6, 2


@pytest.mark.parametrize('kv_heads', [1, N])
def test_the_attention_weights_are_returned_if_asked(kv_heads):
  cls = multi_query_attention.MultiQueryDotProductAttention
  config = cls.config(
    input_dim=D, hidden_dim=D, num_heads=N, num_kv_heads=kv_heads
  )
  x = random(B, T, D, seed=30)
  layer = config.Instantiate()
  weights = base_layer.unbox(
    layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)
  )
  want, _ = layer.apply(weights, x, x, x, CAUSAL)
  config.return_atten_probs = True
  got, probs = config.Instantiate().apply(weights, x, x, x, CAUSAL)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
  assert probs.shape == (B, N, T, T)
  np.testing.assert_allclose(np.sum(probs, axis=-1), 1.0, rtol=1e-5)
  np.testing.assert_array_equal(np.triu(probs, 1), 0.0)
