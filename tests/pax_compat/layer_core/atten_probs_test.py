"""Attention weights as a default of the process, for code of Pax."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.layer_core import atten_probs
from pax_compat.layers.attentions import dot_product, relative_attentions

INPUTS = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


def _weights(cls, **fields):
  layer = cls.config(
    input_dim=4, hidden_dim=8, num_heads=2, **fields
  ).Instantiate()
  variables = base_layer.unbox(
    layer.init(jax.random.key(0), INPUTS, INPUTS, INPUTS)
  )
  return layer.apply(variables, INPUTS, INPUTS, INPUTS)


@pytest.mark.slow
def test_weights_are_returned_by_default():
  plain = dot_product.DotProductAttention
  want, probs = _weights(plain, return_atten_probs=True)
  assert _weights(plain)[1] is None
  atten_probs.return_by_default()
  try:
    found, found_probs = _weights(plain)
    # Its weights are not a function of the logits alone.
    _, none = _weights(
      relative_attentions.DotProductAttentionRPE, rel_pos_radius=2
    )
  finally:
    atten_probs.return_by_default(False)
  np.testing.assert_array_equal(found, want)
  np.testing.assert_array_equal(found_probs, probs)
  np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-5)
  assert none is None
