"""Greedy decoding against passes over whole sequences, without any cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS, BaseLayer
from pax_compat.decoder_hparams import GreedyDecoderHParams
from pax_compat.decoding import greedy, prefixes
from pax_compat.layers import models
from pax_compat.layers.embeddings import (
  embedding_tables,
  positional_embeddings,
)
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers import stacked_transformers
from pax_compat.nested_map import NestedMap

V, P, STEPS = 11, 5, 6
LENGTHS = np.array([5, 2, 1, 4])
NO_EOS = -1
SEED = 7


def lm_config(kind='stacked', model_type='causal'):
  """Returns a small network whose layers are stacked or repeated."""
  config = TransformerLm.config(
    vocab_size=V, model_dims=8, model_type=model_type
  )
  # With shared weights, tokens would mostly predict themselves.
  config.separate_embedding_tpl = embedding_tables.Embedding.config()
  config.softmax_tpl = full_softmax.FullSoftmax.config()
  stack = config.stacked_transformer_tpl
  stack.set(num_layers=2, num_heads=2, hidden_dims=16)
  if kind == 'repeated':
    config.stacked_transformer_tpl = (
      stacked_transformers.StackedTransformerRepeated.config(
        block=stack.set(num_layers=1), x_times=2
      )
    )
  return config


def prefix_batch():
  rng = np.random.default_rng(3)
  paddings = np.arange(P) >= LENGTHS[:, None]
  return NestedMap(
    # What stands at padding must not matter.
    ids=rng.integers(1, V, (len(LENGTHS), P)).astype(np.int32),
    paddings=paddings.astype(np.float32),
  )


def random_weights(config):
  """Returns weights of a network with which it does not repeat itself."""
  layer = config.Instantiate()
  ids = np.zeros([1, P], np.int32)
  shapes = jax.eval_shape(
    lambda: base_layer.unbox(
      layer.init({PARAMS: jax.random.key(0)}, ids, ids)[PARAMS]
    )
  )
  rng = np.random.default_rng(SEED)

  def random(path, shape):
    scale = 0.1 if path[-1].key in ('b', 'bias') else 1.5
    return (scale * rng.normal(size=shape.shape)).astype(np.float32)

  return jax.tree_util.tree_map_with_path(random, shapes)


def slow_decode(config, params, batch, steps, model_type='causal'):
  """Returns (ids, logprobs) of each row, by a whole pass for each token."""
  layer = config.Instantiate()
  total = P + steps

  @jax.jit
  def log_probs(ids, length, prefix):
    given = {}
    if model_type == 'prefix':
      given['causal_attention_mask'] = (jnp.arange(total) >= prefix)[None]
    paddings = (jnp.arange(total) >= length)[None].astype(jnp.float32)
    output = layer.apply({PARAMS: params}, ids[None], paddings, **given)
    return output.log_probs[0, length - 1]

  rows = []
  for row, prefix in enumerate(LENGTHS):
    ids = np.zeros([total], np.int32)
    ids[:prefix] = batch.ids[row, :prefix]
    chosen = []
    for length in range(prefix, prefix + steps):
      found = np.asarray(log_probs(ids, length, prefix))
      ids[length] = found.argmax()
      chosen.append(found.max())
    rows.append((ids[: prefix + steps], np.array(chosen)))
  return rows


@functools.cache
def expected(kind, model_type):
  """Returns a network's weights, and what it decodes without an end."""
  config = lm_config(kind, model_type)
  params = random_weights(config)
  with base_layer.eval_mode():
    rows = slow_decode(config, params, prefix_batch(), STEPS, model_type)
  return params, rows


@functools.cache
def decoder(kind, model_type, **settings):
  """Returns the compiled function (params, batch) -> what decode returns."""
  settings = {'seqlen': P + STEPS, 'max_decode_steps': STEPS, **settings}
  model = models.LanguageModel.config(
    lm_tpl=lm_config(kind, model_type),
    decoder_tpl=GreedyDecoderHParams.config(**settings),
  ).Instantiate()

  @jax.jit
  def run(params, batch):
    return model.apply(
      {PARAMS: {'lm': params}},
      batch,
      method=model.decode,
      mutable=[DECODE_CACHE],
    )[0]

  return run


def fast_decode(params, batch, kind='stacked', model_type='causal', **settings):
  """Returns what the model decodes."""
  with base_layer.eval_mode():
    metrics, out, clu_metrics = decoder(kind, model_type, **settings)(
      params, batch
    )
  assert metrics['num_decoded'] == (len(batch.ids), 1)
  assert not clu_metrics
  return first_sample(jax.tree.map(np.asarray, out))


def first_sample(out):
  """Returns results [B, ...] for those of one sample, [B, 1, ...]."""
  assert out.output_ids.shape[1] == 1
  names = {'output_ids', 'decode_lengths', 'original_lengths', 'logprobs'}
  names |= {'prefix_ids', 'prefix_lengths', 'doubled'} & set(out)
  return NestedMap({**out, **{name: out[name][:, 0] for name in names}})


