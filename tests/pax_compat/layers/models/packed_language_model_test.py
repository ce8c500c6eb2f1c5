"""The model of packed text; metrics are computed in numpy.

Shapes: B batch, T time, V vocabulary.
"""

import jax
import numpy as np
import pytest
from scipy import special

from pax_compat import base_layer, errors
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.models.packed_language_model import PackedLanguageModel
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import token_batches

B, T, V = 3, 5, 9
RNG = np.random.default_rng(0)
TOKENS = NestedMap(
  ids=RNG.integers(1, V, (B, T)),
  # The second one of a row and one of the third are only seen.
  labels=np.array([[3, 1, 2, 4, 5], [1, -2, 3, 4, 5], [2, 0, 6, 0, 0]]),
  segment_ids=np.array([[1, 1, 1, 2, 2], [1, 1, 2, 2, 3], [1, 1, 1, 0, 0]]),
  segment_pos=np.array([[0, 1, 2, 0, 1], [0, 1, 0, 1, 0], [0, 1, 2, 0, 0]]),
)
COUNTED = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 0, 1, 0, 0]])
SMOOTHING = 0.2


def _config(**softmax):
  softmax = GShardSharedEmbeddingSoftmax.config(
    label_smoothing_prob=SMOOTHING,
    label_smoothing_apply_for_eval=True,
    z_loss_weight=0.1,
    z_loss_is_aux=False,
    **softmax,
  )
  lm = TransformerLm.config(
    vocab_size=V,
    model_dims=4,
    order_by_position=True,
    stacked_transformer_tpl=StackedTransformer.config(
      num_layers=1, hidden_dims=8, num_heads=2
    ),
    softmax_tpl=softmax,
  )
  return PackedLanguageModel.config(lm_tpl=lm)


def _metrics(batch, **softmax):
  """Returns the metrics of a batch, and the logits."""
  config = _config(**softmax)
  params = token_batches.random_weights(config, batch)
  metrics, outputs = token_batches.run(config, params, batch)
  logits = token_batches.predictions(config, params, batch).logits
  assert outputs.labels.shape[0] == outputs.scores.shape[0]
  return metrics, np.asarray(logits, np.float64)


def _nats(logits):
  """Returns the cross-entropy of labels and of smoothed ones, and z^2."""
  log_probs = special.log_softmax(logits, axis=-1)
  hard = np.eye(V)[np.maximum(TOKENS.labels, 0)]
  soft = (1 - SMOOTHING) * hard + SMOOTHING / V
  return (
    -(hard * log_probs).sum(-1),
    -(soft * log_probs).sum(-1),
    special.logsumexp(logits, axis=-1) ** 2,
  )


def _close(metrics, name, value, weight):
  got = tuple(map(float, metrics[name]))
  np.testing.assert_allclose(got, (value, weight), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  ('softmax', 'denominator'),
  [
    ({}, B * T),
    ({'use_tgt_labels_size_as_loss_denominator': False}, COUNTED.sum()),
    ({'fixed_loss_denominator': 100.0}, 100),
  ],
)
@pytest.mark.parametrize('filled', [False, True])
def test_metrics(softmax, denominator, filled):
  """Also where the batch is filled up with a row that does not count."""
  words = dict(
    word_count=np.array([3, 2, 1]), num_sentences=np.array([1, 1, 2])
  )
  batch = NestedMap(tgt=NestedMap({**TOKENS, **words}))
  if filled:
    batch = token_batches.padded(batch)
  metrics, logits = _metrics(batch, **softmax)
  logits = logits[:B]
  hard, soft, squares = ((x * COUNTED).sum() for x in _nats(logits))
  right = (logits.argmax(-1) == TOKENS.labels) * COUNTED
  tokens = COUNTED.sum()
  loss, z_loss = soft / denominator, 0.1 * squares / denominator
  _close(metrics, 'loss', loss + z_loss, 1)
  _close(metrics, 'avg_z_loss_increment', z_loss, 1)
  _close(metrics, 'mean_xent', hard / tokens, tokens)
  _close(metrics, 'soft_labels_xent', soft / tokens, tokens)
  _close(metrics, 'acc1', right.sum() / tokens, tokens)
  all_right = (right.sum(1) == COUNTED.sum(1)).mean()
  _close(metrics, 'whole_tgt_accuracy', all_right, 1)
  _close(metrics, 'weight', tokens, 1)
  _close(metrics, 'num_packed_examples', 2 + 3 + 1, 1)
  _close(metrics, 'batch_utilized_ratio', 13 / 15, 1)
  _close(metrics, 'aux_loss', 0, 1)
  _close(metrics, 'num_words', 10, 1)
  _close(metrics, 'log_pplx_per_word', hard / 10, 10)


def test_paddings_say_what_counts():
  paddings = np.zeros([B, T], np.float32)
  paddings[0] = paddings[:, 3:] = 1
  metrics, logits = _metrics(NestedMap({**TOKENS, 'paddings': paddings}))
  hard, soft, _ = _nats(logits)
  hard = np.where(TOKENS.labels < 0, 0, hard)  # There is no such label.
  _close(metrics, 'mean_xent', (hard * (1 - paddings)).sum() / 6, 6)
  _close(metrics, 'soft_labels_xent', (soft * (1 - paddings)).sum() / 6, 6)


def test_soft_labels():
  probs = special.softmax(RNG.normal(size=(B, T, V)), axis=-1)
  metrics, logits = _metrics(NestedMap({**TOKENS, 'soft_labels': probs}))
  log_probs, tokens = special.log_softmax(logits, axis=-1), COUNTED.sum()
  soft = -(probs * log_probs).sum(-1)
  _close(metrics, 'soft_labels_xent', (soft * COUNTED).sum() / tokens, tokens)
  hard, _, _ = _nats(logits)
  _close(metrics, 'mean_xent', (hard * COUNTED).sum() / tokens, tokens)


def test_a_batch_that_only_fills_up_counts_nothing():
  batch = NestedMap(tgt=TOKENS, eval_sample_weights=np.zeros(B, np.float32))
  metrics, _ = _metrics(batch)
  for name, (value, weight) in metrics.items():
    assert np.isfinite(value) and weight == 0, name


def test_fields_that_are_missing():
  batch = NestedMap(tgt=NestedMap(ids=TOKENS.ids, labels=TOKENS.labels))
  layer = _config().Instantiate()
  with pytest.raises(errors.UserError, match='has no segment_ids, segment_pos'):
    layer.init({base_layer.PARAMS: jax.random.key(0)}, batch)
