"""Sequence models against sums in numpy, and whole passes without a cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS
from pax_compat.layers import models
from pax_compat.layers.embeddings import embedding_tables
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.layers.transformers import stacked_transformers
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test
from tests.pax_compat.layers import token_batches as batches
from tests.pax_compat.layers.token_batches import V

STEPS, NO_EOS = 6, -1


def _config(repeated=False, **fields):
  config = models.SequenceModel.config(**fields)
  network = config.model_tpl.set(model_dims=8)
  # With shared weights, tokens would mostly predict themselves.
  network.decoder_embedding_tpl = embedding_tables.Embedding.config(
    num_classes=V
  )
  network.softmax_tpl = full_softmax.FullSoftmax.config(num_classes=V)
  for side in ('encoder', 'decoder'):
    stack = stacked_transformers.StackedTransformer.config(
      num_layers=2, hidden_dims=8, num_heads=2
    )
    if repeated:
      stack = stacked_transformers.StackedTransformerRepeated.config(
        block=stack.set(num_layers=1), x_times=2
      )
    setattr(network, f'{side}_stacked_transformer_tpl', stack)
  return config


def _batch():
  """Returns a batch whose sources are longer than its targets."""
  rng = np.random.default_rng(2)
  paddings = (np.arange(7) >= [[7], [4], [2]]).astype(np.float32)
  ids = rng.integers(1, V, (3, 7)).astype(np.int32)
  return NestedMap(
    src=NestedMap(ids=ids, paddings=paddings), tgt=batches.batch()
  )


@functools.cache
def _params(repeated=False):
  return batches.random_weights(_config(repeated), _batch(), scale=1.2)


def _want(data):
  logits = batches.predictions(_config(), _params(), data).logits
  return batches.token_sums(logits, data.tgt.labels, data.tgt.weights)


@pytest.mark.parametrize('fill', [lambda b: b, batches.padded])
def test_metrics(fill):
  total, nats, right, of_rows = _want(_batch())
  mean = (nats / total, total)
  got, outputs = batches.run(_config(), _params(), fill(_batch()))
  batches.assert_metrics(
    got,
    {
      **dict.fromkeys(('total_loss', 'loss', 'avg_xent', 'log_pplx'), mean),
      'fraction_of_correct_next_step_preds': (right / total, total),
      'num_predictions': (total, 1),
      'aux_loss': (0, 1),
    },
  )
  np.testing.assert_allclose(outputs.scores[:3], -of_rows, rtol=1e-5)
  if len(outputs.scores) > 3:
    assert outputs.scores[3] == 0 and outputs.eval_sample_weights[3] == 0


@pytest.mark.parametrize('fill', [lambda b: b, batches.padded])
def test_the_loss_may_be_that_of_sequences(fill):
  _, nats, *_ = _want(_batch())
  got, _ = batches.run(
    _config(loss_per_sequence=True), _params(), fill(_batch())
  )
  for name in ('loss', 'total_loss'):
    np.testing.assert_allclose(got[name], (nats / 3, 3), rtol=1e-5)


def test_padding_of_a_source_does_not_matter():
  data = _batch()
  want, _ = batches.run(_config(), _params(), data)
  data.src.ids = np.where(data.src.paddings == 1, 3, data.src.ids)
  got, _ = batches.run(_config(), _params(), data)
  batches.assert_metrics(got, want)


def test_label_smoothing():
  """A tenth of the probability goes to the other tokens."""
  data = _batch()
  metrics, _ = batches.run(_config(label_smoothing_prob=0.1), _params(), data)
  logits = batches.predictions(_config(), _params(), data).logits
  log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)
  target = np.full(log_probs.shape, 0.1 / (V - 1))
  np.put_along_axis(target, data.tgt.labels[..., None], 0.9, axis=-1)
  xent = -(target * log_probs).sum(-1)
  np.testing.assert_allclose(
    metrics.loss[0], (xent * data.tgt.weights).sum() / 9, rtol=1e-5
  )
  config = _config(label_smoothing_prob=0.1)
  config.model_tpl.softmax_tpl.label_smoothing_prob = 0.2
  with pytest.raises(errors.UserError, match='label_smoothing_prob is 0.2'):
    batches.run(config, _params(), data)


def test_outputs_may_be_the_predictions():
  _, outputs = batches.run(
    _config(return_predictions=True), _params(), _batch()
  )
  assert outputs.logits.shape == (3, 5, V)
  assert {x.shape[0] for x in outputs.values()} == {3}


def test_packed_examples_are_as_good_as_separate_ones():
  data = _batch()

  def packed(part, names, lengths, end=2):
    row = NestedMap(
      segment_ids=np.repeat([*range(1, len(lengths) + 1), 0], [*lengths, end])
    )
    for name in names:
      rows = [part[name][b, :n] for b, n in enumerate(lengths)]
      row[name] = np.concatenate([*rows, np.zeros([end], part[name].dtype)])
    row.paddings = (row.segment_ids == 0).astype(np.float32)
    return NestedMap({k: v[None] for k, v in row.items()})

  config = _config()
  config.model_tpl.packed_input = True
  together = NestedMap(
    src=packed(data.src, ['ids'], [7, 4, 2]),
    tgt=packed(data.tgt, ['ids', 'labels', 'weights'], batches.LENGTHS),
  )
  got, _ = batches.run(config, _params(), together)
  want, _ = batches.run(_config(), _params(), data)
  batches.assert_metrics(got, want)
  # As many sequences, in one row.
  config.loss_per_sequence = True
  of_rows, _ = batches.run(config, _params(), together)
  nats = want['loss'][0] * want['loss'][1]
  np.testing.assert_allclose(of_rows['loss'], (nats / 3, 1), rtol=1e-5)
  with pytest.raises(errors.UserError, match='no segment_ids'):
    batches.run(config, _params(), data)


def test_encode():
  model = _config().Instantiate()
  with base_layer.eval_mode():
    out = model.apply({PARAMS: _params()}, _batch().src, method=model.encode)
  assert out.embeddings.shape == (3, 7, 8)


def _slow_decode(repeated, prefix_lengths):
  """Returns (ids, logprobs) of each row, by a whole pass for each token."""
  model = _config(repeated).Instantiate()
  data = _batch()

  def log_probs(model, src, ids, length):
    paddings = (jnp.arange(STEPS) >= length)[None].astype(jnp.float32)
    output = model.model(src.ids, src.paddings, ids[None], paddings)
    return output.log_probs[0, length - 1]

  run = jax.jit(
    lambda *args: model.apply(
      {PARAMS: _params(repeated)}, *args, method=log_probs
    )
  )
  rows = []
  for row, prefix in enumerate(prefix_lengths):
    src = jax.tree.map(lambda x, row=row: x[row : row + 1], data.src)
    ids = np.zeros([STEPS], np.int32)
    ids[:prefix] = data.tgt.ids[row, :prefix]
    chosen = []
    for length in range(prefix, STEPS):
      found = np.asarray(run(src, ids, length))
      ids[length] = found.argmax()
      chosen.append(found.max())
    rows.append((ids, chosen))
  return rows


@functools.cache
def _decoder(repeated=False, **settings):
  """Returns the compiled function (params, batch) -> what decode returns."""
  config = _config(
    repeated,
    decoder_tpl=models.GreedyDecoderHParams.config(seqlen=STEPS, **settings),
  )
  model = config.Instantiate()

  @jax.jit
  def run(params, batch):
    return model.apply(
      {PARAMS: params}, batch, method=model.decode, mutable=[DECODE_CACHE]
    )[0]

  return run


def _decode(data, repeated=False, **settings):
  with base_layer.eval_mode():
    metrics, out, clu_metrics = _decoder(repeated, **settings)(
      _params(repeated), data
    )
  return metrics, greedy_test.first_sample(out), clu_metrics


@pytest.mark.parametrize('repeated', [False, True])
@pytest.mark.parametrize('prefix_lengths', [None, [2, 1, 3]])
def test_greedy_is_the_argmax_of_whole_passes(repeated, prefix_lengths):
  data = _batch()
  if prefix_lengths is not None:
    data.prefix_lengths = np.array(prefix_lengths)
  lengths = prefix_lengths or [1, 1, 1]
  with base_layer.eval_mode():
    want = _slow_decode(repeated, lengths)
  metrics, out, clu_metrics = _decode(data, repeated, eos_id=NO_EOS)
  assert metrics == {'num_decoded': (3, 1)} and not clu_metrics
  # Else this shows little.
  assert len({tuple(ids[3:]) for ids, _ in want}) > 1
  for row, (ids, logprobs) in enumerate(want):
    np.testing.assert_array_equal(out.output_ids[row], ids)
    np.testing.assert_allclose(
      out.logprobs[row, lengths[row] :], logprobs, rtol=1e-4, atol=1e-5
    )
  np.testing.assert_array_equal(out.prefix_lengths, lengths)
  np.testing.assert_array_equal(out.decode_lengths, STEPS)
  np.testing.assert_array_equal(out.original_lengths, batches.LENGTHS)
  np.testing.assert_array_equal(out.src.ids, data.src.ids)


def test_sequences_end():
  _, free, _ = _decode(_batch(), eos_id=NO_EOS)
  eos = int(free.output_ids[0, 2])
  _, out, _ = _decode(_batch(), eos_id=eos)
  for row, ids in enumerate(np.asarray(free.output_ids)):
    ends = np.flatnonzero(ids[1:] == eos)
    end = ends[0] + 2 if len(ends) else STEPS
    assert out.decode_lengths[row] == end
    np.testing.assert_array_equal(out.output_ids[row, :end], ids[:end])
    assert not np.any(out.output_ids[row, end:])
  _, out, _ = _decode(_batch(), eos_id=NO_EOS, max_decode_steps=2)
  np.testing.assert_array_equal(out.decode_lengths, 3)


def test_only_what_counts_is_decoded():
  metrics, out, _ = _decode(batches.padded(_batch()), eos_id=NO_EOS)
  assert metrics.num_decoded == (3, 1)
  _, want, _ = _decode(_batch(), eos_id=NO_EOS)
  np.testing.assert_array_equal(out.output_ids[:3], want.output_ids)


def test_prefixes_are_read_in_one_step_too():
  batch = _batch()
  batch.prefix_lengths = np.array([1, 3, 2])
  settings = dict(eos_id=NO_EOS, max_decode_steps=3)
  _, want, _ = _decode(batch, **settings)
  _, out, _ = _decode(batch, fprop_for_prefix=True, **settings)
  np.testing.assert_array_equal(out.decode_lengths, want.decode_lengths)
  for row, end in enumerate(np.asarray(want.decode_lengths)):
    np.testing.assert_array_equal(
      out.output_ids[row, :end], want.output_ids[row, :end]
    )


def _decode_with(decoder):
  model = _config(False, decoder_tpl=decoder).Instantiate()

  @jax.jit
  def run(params, batch):
    with base_layer.eval_mode():
      return model.apply(
        {PARAMS: params},
        batch,
        method=model.decode,
        mutable=[DECODE_CACHE],
        rngs={base_layer.RANDOM: jax.random.key(0)},
      )[0]

  return run(_params(False), _batch())


@pytest.mark.slow
def test_samples_and_beams():
  settings = dict(seqlen=STEPS, eos_id=NO_EOS, max_decode_steps=STEPS - 1)
  _, greedy, _ = _decode(_batch(), eos_id=NO_EOS)
  _, samples, _ = _decode_with(
    models.SampleDecoderHParams.config(
      num_samples=2, temperature=0.0, **settings
    )
  )
  assert samples.output_ids.shape == (3, 2, STEPS)
  for sample in range(2):
    np.testing.assert_array_equal(
      samples.output_ids[:, sample], greedy.output_ids
    )
  _, beams, _ = _decode_with(
    models.BeamSearchHParams.config(
      beam_size=3, length_norm_alpha=0.0, **settings
    )
  )
  np.testing.assert_array_equal(beams.decode_lengths, np.full([3, 3], STEPS))
  best = np.where(greedy.logprobs < 1, greedy.logprobs, 0).sum(axis=1)
  assert (beams.scores[:, 0] >= best - 1e-4).all()
  found = np.where(beams.logprobs < 1, beams.logprobs, 0).sum(axis=2)
  np.testing.assert_allclose(beams.scores, found, rtol=1e-4)


@pytest.mark.slow
def test_a_source_guides():
  settings = dict(
    seqlen=STEPS,
    eos_id=NO_EOS,
    max_decode_steps=1,
    temperature=0.0,
    fprop_for_prefix=True,
  )

  def decode(scale):
    _, out, _ = _decode_with(
      models.SampleDecoderHParams.config(cf_guidance_scale=scale, **settings)
    )
    return out

  plain, out, guided = decode(None), decode(1.0), decode(3.0)
  np.testing.assert_array_equal(out.output_ids, plain.output_ids)
  # By whole passes: of all of a source, and of its first token.
  model, data = _config().Instantiate(), _batch()

  def log_probs(model, paddings):
    return model.model(
      data.src.ids, paddings, data.tgt.ids[:, :1], np.zeros([3, 1])
    ).logits[:, 0]

  with base_layer.eval_mode():
    given, without = (
      model.apply({PARAMS: _params()}, paddings, method=log_probs)
      for paddings in (
        data.src.paddings,
        np.where(np.arange(7) > 0, 1.0, data.src.paddings),
      )
    )
  logits = without + 3.0 * (given - without)
  np.testing.assert_array_equal(
    guided.output_ids[:, 0, 1], np.argmax(logits, axis=-1)
  )
  np.testing.assert_allclose(
    guided.logprobs[:, 0, 1],
    np.max(jax.nn.log_softmax(logits), axis=-1),
    atol=1e-4,
  )
  assert not np.allclose(guided.logprobs, plain.logprobs)


class Texts:
  """An input with letters for sources, and capitals for targets."""

  def ids_to_strings(self, ids, lengths, key=None):
    first = {'src': 'a', 'tgt': 'A'}[key]
    return [
      ''.join(chr(ord(first) + i) for i in row[:n])
      for row, n in zip(ids, lengths, strict=True)
    ]


def test_texts_of_what_was_decoded():
  paddings = np.array([[0, 0, 1], [0, 1, 1]], np.float32)
  out = NestedMap(
    src=NestedMap(ids=np.array([[1, 2, 0], [3, 0, 0]]), paddings=paddings),
    tgt=NestedMap(ids=np.array([[4, 5, 0], [6, 0, 0]]), paddings=paddings),
    output_ids=np.array([[7, 8, 9], [9, 8, 0]]),
    original_lengths=np.array([2, 1]),
    decode_lengths=np.array([3, 2]),
    logprobs=np.zeros([2, 3]),
  )
  model = _config().Instantiate()
  metrics, pairs, clu_metrics = model.process_decode_out(Texts(), out)
  assert metrics == {'decode_length': (2.5, 2)} and not clu_metrics
  assert [key for key, _ in pairs] == ['bc', 'd']
  value = pairs[0][1]
  texts = {k: v for k, v in value.items() if isinstance(v, str)}
  assert texts == {
    'source': 'bc',
    'prefix': 'bc',
    'decoded': 'HIJ',
    'decoded_substr': 'HIJ',
    'target': 'EF',
  }
  np.testing.assert_array_equal(value['ids'], [7, 8, 9])
  assert value['decode_length'] == 3 and value['logprobs'].shape == (3,)
  out.eval_sample_weights = np.array([1.0, 0.0])
  metrics, pairs, _ = model.process_decode_out(Texts(), out)
  assert [key for key, _ in pairs] == ['bc']
  assert metrics == {'decode_length': (3, 1)}