def ended(rows, eos):
  """Returns the rows, cut off after the first such token behind the prefix."""
  cut = []
  for (ids, logprobs), prefix in zip(rows, LENGTHS, strict=True):
    ends = [i for i in range(prefix, len(ids)) if ids[i] in eos]
    end = ends[0] + 1 if ends else len(ids)
    cut.append((ids[:end], logprobs[: end - prefix]))
  return cut


def check(out, rows, *, prefix_logprobs):
  """Compares what was decoded with the rows that are right."""
  for row, (ids, logprobs) in enumerate(rows):
    prefix, length = LENGTHS[row], len(ids)
    assert out.prefix_lengths[row] == prefix
    assert out.decode_lengths[row] == length
    np.testing.assert_array_equal(out.output_ids[row, :length], ids)
    assert (out.output_ids[row, length:] == 0).all()
    np.testing.assert_array_equal(out.prefix_ids[row, :prefix], ids[:prefix])
    assert (out.prefix_ids[row, prefix:] == 0).all()
    found = out.logprobs[row]
    np.testing.assert_allclose(
      found[prefix:length], logprobs, rtol=1e-4, atol=1e-5
    )
    assert (found[length:] == 1).all() and found[0] == 1
    assert ((found[1:prefix] <= 0) == prefix_logprobs).all()


@pytest.mark.parametrize('fprop', [False, True])
@pytest.mark.parametrize('kind', ['stacked', 'repeated'])
def test_greedy_is_the_argmax_of_whole_passes(kind, fprop):
  params, rows = expected(kind, 'causal')
  # Else this shows little.
  assert len({tuple(ids[-STEPS:]) for ids, _ in rows}) > 2
  out = fast_decode(
    params,
    prefix_batch(),
    kind,
    fprop_for_prefix=fprop,
    eos_id=NO_EOS,
  )
  assert out.output_ids.shape == (len(LENGTHS), P + STEPS)
  np.testing.assert_array_equal(out.original_lengths, LENGTHS)
  check(out, rows, prefix_logprobs=not fprop)


def test_a_prefix_whose_tokens_see_each_other():
  params, rows = expected('stacked', 'prefix')
  batch = prefix_batch()
  batch.inputs_indicator = 1 - batch.paddings
  out = fast_decode(
    params, batch, model_type='prefix', fprop_for_prefix=True, eos_id=NO_EOS
  )
  check(out, rows, prefix_logprobs=False)
  causal = fast_decode(params, batch, fprop_for_prefix=True, eos_id=NO_EOS)
  assert not np.array_equal(causal.output_ids, out.output_ids)


@pytest.mark.parametrize('fprop', [False, True])
def test_sequences_end_with_any_of_their_last_tokens(fprop):
  params, rows = expected('stacked', 'causal')
  eos = (int(rows[0][0][LENGTHS[0] + 1]), int(rows[1][0][LENGTHS[1] + 3]))
  want = ended(rows, eos)
  assert len({len(logprobs) for _, logprobs in want}) > 1
  out = fast_decode(params, prefix_batch(), fprop_for_prefix=fprop, eos_id=eos)
  check(out, want, prefix_logprobs=not fprop)


@pytest.mark.parametrize('fprop', [False, True])
def test_no_sequence_ends_too_early(fprop):
  """Where the last token is forbidden, the next best one stands."""
  params, rows = expected('stacked', 'causal')
  eos = int(rows[0][0][LENGTHS[0]])
  settings = dict(fprop_for_prefix=fprop, eos_id=eos)
  batch = prefix_batch()
  early = fast_decode(params, batch, **settings)
  assert early.decode_lengths[0] == LENGTHS[0] + 1
  late = fast_decode(params, batch, min_decode_steps=3, **settings)
  for row, prefix in enumerate(LENGTHS):
    end = late.decode_lengths[row]
    decoded = late.output_ids[row, prefix:end]
    assert end - prefix > 3 or end == P + STEPS
    assert (decoded[:3] != eos).all()
  assert late.logprobs[0, LENGTHS[0]] < early.logprobs[0, LENGTHS[0]]


@pytest.mark.parametrize('fprop', [False, True])
def test_the_limits_of_a_sequence(fprop):
  params, rows = expected('stacked', 'causal')
  out = fast_decode(
    params,
    prefix_batch(),
    seqlen=6,
    max_decode_steps=3,
    fprop_for_prefix=fprop,
    eos_id=NO_EOS,
  )
  # As in Pax, `seqlen` has no effect on prefixes that are read in one step.
  lengths = np.minimum(LENGTHS + 3, np.inf if fprop else 6).astype(int)
  check(
    out,
    [
      (ids[:length], logprobs[: length - prefix])
      for (ids, logprobs), length, prefix in zip(
        rows, lengths, LENGTHS, strict=True
      )
    ],
    prefix_logprobs=not fprop,
  )


