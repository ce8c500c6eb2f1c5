"""Models of masked tokens against sums in numpy, token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import token_batches as batches
from tests.pax_compat.layers.token_batches import LENGTHS, V

MASK = 0


def _config(**fields):
  config = models.BertModel.config(**fields)
  config.lm_tpl.set(vocab_size=V, model_dims=8)
  config.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, hidden_dims=8, num_heads=2
  )
  return config


def _batch():
  data = batches.batch()
  masked_pos = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 0]])
  masked_pos = masked_pos * data.weights
  return NestedMap(
    labels=data.labels,
    masked_ids=np.where(masked_pos, MASK, data.labels).astype(np.int32),
    masked_pos=masked_pos,
    paddings=data.paddings,
  )


@pytest.fixture(scope='module')
def params():
  return batches.random_weights(_config(), _batch())


@pytest.mark.parametrize('fill', [lambda b: b, batches.padded])
def test_metrics(params, fill):
  data = _batch()
  logits = batches.predictions(_config(), params, data).logits
  total, nats, right, of_rows = batches.token_sums(
    logits, data.labels, data.masked_pos
  )
  assert total == 4
  mean = (nats / total, total)
  got, outputs = batches.run(_config(), params, fill(data))
  batches.assert_metrics(
    got,
    {
      **dict.fromkeys(('total_loss', 'loss', 'avg_xent', 'log_pplx'), mean),
      'fraction_of_correct_preds': (right / total, total),
      'num_predictions': (total, 1),
      'aux_loss': (0, total),
      'num_tokens': (sum(LENGTHS), 1),
      'num_seqs': (3, 1),
    },
  )
  np.testing.assert_allclose(outputs.per_sequence_xent[:3], of_rows, rtol=1e-5)
  np.testing.assert_array_equal(
    outputs.predicted_labels[:3], np.argmax(logits, axis=-1)
  )
  np.testing.assert_array_equal(outputs.augmented_labels[:3], data.masked_ids)
  if len(outputs.per_sequence_xent) > 3:
    assert outputs.per_sequence_xent[3] == 0


def test_tokens_see_those_after_them(params):
  data = _batch()
  before = batches.predictions(_config(), params, data).logits
  data.masked_ids = data.masked_ids.copy()
  data.masked_ids[0, 4] = (data.masked_ids[0, 4] + 1) % V
  after = batches.predictions(_config(), params, data).logits
  assert not np.allclose(before[0, :4], after[0, :4])
  np.testing.assert_array_equal(before[1:], after[1:])


def test_packed_examples(params):
  """They do not attend to each other, and each is counted."""
  config = _config()
  config.lm_tpl.packed_input = True
  data, packed = _batch(), NestedMap()
  for name in ('labels', 'masked_ids', 'masked_pos'):
    rows = [data[name][b, :n] for b, n in enumerate(LENGTHS)]
    packed[name] = np.concatenate([*rows, np.zeros([3], rows[0].dtype)])[None]
  packed.segment_ids = np.repeat([1, 2, 3, 0], [*LENGTHS, 3])[None]
  packed.paddings = (packed.segment_ids == 0).astype(np.float32)
  got, _ = batches.run(config, params, packed)
  want, _ = batches.run(_config(), params, data)
  batches.assert_metrics(got, want)


def test_label_smoothing(params):
  smooth, _ = batches.run(_config(label_smoothing_prob=0.1), params, _batch())
  sharp, _ = batches.run(_config(), params, _batch())
  assert smooth.loss[0] != sharp.loss[0]
  np.testing.assert_allclose(
    smooth.fraction_of_correct_preds, sharp.fraction_of_correct_preds
  )


def test_what_the_softmax_got_may_be_put_out(params):
  config = _config()
  config.lm_tpl.record_activations_in_xent_output = True
  _, outputs = batches.run(config, params, _batch())
  assert outputs.activations.shape == (3, 5, 8)


def _masked_by_the_model(data, seed=0, **fields):
  """Returns predictions where the model masks tokens itself."""
  config = _config(mask_token_id=8, **fields)
  # So many that some are masked in a batch so small.
  config.mlm_augmenter_tpl.set(mask_prob=0.5, random_prob=0.0, same_prob=0.1)
  layer = config.Instantiate()
  variables = jax.eval_shape(
    lambda: layer.init({base_layer.PARAMS: jax.random.key(0)}, data)
  )
  weights = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), base_layer.unbox(variables)
  )
  return layer.apply(
    {base_layer.PARAMS: weights[base_layer.PARAMS]},
    data,
    rngs={base_layer.RANDOM: jax.random.key(seed)},
    method=layer.compute_predictions,
  )


def _assert_masked(found, data):
  """What was masked is to be predicted, and no padding is."""
  replaced = np.asarray(found.augmented_labels) != data.labels
  assert replaced.any() and (found.augmented_labels[replaced] == 8).all()
  assert set(np.unique(found.augmented_pos)) == {0, 1}
  assert (found.augmented_pos[replaced] == 1).all()
  np.testing.assert_array_equal(found.augmented_pos * data.paddings, 0)
  assert found.total_weight == found.augmented_pos.sum()


def _no_masks():
  data = _batch()
  data.labels %= 8
  del data.masked_ids, data.masked_pos
  return data


@pytest.mark.parametrize('do_eval', [False, True])
def test_a_batch_that_is_not_masked(do_eval):
  data = _no_masks()
  with base_layer.eval_mode(do_eval):
    found = _masked_by_the_model(data)
    _assert_masked(found, data)
    again = _masked_by_the_model(data)
    other = _masked_by_the_model(data, seed=1)
  np.testing.assert_array_equal(found.augmented_pos, again.augmented_pos)
  assert not np.array_equal(found.augmented_pos, other.augmented_pos)


def test_masks_of_the_batch_may_be_left_aside():
  data = _batch()
  data.labels %= 8
  kept = _masked_by_the_model(data)
  np.testing.assert_array_equal(kept.augmented_labels, data.masked_ids)
  _assert_masked(_masked_by_the_model(data, force_mask_generation=True), data)


def test_padding_rows_have_weight_0():
  data = batches.padded(_no_masks())
  found = _masked_by_the_model(data, seed=3)
  assert found.augmented_pos[:3].any()
  np.testing.assert_array_equal(found.augmented_pos[3], 0)


@pytest.mark.parametrize(
  ('fields', 'gone', 'message'),
  [
    ({}, ['masked_pos'], 'has no masked_pos; expected masked_ids and'),
    (
      {'mlm_augmenter_tpl': None},
      ['masked_ids', 'masked_pos'],
      'mlm_augmenter_tpl is None, so the model cannot mask tokens',
    ),
    (
      {'mlm_augmenter_tpl': None, 'force_mask_generation': True},
      [],
      'force_mask_generation=False',
    ),
  ],
)
def test_batches_without_masks(params, fields, gone, message):
  data = _batch()
  for name in gone:
    del data[name]
  with pytest.raises(errors.UserError, match=message):
    batches.run(_config(**fields), params, data)


def test_a_mask_that_the_augmenter_does_not_have(params):
  config = _config()
  config.mlm_augmenter_tpl.mask_token_id = 3
  with pytest.raises(errors.UserError, match='mlm_augmenter_tpl.mask_token_id'):
    batches.run(config, params, _batch())
  batches.run(config.set(mask_token_id=None), params, _batch())


def test_a_network_that_is_causal(params):
  config = _config()
  config.lm_tpl.model_type = 'causal'
  with pytest.raises(errors.UserError, match='BertModel.lm_tpl.model_type'):
    batches.run(config, params, _batch())
