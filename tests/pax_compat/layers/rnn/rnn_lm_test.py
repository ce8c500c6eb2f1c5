"""The recurrent language model against loops in numpy.

Shapes: B batch, T time, D embedding dims, N output nodes, H hidden nodes, V
vocabulary.
"""

import functools

import jax
import numpy as np
import pytest
from scipy import special

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import GreedyDecoderHParams
from pax_compat.layers import models
from pax_compat.layers.rnn import rnn_lm
from pax_compat.layers.rnn.recurrent import LstmFrnn
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.layers.softmaxes.sampled_softmax import SampledSoftmax
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_rnn, step_by_step, token_batches
from tests.pax_compat.layers.token_batches import LENGTHS, V

D, N, H = 3, 4, 6
BATCH = token_batches.batch()
SEGMENTS = np.array([[1, 1, 2, 2, 2], [1, 2, 2, 0, 0], [1, 0, 0, 0, 0]])


def _config(*, packed=False, num_layers=2, **fields):
  config = rnn_lm.RnnLm.config(
    vocab_size=V, embedding_dims=D, rnn_dims=N, packed_input=packed, **fields
  )
  cell = LstmCellSimple.config(num_hidden_nodes=H, reset_cell_state=packed)
  config.rnns_tpl.set(
    frnn_tpl=LstmFrnn.config(cell_tpl=cell), num_layers=num_layers
  )
  return config


def _model(config, **fields):
  return models.LanguageModel.config(lm_tpl=config, **fields)


@functools.cache
def _params(packed=False):
  batch = NestedMap(BATCH, segment_ids=SEGMENTS) if packed else BATCH
  model = _model(_config(packed=packed))
  return token_batches.random_weights(model, batch, scale=0.7)['lm']


def _hidden(params, ids, segment_ids=None):
  x = params['embedding']['emb_var'][ids]
  for i in range(2):
    x, _ = numpy_rnn.lstm(
      {},
      params['rnns'][f'frnn_{i}']['cell'],
      x,
      BATCH.paddings,
      segment_ids=segment_ids,
    )
  return x


def _logits(params, hidden):
  output = params['softmax']['logits_ffn']
  return hidden @ output['linear']['w'] + output['bias']['b']


@pytest.mark.parametrize('packed', [False, True])
def test_probabilities_and_the_loss(packed):
  layer = _config(packed=packed).Instantiate()
  variables = {PARAMS: _params(packed)}
  segments = {'segment_ids': SEGMENTS} if packed else {}
  hidden = _hidden(_params(packed), BATCH.ids, segments.get('segment_ids'))
  logits = _logits(_params(packed), hidden)
  output = layer.apply(variables, BATCH.ids, BATCH.paddings, **segments)
  np.testing.assert_allclose(output.last_hidden, hidden, atol=1e-5)
  np.testing.assert_allclose(output.logits, logits, atol=1e-5)
  log_probs = special.log_softmax(logits, -1)
  np.testing.assert_allclose(output.log_probs, log_probs, atol=1e-5)
  np.testing.assert_allclose(output.probs, np.exp(log_probs), atol=1e-5)
  labels = NestedMap(class_ids=BATCH.labels, class_weights=BATCH.weights)
  output = layer.apply(variables, BATCH.ids, BATCH.paddings, labels, **segments)
  total, nats, _, each = token_batches.token_sums(
    logits, BATCH.labels, BATCH.weights
  )
  np.testing.assert_allclose(output.total_loss, nats / total, rtol=1e-5)
  np.testing.assert_allclose(output.per_sequence_xent, each, rtol=1e-5)


def test_packed_examples_are_those_on_their_own():
  params, packed = {PARAMS: _params(True)}, _config(packed=True).Instantiate()
  ids = np.array([[3, 1, 4, 1, 5]], np.int32)
  together = packed.apply(
    params, ids, 0.0 * ids, segment_ids=np.array([[1, 1, 2, 2, 2]])
  )
  alone = _config().Instantiate()
  for part in (slice(0, 2), slice(2, 5)):
    one = alone.apply(params, ids[:, part], 0.0 * ids[:, part])
    np.testing.assert_allclose(one.logits, together.logits[:, part], atol=1e-5)


def test_as_the_network_of_a_language_model():
  got, _ = token_batches.run(_model(_config()), {'lm': _params()}, BATCH)
  logits = _logits(_params(), _hidden(_params(), BATCH.ids))
  total, nats, right, _ = token_batches.token_sums(
    logits, BATCH.labels, BATCH.weights
  )
  mean = (nats / total, total)
  want = {
    **dict.fromkeys(('total_loss', 'loss', 'avg_xent', 'log_pplx'), mean),
    'fraction_of_correct_next_step_preds': (right / total, total),
    'num_predictions': (total, 1),
  }
  token_batches.assert_metrics(got, want)


def test_training_with_dropout_and_a_sampled_softmax():
  config = _config(
    softmax_tpl=SampledSoftmax.config(num_sampled=3, sparse_gradients=True)
  )
  config.embedding_tpl.sparse_gradients = True
  config.embedding_dropout_tpl.keep_prob = 0.8
  config.rnns_tpl.dropout_tpl.keep_prob = 0.8
  model = _model(config)
  params = token_batches.random_weights(model, BATCH)
  layer = model.Instantiate()

  @jax.jit
  def loss(params, key):
    metrics, _ = layer.apply({PARAMS: params}, BATCH, rngs={RANDOM: key})
    return metrics.loss[0]

  found = [float(loss(params, jax.random.key(seed))) for seed in (0, 0, 1)]
  assert found[0] == found[1] != found[2]
  gradients = jax.grad(loss)(params, jax.random.key(0))
  assert all(np.any(g != 0) for g in jax.tree.leaves(gradients))
  # At evaluation nothing is drawn.
  once, again = (token_batches.run(model, params, BATCH)[0] for _ in range(2))
  np.testing.assert_array_equal(once.loss[0], again.loss[0])


