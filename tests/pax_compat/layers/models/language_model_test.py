"""Language models against sums in numpy, token by token."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.layers import models
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.pax_compat.layers import token_batches as batches
from tests.pax_compat.layers.token_batches import LENGTHS, V
from tests.pax_compat.trainer import tiny


def _config(**fields):
  config = models.LanguageModel.config(**fields)
  config.lm_tpl.set(vocab_size=V, model_dims=8)
  config.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, hidden_dims=8, num_heads=2
  )
  return config


def _batch():
  return NestedMap(batches.batch(), word_count=LENGTHS - 1)


@pytest.fixture(scope='module')
def params():
  return batches.random_weights(_config(), _batch())


def _want(params, data):
  """Returns the metrics, computed from the model's logits."""
  logits = batches.predictions(_config(), params, data).logits
  total, nats, right, _ = batches.token_sums(logits, data.labels, data.weights)
  words = sum(LENGTHS)
  mean = (nats / total, total)
  return {
    **dict.fromkeys(('total_loss', 'loss', 'avg_xent', 'log_pplx'), mean),
    'fraction_of_correct_next_step_preds': (right / total, total),
    'num_predictions': (total, 1),
    'aux_loss': (0, 1),
    'log_pplx_per_word': (nats / words, words),
    'num_words': (words, 1),
    'num_sentences': (len(LENGTHS), 1),
  }


def _filled(data):
  """Returns the batch with an example whose tokens all have weight 0."""
  grown = jax.tree.map(lambda x: np.concatenate([x, x[:1]]), data)
  grown.weights[-1], grown.paddings[-1] = 0, 1
  grown.word_count[-1] = 1000
  return grown


@pytest.mark.parametrize('fill', [lambda b: b, _filled, batches.padded])
def test_metrics(params, fill):
  got, outputs = batches.run(_config(), params, fill(_batch()))
  batches.assert_metrics(got, _want(params, _batch()))
  *_, nats = batches.token_sums(
    batches.predictions(_config(), params, _batch()).logits,
    _batch().labels,
    _batch().weights,
  )
  np.testing.assert_allclose(outputs.scores[:3], -nats, rtol=1e-5)
  np.testing.assert_array_equal(outputs.labels[:3], _batch().labels)
  if len(outputs.scores) > 3:
    assert outputs.scores[3] == 0


def test_sentences_of_packed_examples(params):
  data = _batch()
  data.num_sentences = np.array([2, 1, 1], np.int32)
  got, _ = batches.run(_config(), params, batches.padded(data))
  want, words = _want(params, data), sum(LENGTHS) + 1
  nats = want['log_pplx_per_word'][0] * sum(LENGTHS)
  want.update(
    num_words=(words, 1),
    num_sentences=(4, 1),
    log_pplx_per_word=(nats / words, words),
  )
  batches.assert_metrics(got, want)


def test_gradients_do_not_depend_on_what_fills_a_batch(params):
  layer = _config().Instantiate()

  def gradient(data):
    def loss(params):
      return layer.apply({PARAMS: params}, data)[0].loss[0]

    return jax.jit(jax.grad(loss))(params)

  want = gradient(_batch())
  got = gradient(batches.padded(_batch()))
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6),
    got,
    want,
  )


@pytest.mark.parametrize('chunk_size', [None, 0])
def test_a_training_step_holds_no_logits_of_a_batch(chunk_size):
  """Unless chunk_size is 0."""
  rows, length, classes = 8, 256, 4096
  config = tiny.task()
  config.model.lm_tpl.vocab_size = classes
  config.model.lm_tpl.softmax_tpl.chunk_size = chunk_size
  ids = np.zeros([rows, length], np.int32)
  data = NestedMap(ids=ids, labels=ids, paddings=ids + 0.0, weights=ids + 1.0)
  made = program.create(
    config.Instantiate(), partitioning.create_mesh(None, None), data
  )
  step = made.train_step.lower(made.abstract_state, data).compile()
  memory = step.memory_analysis().temp_size_in_bytes
  assert (memory > 4 * rows * length * classes) == (chunk_size == 0)


def test_weights_of_examples_may_be_left_aside(params):
  data = batches.padded(_batch())
  config = _config(apply_eval_sample_weights=False)
  got, outputs = batches.run(config, params, data)
  del data.eval_sample_weights
  want, _ = batches.run(_config(), params, data)
  batches.assert_metrics(got, want)
  assert 'eval_sample_weights' not in outputs


def test_the_loss_may_be_the_sum(params):
  mean, _ = batches.run(_config(), params, _batch())
  total, _ = batches.run(_config(sum_loss=True), params, _batch())
  for name in ('loss', 'total_loss'):
    np.testing.assert_allclose(total[name][0], mean.loss[0] * 9, rtol=1e-6)
    assert total[name][1] == 9
  assert total.log_pplx == mean.log_pplx
  assert total.avg_xent == mean.avg_xent


