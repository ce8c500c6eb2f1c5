"""The metrics of a language model against sums in numpy."""

import jax
import numpy as np
import pytest
from scipy import special

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap

V = 9
LENGTHS = np.array([5, 3, 1])


def _batch():
  rng = np.random.default_rng(0)
  weights = (np.arange(5) < LENGTHS[:, None]).astype(np.float32)
  return NestedMap(
    ids=rng.integers(0, V, (3, 5)),
    labels=rng.integers(0, V, (3, 5)),
    paddings=1 - weights,
    weights=weights,
    word_count=LENGTHS - 1,
  )


def _padded(batch):
  """Returns the batch with an example that only fills it, full of garbage."""
  padded = NestedMap({k: np.concatenate([v, v[:1]]) for k, v in batch.items()})
  padded.weights[-1], padded.paddings[-1] = 0, 1
  padded.word_count[-1] = 1000
  return padded


def _config(**fields):
  config = models.LanguageModel.config(**fields)
  config.lm_tpl.set(vocab_size=V, model_dims=4)
  config.lm_tpl.stacked_transformer_tpl.set(num_layers=1)
  config.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl.set(
    hidden_dims=8, num_heads=2, causal=True
  )
  return config


@pytest.fixture(scope='module')
def weights():
  first = _config().Instantiate().init({PARAMS: jax.random.key(0)}, _batch())
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda s: rng.normal(size=s.shape).astype(np.float32),
    base_layer.unbox(first)[PARAMS],
  )


def _metrics(weights, batch, **fields):
  return _config(**fields).Instantiate().apply({PARAMS: weights}, batch)


def _numpy_metrics(weights, batch):
  """Returns {name: (value, weight)} from the model's logits, token by token."""
  layer = _config().Instantiate()
  logits = layer.apply(
    {PARAMS: weights}, batch, method=layer.compute_predictions
  ).logits
  log_probs = special.log_softmax(np.asarray(logits, np.float64), -1)
  nats, right, tokens = 0.0, 0, 0
  for b, length in enumerate(LENGTHS):
    for t in range(length):
      nats -= log_probs[b, t, batch.labels[b, t]]
      right += logits[b, t].argmax() == batch.labels[b, t]
      tokens += 1
  words = sum(LENGTHS)
  return {
    'loss': (nats / tokens, tokens),
    'log_pplx': (nats / tokens, tokens),
    'log_pplx_per_word': (nats / words, words),
    'fraction_of_correct_next_step_preds': (right / tokens, tokens),
    'num_predictions': (tokens, 1),
    'num_words': (words, 1),
  }


@pytest.mark.parametrize('fill', [lambda b: b, _padded])
def test_metrics(weights, fill):
  got, _ = _metrics(weights, fill(_batch()))
  want = _numpy_metrics(weights, _batch())
  assert set(got) == set(want)
  for name, pair in want.items():
    np.testing.assert_allclose(got[name], pair, rtol=1e-5, err_msg=name)


def test_the_loss_may_be_the_sum(weights):
  mean, _ = _metrics(weights, _batch())
  total, _ = _metrics(weights, _batch(), sum_loss=True)
  np.testing.assert_allclose(total.loss[0], mean.loss[0] * 9, rtol=1e-6)
  assert total.log_pplx == mean.log_pplx


def test_the_loss_of_each_example(weights):
  metrics, per_example = _metrics(weights, _padded(_batch()))
  assert per_example.loss.shape == (4,)
  assert per_example.loss[3] == 0
  np.testing.assert_allclose(
    per_example.loss.sum(), metrics.loss[0] * 9, rtol=1e-5
  )


def test_words_are_counted_only_where_the_batch_has_them(weights):
  batch = _batch()
  del batch.word_count
  metrics, _ = _metrics(weights, batch)
  assert not {'log_pplx_per_word', 'num_words'} & set(metrics)


def test_a_batch_that_is_all_filling(weights):
  batch = _batch()
  batch.weights[:], batch.paddings[:] = 0, 1
  metrics, _ = _metrics(weights, batch)
  for name, (value, weight) in metrics.items():
    assert np.isfinite(value), name
    # Counts have weight 1 and say 0.
    assert weight == 0 or value == 0, name