def test_a_prefix_that_is_too_long_is_cut_off():
  params, rows = expected('stacked', 'causal')
  out = fast_decode(params, prefix_batch(), seqlen=3)
  np.testing.assert_array_equal(out.prefix_lengths, np.minimum(LENGTHS, 3))
  assert (out.decode_lengths <= 3).all()
  for (ids, _), found, prefix in zip(
    rows, out.output_ids, LENGTHS, strict=True
  ):
    kept = min(prefix, 3)
    np.testing.assert_array_equal(found[:kept], ids[:kept])
    assert (found[3:] == 0).all()


def test_given_lengths_of_prefixes_count():
  params, rows = expected('stacked', 'causal')
  batch = prefix_batch()
  batch.paddings[:] = 0
  batch.prefix_lengths = LENGTHS
  out = fast_decode(params, batch, fprop_for_prefix=True, eos_id=NO_EOS)
  np.testing.assert_array_equal(out.original_lengths, P)
  check(out, rows, prefix_logprobs=False)


@pytest.mark.parametrize('fprop', [False, True])
def test_a_row_without_tokens_disturbs_none(fprop):
  """It is a padding row."""
  params, _ = expected('stacked', 'causal')
  batch = prefix_batch()
  settings = dict(fprop_for_prefix=fprop, eos_id=NO_EOS)
  want = fast_decode(params, batch, **settings)
  batch.paddings[3] = 1
  out = fast_decode(params, batch, **settings)
  assert np.isfinite(out.logprobs).all()
  np.testing.assert_array_equal(out.output_ids[:3], want.output_ids[:3])


def test_the_last_step_may_be_a_function():
  params, _ = expected('stacked', 'causal')

  def process(network, result):
    assert isinstance(network, TransformerLm)
    return NestedMap(result, doubled=2 * result.output_ids)

  out = fast_decode(params, prefix_batch(), process_result_fn=process)
  np.testing.assert_array_equal(out.doubled, 2 * out.output_ids)


class Table(BaseLayer):
  """Says that token i + 1 comes after token i, and counts the steps."""

  def init_states(self, length):
    del length
    self.update_decode_state('steps', jnp.zeros([], jnp.int32))

  def extend_step(self, ids):
    steps = self.get_decode_state('steps')
    self.update_decode_state('steps', steps + 1)
    return jax.nn.one_hot(ids + 1, V)

  def decode(self, settings, ids, lengths):
    result = greedy.greedy_decode(
      self,
      settings,
      prefixes.create(ids, lengths),
      init_states=lambda table, length: table.init_states(length),
      extend_step=lambda table, ids, **_: table.extend_step(ids),
    )
    return result, self.get_decode_state('steps')


def test_the_loop_ends_when_all_sequences_have():
  table = Table.config().Instantiate()
  settings = GreedyDecoderHParams(
    seqlen=100, max_decode_steps=50, fprop_for_prefix=True, eos_id=7
  )
  ids = jnp.array([[3, 4], [5, 6], [6, 0]])
  (result, steps), _ = table.apply(
    {},
    settings,
    ids,
    jnp.array([2, 2, 1]),
    method=table.decode,
    mutable=[DECODE_CACHE],
  )
  np.testing.assert_array_equal(
    result.output_ids[:, 0, :5],
    [[3, 4, 5, 6, 7], [5, 6, 7, 0, 0], [6, 7, 0, 0, 0]],
  )
  np.testing.assert_array_equal(result.decode_lengths[:, 0], [5, 3, 2])
  assert steps == 3


def test_decode_states_must_be_mutable():
  table = Table.config().Instantiate()
  with pytest.raises(errors.UserError, match="'decoder_cache' must be mutable"):
    table.apply(
      {},
      GreedyDecoderHParams(seqlen=4),
      jnp.ones([1, 1], jnp.int32),
      jnp.ones([1], jnp.int32),
      method=table.decode,
    )


def test_outputs_end_at_the_last_trained_position():
  """Without their padding, prefixes have fewer tokens than the batch."""
  network = lm_config()
  network.position_emb_tpl = (
    positional_embeddings.TrainablePositionalEmbedding.config(max_seq_length=6)
  )
  model = models.LanguageModel.config(
    lm_tpl=network,
    decoder_tpl=GreedyDecoderHParams.config(
      seqlen=1, max_decode_steps=4, fprop_for_prefix=True, eos_id=NO_EOS
    ),
  ).Instantiate()
  with base_layer.eval_mode():
    (_, out, _), _ = model.apply(
      {PARAMS: {'lm': random_weights(network)}},
      prefix_batch(),
      method=model.decode,
      mutable=[DECODE_CACHE],
    )
  np.testing.assert_array_equal(
    out.decode_lengths[:, 0], np.minimum(LENGTHS + 4, 6)
  )