def test_vectors_instead_of_tokens():
  layer = _config(embedding_tpl=None).Instantiate()
  params = {k: v for k, v in _params().items() if k != 'embedding'}
  vectors = _params()['embedding']['emb_var'][BATCH.ids]
  output = layer.apply({PARAMS: params}, vectors, BATCH.paddings)
  np.testing.assert_allclose(
    output.last_hidden, _hidden(_params(), BATCH.ids), atol=1e-5
  )


def _conditional():
  """Returns a model with a condition, its weights and the condition."""
  rng = np.random.default_rng(4)
  config = _config(condition_dims=2)
  condition = rng.normal(size=[len(LENGTHS), 2]).astype(np.float32)
  params = jax.tree.map(np.copy, _params())
  cell = params['rnns']['frnn_0']['cell']
  more = rng.normal(size=[2, cell['wm'].shape[1]]).astype(np.float32)
  cell['wm'] = np.insert(cell['wm'], [D, D], more, axis=0)
  return config.Instantiate(), params, condition


def test_a_condition_beside_each_token():
  layer, params, condition = _conditional()
  output = layer.apply(
    {PARAMS: params}, BATCH.ids, BATCH.paddings, condition=condition
  )
  x = params['embedding']['emb_var'][BATCH.ids]
  each = np.repeat(condition[:, None], x.shape[1], axis=1)
  of_vectors = _config(embedding_tpl=None).Instantiate()
  of_vectors = of_vectors.clone(embedding_dims=D + 2)
  params = {k: v for k, v in params.items() if k != 'embedding'}
  want = of_vectors.apply(
    {PARAMS: params}, np.concatenate([x, each], axis=-1), BATCH.paddings
  )
  np.testing.assert_allclose(output.logits, want.logits, atol=1e-5)


def test_a_condition_step_by_step():
  layer, params, condition = _conditional()
  ids = BATCH.ids
  whole = layer.apply(
    {PARAMS: params}, ids, 0.0 * ids, condition=condition
  ).logits
  steps = step_by_step.decode(
    layer, params, ids, [1, 4], len(ids), 5, init={'condition': condition}
  )
  np.testing.assert_allclose(steps, whole, atol=1e-5)


@pytest.mark.parametrize('dims', [None, 1])
def test_a_condition_that_does_not_fit(dims):
  layer, params, condition = _conditional()
  condition = None if dims is None else condition[:, :dims]
  with pytest.raises(errors.UserError, match='condition_dims is 2'):
    layer.apply(
      {PARAMS: params}, BATCH.ids, BATCH.paddings, condition=condition
    )


@pytest.mark.parametrize('sizes', [[1] * 5, [3, 2]])
def test_step_by_step(sizes):
  layer = _config().Instantiate()
  ids = BATCH.ids
  whole = layer.apply({PARAMS: _params()}, ids, 0.0 * ids).logits
  steps = step_by_step.decode(layer, _params(), ids, sizes, len(ids), 5)
  np.testing.assert_allclose(steps, whole, atol=1e-5)


@pytest.mark.parametrize('at_once', [False, True])
def test_decoding(at_once):
  """The most likely tokens, as found by a model that starts over each time."""
  length = 8
  decoder = GreedyDecoderHParams(
    seqlen=length,
    max_decode_steps=length - 5 if at_once else None,
    fprop_for_prefix=at_once,
    eos_id=-1,  # Nothing ends a sequence.
  )
  layer = _model(_config(), decoder_tpl=decoder).Instantiate()
  with base_layer.eval_mode():
    (_, result, _), _ = jax.jit(
      functools.partial(layer.apply, method='decode', mutable=[DECODE_CACHE])
    )({PARAMS: {'lm': _params()}}, BATCH)
  network = jax.jit(_config().Instantiate().apply)
  for row, start in enumerate(LENGTHS):
    end = start + 3 if at_once else length
    ids = np.zeros([1, length], np.int32)
    ids[0, :start] = BATCH.ids[row, :start]
    for position in range(start, end):
      output = network({PARAMS: _params()}, ids, 0.0 * ids)
      ids[0, position] = output.logits[0, position - 1].argmax()
    np.testing.assert_array_equal(result.output_ids[row, 0, :end], ids[0, :end])


@pytest.mark.parametrize('packed', [False, True])
def test_segment_ids_are_for_packed_examples(packed):
  segments = {} if packed else {'segment_ids': SEGMENTS}
  layer = _config(packed=packed).Instantiate()
  with pytest.raises(errors.UserError, match=f'packed_input is {packed}'):
    layer.apply({PARAMS: _params()}, BATCH.ids, BATCH.paddings, **segments)


def test_a_template_of_other_dims_is_refused():
  config = _config()
  config.softmax_tpl.input_dims = 77
  with pytest.raises(errors.UserError, match='softmax_tpl.input_dims is 77'):
    token_batches.random_weights(_model(config), BATCH)