def test_what_the_network_adds_to_the_loss_counts(params):
  config = _config()
  config.lm_tpl.entropy_loss_weight = 0.5
  metrics, _ = batches.run(config, params, _batch())
  added = metrics.loss[0] - metrics.avg_xent[0]
  assert abs(added) > 0.1
  config.sum_loss = True
  total, _ = batches.run(config, params, _batch())
  np.testing.assert_allclose(
    total.loss[0], 9 * (metrics.avg_xent[0] + added), rtol=1e-5
  )


def test_words_are_counted_only_where_the_batch_has_them(params):
  metrics, _ = batches.run(_config(), params, batches.batch())
  assert not {'log_pplx_per_word', 'num_words', 'num_sentences'} & set(metrics)


def test_a_batch_that_is_all_filling(params):
  data = _batch()
  data.weights[:], data.paddings[:] = 0, 1
  metrics, _ = batches.run(_config(report_strict_acc=True), params, data)
  for name, (value, weight) in metrics.items():
    assert np.isfinite(value), name
    # Counts have weight 1 and value 0.
    assert weight == 0 or value == 0, name


def test_examples_that_are_all_right(params):
  data = _batch()
  best = batches.predictions(_config(), params, data).per_example_argmax
  data.labels = np.array(best)
  data.labels[0, 4] += 1  # Counts.
  data.labels[1, 3] += 1  # Is padding.
  config = _config(report_strict_acc=True)
  metrics, _ = batches.run(config, params, data)
  np.testing.assert_allclose(metrics.acc_strict, (2 / 3, 3), rtol=1e-6)
  metrics, _ = batches.run(config, params, batches.padded(data))
  np.testing.assert_allclose(metrics.acc_strict, (2 / 3, 3), rtol=1e-6)


def test_outputs_may_be_the_predictions(params):
  config = _config(return_predictions=True)
  _, outputs = batches.run(config, params, _batch())
  assert outputs.logits.shape == (3, 5, V)
  assert {x.shape[0] for x in outputs.values()} == {3}
  want = batches.predictions(config, params, _batch())
  np.testing.assert_array_equal(
    outputs.per_example_argmax, want.per_example_argmax
  )


def test_the_model_type_reaches_the_network():
  data = _batch()
  for config in (_config(model_type='bidirectional'), _config()):
    config.lm_tpl.model_type = 'bidirectional'
    weights = batches.random_weights(config, data)
    before = batches.predictions(config, weights, data).logits
    other = NestedMap(data, ids=data.ids.copy())
    other.ids[0, 4] += 1
    after = batches.predictions(config, weights, other).logits
    assert not np.allclose(before[0, 0], after[0, 0])
  config.model_type = 'causal'
  with pytest.raises(errors.UserError, match='lm_tpl.model_type'):
    batches.run(config, weights, data)


def test_a_prefix_sees_itself():
  config = _config(model_type='prefix')
  data = _batch()
  data.inputs_indicator = (np.arange(5) < [[3], [2], [1]]).astype(np.float32)
  weights = batches.random_weights(config, data)

  def logits(row, position):
    """Returns all logits, after a token of one row was changed."""
    other = NestedMap(data, ids=data.ids.copy())
    other.ids[row, position] += 1
    return batches.predictions(config, weights, other).logits

  before = batches.predictions(config, weights, data).logits
  assert not np.allclose(before[0, 0], logits(0, 2)[0, 0])
  np.testing.assert_allclose(before[0, :3], logits(0, 3)[0, :3], rtol=1e-5)
  del data.inputs_indicator
  with pytest.raises(errors.UserError, match='inputs_indicator'):
    batches.run(config, weights, data)


def _packed(data):
  """Returns the three examples in one row, and a label for each token."""
  rows = [data.labels[b, :n] for b, n in enumerate(LENGTHS)]
  ids = [data.ids[b, :n] for b, n in enumerate(LENGTHS)]
  end = np.zeros([3], np.int32)
  paddings = np.repeat([0.0, 1.0], [9, 3])[None].astype(np.float32)
  return NestedMap(
    ids=np.concatenate([*ids, end])[None],
    labels=np.concatenate([*rows, end])[None],
    paddings=paddings,
    weights=1 - paddings,
    segment_ids=np.repeat([1, 2, 3, 0], [*LENGTHS, 3])[None],
  )


@pytest.mark.parametrize('given', [True, False])
def test_packed_examples_are_as_good_as_separate_ones(params, given):
  config = _config()
  config.lm_tpl.packed_input = True
  data = _packed(_batch())
  if given:
    pos = [np.arange(n) for n in (*LENGTHS, 3)]
    data.segment_pos = np.concatenate(pos)[None]
  got, _ = batches.run(config, params, data)
  want, _ = batches.run(_config(), params, batches.batch())
  batches.assert_metrics(got, want)


def test_packed_examples_without_their_segments(params):
  config = _config()
  config.lm_tpl.packed_input = True
  with pytest.raises(errors.UserError, match='no segment_ids'):
    batches.run(config, params, _batch())


