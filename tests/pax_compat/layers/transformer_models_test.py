"""A Transformer language model against its own parts.

Shapes: B batch, T time, D model dims, V vocabulary.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import transformer_models, transformers
from pax_compat.nested_map import NestedMap

B, T, D, V = 2, 5, 4, 9
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, V, (B, T))
PADDINGS = (np.arange(T) >= np.array([[T], [3]])).astype(np.float32)
LABELS = NestedMap(
  class_ids=RNG.integers(0, V, (B, T)), class_weights=1 - PADDINGS
)


def _config(num_layers=1, **fields):
  config = transformer_models.TransformerLm.config(
    vocab_size=V, model_dims=D, **fields
  )
  config.stacked_transformer_tpl.set(num_layers=num_layers)
  config.stacked_transformer_tpl.transformer_layer_params_tpl.set(
    hidden_dims=8, num_heads=2, causal=True
  )
  return config


@pytest.fixture(scope='module')
def weights():
  """Random weights of `_config()`, biases included."""
  layer = _config().Instantiate()
  first = layer.init({PARAMS: jax.random.key(0)}, IDS, PADDINGS, LABELS)
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32),
    base_layer.unbox(first)[PARAMS],
  )


def _logits(weights, ids):
  layer = _config().Instantiate()
  return layer.apply({PARAMS: weights}, ids, PADDINGS, LABELS).logits


def test_the_parts_in_their_order(weights):
  stack = transformers.StackedTransformer.config(model_dims=D, num_layers=1)
  stack.transformer_layer_params_tpl.set(
    hidden_dims=8, num_heads=2, causal=True
  )
  angles = np.arange(T)[:, None] * np.array([1.0, 1e-4])
  positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
  inputs = weights['embedding']['emb_var'][IDS] + positions
  hidden = stack.Instantiate().apply(
    {PARAMS: weights['transformer']}, inputs.astype(np.float32), PADDINGS
  )
  softmax = weights['softmax']['logits_ffn']
  want = hidden @ softmax['linear']['w'] + softmax['bias']['b']
  np.testing.assert_allclose(_logits(weights, IDS), want, rtol=1e-4, atol=1e-5)


def test_a_later_token_changes_nothing_before_it(weights):
  other = IDS.copy()
  other[:, 3] = (other[:, 3] + 1) % V
  before, after = _logits(weights, IDS), _logits(weights, other)
  np.testing.assert_array_equal(before[:, :3], after[:, :3])
  assert not np.allclose(before[:, 3], after[:, 3])


def test_padded_tokens_change_no_loss(weights):
  layer = _config().Instantiate()

  def loss(ids, labels):
    labels = LABELS.copy() | {'class_ids': labels}
    return layer.apply(
      {PARAMS: weights}, ids, PADDINGS, NestedMap(labels)
    ).avg_xent

  hidden = PADDINGS == 1
  ids, labels = IDS.copy(), LABELS.class_ids.copy()
  ids[hidden], labels[hidden] = 0, 0
  assert loss(ids, labels) == loss(IDS, LABELS.class_ids)


def test_the_model_gives_its_parts_their_dims(weights):
  assert weights['embedding']['emb_var'].shape == (V, D)
  assert weights['softmax']['logits_ffn']['linear']['w'].shape == (D, V)


def test_input_dropout_acts_in_training_only(weights):
  layer = _config(input_dropout_prob=0.5).Instantiate()
  args = ({PARAMS: weights}, IDS, PADDINGS, LABELS)
  rngs = {RANDOM: jax.random.key(0)}
  trained = layer.apply(*args, rngs=rngs).logits
  assert not np.allclose(trained, _logits(weights, IDS))
  with base_layer.eval_mode():
    np.testing.assert_array_equal(
      layer.apply(*args).logits, _logits(weights, IDS)
    )
