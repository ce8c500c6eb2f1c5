"""Scaled sinusoids against sinusoids."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS
from pax_compat.layers.embeddings.positional_embeddings import (
  PositionalEmbedding,
)
from pax_compat.layers.embeddings.scaled_positions import (
  ScaledPositionalEmbedding,
)

POSITION = np.array([[0, 1, 2, 0], [0, 1, 2, 3]])


def _layer(**fields):
  return ScaledPositionalEmbedding.config(
    embedding_dims=6, **fields
  ).Instantiate()


def _plain(position):
  layer = PositionalEmbedding.config(embedding_dims=6).Instantiate()
  return layer.apply({}, position=position)


@pytest.mark.parametrize('scaled', [True, False])
@pytest.mark.parametrize('frequency', [True, False])
def test_scales(scaled, frequency):
  layer = _layer(
    trainable_scaling=scaled, scaling_init=0.25, frequency_scaling=frequency
  )
  first = base_layer.unbox(layer.init(jax.random.key(0), 4)).get(PARAMS, {})
  wanted = {'scale': scaled, 'freq_scale': frequency}
  assert set(first) == {name for name, on in wanted.items() if on}
  assert not any(np.any(x) for x in first.values())
  weights = {'scale': np.array([0.5]), 'freq_scale': np.array([1.0])}
  y = layer.apply(
    {PARAMS: {name: weights[name] for name in first}}, position=POSITION
  )
  # Twice the frequency is twice the position.
  want = _plain(POSITION * 2 if frequency else POSITION)
  factor = 0.75 if scaled else 1.0
  np.testing.assert_allclose(y, factor * want, rtol=1e-4, atol=1e-5)