def test_a_mask_of_packed_examples_takes_the_place_of_their_ids(params):
  config = _config()
  config.lm_tpl.packed_input = True
  ids = np.array([[1, 1, 2, 2, 2]] * 3)
  hidden = np.where(ids[:, None, :, None] == ids[:, None, None], 0.0, -2e38)
  positions = np.array([[0, 1, 0, 1, 2]] * 3)
  data = NestedMap(_batch(), segment_ids=ids, segment_pos=positions)
  want, _ = batches.run(config, params, data)
  del data.segment_ids
  data.segment_mask = hidden.astype(np.float32)
  got, _ = batches.run(config, params, data)
  batches.assert_metrics(got, want)


def test_tokens_are_counted_while_training():
  config = _config(count_tokens=True)
  layer = config.Instantiate()
  variables = base_layer.unbox(
    layer.init({PARAMS: jax.random.key(0)}, _batch())
  )
  for _ in range(2):
    _, updated = layer.apply(variables, _batch(), mutable=[NON_TRAINABLE])
    variables = {**variables, **updated}
  counts = variables[NON_TRAINABLE]['token_counter']
  assert (counts['tokens_mm'], counts['tokens_below_mm']) == (0, 18)


def test_the_networks_config_is_left_alone():
  config = _config(model_type='bidirectional')
  batches.random_weights(config, _batch())
  assert not config_lib.is_set(config.lm_tpl, 'model_type')
  assert config.lm_tpl.cls is TransformerLm


class Texts:
  """An input whose texts are its tokens as letters."""

  def ids_to_strings(self, ids, lengths, key=None):
    assert key is None
    return [
      ''.join(chr(ord('a') + i) for i in row[:n])
      for row, n in zip(ids, lengths, strict=True)
    ]


def _decoded(weights=None):
  out = NestedMap(
    ids=np.array([[1, 2, 3], [4, 5, 0]]),
    original_lengths=np.array([3, 2]),
    prefix_ids=np.array([[1, 2, 0], [4, 0, 0]]),
    prefix_lengths=np.array([2, 1]),
    output_ids=np.array([[1, 2, 7, 8, 9], [4, 6, 0, 0, 0]]),
    decode_lengths=np.array([5, 2]),
    logprobs=np.array([[1, 1, -1, -2, -3], [1, -4, 1, 1, 1]]),
  )
  if weights is not None:
    out.eval_sample_weights = np.array(weights)
  return out


def test_texts_of_what_was_decoded():
  model = _config().Instantiate()
  metrics, pairs, clu_metrics = model.process_decode_out(Texts(), _decoded())
  assert metrics == {'decoded_length': (3.5, 2)} and not clu_metrics
  (key, first), (other_key, other) = pairs
  assert (key, other_key) == ('bc', 'e')
  assert {k: first[k] for k in first if isinstance(first[k], str)} == {
    'prefix': 'bc',
    'decoded': 'bchij',
    'decoded_substr': 'hij',
    'original': 'bcd',
  }
  assert (first['prefix_length'], first['decode_length']) == (2, 5)
  np.testing.assert_array_equal(first['decoded_ids'], [7, 8, 9])
  np.testing.assert_array_equal(first['ids'], [1, 2, 7, 8, 9])
  np.testing.assert_array_equal(first['logprobs'], [1, 1, -1, -2, -3])
  assert (other['decoded'], other['decoded_substr']) == ('eg', 'g')
  np.testing.assert_array_equal(other['decoded_ids'], [6])


def test_what_fills_a_batch_has_no_text():
  model = _config().Instantiate()
  metrics, pairs, _ = model.process_decode_out(Texts(), _decoded([0.0, 1.0]))
  assert [key for key, _ in pairs] == ['e']
  assert metrics == {'decoded_length': (2, 1)}
  metrics, pairs, _ = model.process_decode_out(Texts(), _decoded([0.0, 0.0]))
  assert pairs == [] and metrics == {'decoded_length': (0, 0)}


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({}, 'seqlen is 0'),
    (
      {
        'decoder_tpl': models.GreedyDecoderHParams(seqlen=8),
        'model_type': 'prefix',
      },
      'decoder_tpl.fprop_for_prefix is False; expected True',
    ),
    (
      {
        'decoder_tpl': models.GreedyDecoderHParams(seqlen=8),
        'model_type': 'bidirectional',
      },
      'does not decode',
    ),
    (
      {
        'decoder_tpl': models.GreedyDecoderHParams(
          seqlen=8, fprop_for_prefix=True
        )
      },
      'max_decode_steps is None',
    ),
    ({'decoder_tpl': models.DecoderHParams(seqlen=8)}, 'GreedyDecoderHParams'),
    ({'decoder_tpl': None}, 'GreedyDecoderHParams'),
  ],
)
def test_what_cannot_be_decoded(params, fields, message):
  model = _config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    model.apply(
      {PARAMS: params},
      _batch(),
      method=model.decode,
      mutable=[base_layer.DECODE_CACHE],
    )
