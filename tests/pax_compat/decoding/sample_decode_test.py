"""Sampling against passes over whole sequences, and exact probabilities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import (
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.decoding import sample_decode
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test, table_network

P, STEPS, LENGTHS = greedy_test.P, greedy_test.STEPS, greedy_test.LENGTHS
NONE = -1


@functools.cache
def decoder(cls, kind, **settings):
  settings = {'seqlen': P + STEPS, 'max_decode_steps': STEPS, **settings}
  settings = {'fprop_for_prefix': True, 'eos_id': NONE, **settings}
  model = models.LanguageModel.config(
    lm_tpl=greedy_test.lm_config(kind), decoder_tpl=cls.config(**settings)
  ).Instantiate()

  @jax.jit
  def run(params, batch, seed):
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        {PARAMS: {'lm': params}},
        batch,
        method=model.decode,
        mutable=[DECODE_CACHE],
        rngs={RANDOM: jax.random.key(seed)},
      )
    return out

  return run


@functools.cache
def params(kind='stacked'):
  return greedy_test.random_weights(greedy_test.lm_config(kind))


def _sample(batch=None, *, kind='stacked', seed=1, **settings):
  batch = greedy_test.prefix_batch() if batch is None else batch
  run = decoder(SampleDecoderHParams, kind, **settings)
  return jax.tree.map(np.asarray, run(params(kind), batch, seed))


def log_probs(rows):
  """Returns the log-probabilities of rows, by one pass over each."""
  layer = greedy_test.lm_config('stacked').Instantiate()
  ids = jnp.asarray(rows)

  @jax.jit
  def run(ids):
    with base_layer.eval_mode():
      out = layer.apply({PARAMS: params()}, ids, jnp.zeros(ids.shape))
    return jnp.take_along_axis(
      out.log_probs[:, :-1], ids[:, 1:, None], axis=-1
    )[..., 0]

  return np.asarray(run(ids))


@pytest.mark.parametrize('kind', ['stacked', 'repeated'])
@pytest.mark.parametrize('fprop', [False, True])
def test_without_temperature_samples_are_greedy(kind, fprop):
  settings = dict(fprop_for_prefix=fprop, max_decode_steps=(3, STEPS))
  out = _sample(kind=kind, temperature=0.0, k=0, num_samples=2, **settings)
  run = decoder(GreedyDecoderHParams, kind, **settings)
  want = greedy_test.first_sample(
    run(params(kind), greedy_test.prefix_batch(), 0)
  )
  for name in ('output_ids', 'decode_lengths', 'prefix_ids', 'prefix_lengths'):
    np.testing.assert_array_equal(out[name][:, 0], want[name])
    np.testing.assert_array_equal(out[name][:, 1], want[name])
  np.testing.assert_allclose(out.logprobs[:, 1], want.logprobs, atol=1e-4)


def test_samples_have_the_log_probabilities_of_a_whole_pass():
  out = _sample(num_samples=3, k=5)
  assert out.output_ids.shape == (len(LENGTHS), 3, P + STEPS)
  found = log_probs(out.output_ids.reshape(-1, P + STEPS))
  found = found.reshape(len(LENGTHS), 3, -1)
  scores = []
  for row, prefix in enumerate(LENGTHS):
    end = prefix + STEPS
    assert (out.decode_lengths[row] == end).all()
    np.testing.assert_allclose(
      out.logprobs[row, :, prefix:end],
      found[row, :, prefix - 1 : end - 1],
      atol=1e-4,
    )
    scores.append(out.logprobs[row, :, prefix:end].sum(-1))
  assert (np.diff(scores, axis=1) <= 1e-6).all()
  unsorted = _sample(num_samples=3, k=5, sort_samples=False)
  assert not np.array_equal(out.output_ids, unsorted.output_ids)
  np.testing.assert_array_equal(
    np.unique(out.output_ids.reshape(-1, P + STEPS), axis=0),
    np.unique(unsorted.output_ids.reshape(-1, P + STEPS), axis=0),
  )


def _rows(batch, rows, padding=0):
  widths = ((0, 0), (0, padding))
  return NestedMap(
    ids=np.pad(batch.ids[rows], widths),
    paddings=np.pad(batch.paddings[rows], widths, constant_values=1),
  )


def test_samples_do_not_depend_on_the_batch():
  batch = greedy_test.prefix_batch()
  out = _sample(num_samples=2, k=0)
  assert len(np.unique(out.output_ids[:, :, P:])) > 2
  other = _sample(_rows(batch, [2, 0], padding=3), num_samples=2, k=0)
  for row, old in ((0, 2), (1, 0)):
    for sample in range(2):
      end = out.decode_lengths[old, sample]
      np.testing.assert_array_equal(
        other.output_ids[row, sample, :end], out.output_ids[old, sample, :end]
      )
  again = _sample(num_samples=2, k=0, seed=2)
  assert not np.array_equal(again.output_ids, out.output_ids)


def test_examples_have_settings_of_their_own():
  batch = greedy_test.prefix_batch()
  batch.temperature = np.array([0, 1, 0, 1], np.float32)
  batch.per_example_max_decode_steps = np.array([1, 2, 3, 9])
  batch.num_per_token_logprobs = np.array([5, 0, 2, 1])
  batch.return_entropy_score = True
  out = _sample(batch, num_samples=2, k=4)
  greedy = _sample(temperature=0.0, num_samples=2, k=4)
  steps = np.minimum(batch.per_example_max_decode_steps, STEPS)
  np.testing.assert_array_equal(
    out.decode_lengths, np.stack([LENGTHS + steps] * 2, axis=1)
  )
  for row in (0, 2):
    end = LENGTHS[row] + steps[row]
    np.testing.assert_array_equal(
      out.output_ids[row, :, :end], greedy.output_ids[row, :, :end]
    )
  # The first candidate of a greedy row is its token.
  np.testing.assert_array_equal(
    out.top_candidate_ids[0, :, 0, 0], out.output_ids[0, :, LENGTHS[0]]
  )
  assert (out.top_candidate_logprobs[1] == 1).all()
  assert (np.diff(out.top_candidate_logprobs[0, 0, 0]) <= 0).all()
  assert (out.top_candidate_ids[2, :, :, 2:] == 0).all()
  assert out.entropy.shape == out.logprobs.shape
  batch.temperature = np.ones([4, 3], np.float32)
  with pytest.raises(errors.UserError, match=r'shape \(4, 3\)'):
    _sample(batch, num_samples=2, k=4)


def test_stop_sequences_end_samples():
  batch = greedy_test.prefix_batch()
  free = _sample(batch, temperature=0.0)
  ids = free.output_ids[:, 0]
  stop = np.zeros([4, 2, 3], np.int32)
  want = LENGTHS + STEPS
  for row, prefix in enumerate(LENGTHS):
    stop[row, 1, -2:] = ids[row, prefix + 1 : prefix + 3]
    last = stop[row, 1, -2:]
    ends = [
      end
      for end in range(prefix + 1, prefix + STEPS + 1)
      if last.any() and ((ids[row, end - 2 : end] == last) | (last == 0)).all()
    ]
    want[row] = ends[0] if ends else prefix + STEPS
  assert len(set(want - LENGTHS)) > 1
  batch.eos_id = stop
  out = _sample(batch, temperature=0.0)
  # A sequence of padding only stops nothing.
  np.testing.assert_array_equal(out.decode_lengths[:, 0], want)


def test_the_best_end_of_a_sample():
  settings = dict(eos_id=(3, 4), optimize_eos=True, k=0)
  out = _sample(num_samples=2, **settings)
  for row, prefix in enumerate(LENGTHS):
    for sample in range(2):
      end = out.decode_lengths[row, sample]
      tokens = out.output_ids[row, sample]
      assert prefix < end <= prefix + STEPS
      assert tokens[end - 1] in (3, 4) and (tokens[end:] == 0).all()
      assert not np.isin(tokens[prefix : end - 1], (3, 4)).any()
  found = log_probs(out.output_ids.reshape(-1, P + STEPS))
  found = found.reshape(len(LENGTHS), 2, -1)
  for row, prefix in enumerate(LENGTHS):
    end = out.decode_lengths[row, 0]
    np.testing.assert_allclose(
      out.logprobs[row, 0, prefix:end],
      found[row, 0, prefix - 1 : end - 1],
      atol=1e-4,
    )


def test_guidance_of_scale_1_is_the_condition():
  settings = dict(num_samples=2, k=0)
  out = _sample(**settings)
  guided = _sample(cf_guidance_scale=1.0, **settings)
  np.testing.assert_array_equal(guided.output_ids, out.output_ids)
  other = _sample(cf_guidance_scale=(1.0, 4.0), sort_samples=False, **settings)
  plain = _sample(sort_samples=False, **settings)
  np.testing.assert_array_equal(other.output_ids[:, 0], plain.output_ids[:, 0])
  assert not np.array_equal(other.output_ids[:, 1], plain.output_ids[:, 1])


class NoThrees(sample_decode.BaseSampleTerminationConstraint):
  """Ends samples at the token 3, where this is enforced."""

  def __call__(self, enforce_sample_constraints, decode_loop_state):
    val = decode_loop_state
    is_three = val.output_ids[:, val.step + 1] == 3
    return val.done | (is_three & (enforce_sample_constraints > 0))


def test_a_constraint_ends_samples():
  batch = greedy_test.prefix_batch()
  batch.enforce_sample_constraints = np.array([1, 1, 1, 0])
  out = _sample(batch, num_samples=4, k=0, sample_constraint=NoThrees())
  same = _sample(num_samples=4, k=0, eos_id=3)
  np.testing.assert_array_equal(out.decode_lengths[:3], same.decode_lengths[:3])
  assert (out.decode_lengths[3] == LENGTHS[3] + STEPS).all()


def test_a_batch_may_give_the_random_streams():
  batch = greedy_test.prefix_batch()
  batch.gumbel_prng_key = np.arange(8, dtype=np.uint32).reshape(4, 2)
  out = _sample(batch, k=0)
  np.testing.assert_array_equal(
    out.output_ids, _sample(batch, k=0, seed=9).output_ids
  )
  batch.gumbel_prng_key[:] = 15753  # Stands for none.
  np.testing.assert_array_equal(
    _sample(batch, k=0).output_ids, _sample(k=0).output_ids
  )


def test_vanilla_samples_have_no_dimension_of_samples():
  out = _sample(vanilla_sample_decode=True)
  np.testing.assert_array_equal(out.output_ids, _sample().output_ids[:, 0])


def _streamed(settings, batch, interval):
  """Returns the results, what the callback got, and its other calls."""
  got, calls = [], []
  callback = sample_decode.StreamingResultCallback(
    lambda out: io_callback(lambda x: got.append(x), None, out),
    interval_steps=interval,
    init_fn=calls.append,
    done_fn=lambda: calls.append('done'),
  )
  model = models.LanguageModel.config(
    lm_tpl=table_network.Table.config(table=TABLE, vocab_size=4),
    decoder_tpl=settings,
  ).Instantiate()

  @jax.jit
  def run(batch):
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        {},
        NestedMap(batch),
        result_callback=callback,
        method=model.decode,
        mutable=[DECODE_CACHE],
        rngs={RANDOM: jax.random.key(0)},
      )
    return out

  out = run(dict(batch))
  jax.effects_barrier()
  got = jax.tree.map(np.asarray, got)
  return out, sorted(got, key=lambda x: x.step), calls


TABLE = np.random.default_rng(4).normal(size=(4, 4))


@pytest.mark.parametrize(
  'interval', [pytest.param(1, marks=pytest.mark.slow), 2]
)
def test_a_callback_gets_the_tokens_of_each_interval(interval):
  batch = dict(
    ids=np.array([[1, 2], [3, 0]]),
    paddings=np.array([[0.0, 0.0], [0.0, 1.0]]),
    num_per_token_logprobs=np.array([2, 1]),
  )
  settings = SampleDecoderHParams(
    seqlen=7,
    max_decode_steps=5,
    fprop_for_prefix=True,
    num_samples=3,
    k=0,
    eos_id=0,
    sort_samples=False,
  )
  out, got, calls = _streamed(settings, batch, interval)
  assert calls == [(2, 3), 'done']
  steps = -(-5 // interval)
  assert [x.step for x in got] == [interval * i for i in range(steps)]
  ids = np.concatenate([x.output_ids for x in got], axis=2)[..., :5]
  for row, start in enumerate((2, 1)):
    np.testing.assert_array_equal(
      ids[row], out.output_ids[row, :, start : start + 5]
    )
  np.testing.assert_allclose(
    np.sum([x.scores for x in got], axis=0),
    np.minimum(out.logprobs, 0).sum(-1),
    atol=1e-5,
  )
  assert got[-1].done.all() and not got[0].done.all()
  top = np.concatenate([x.top_candidate_ids for x in got], axis=2)
  np.testing.assert_array_equal(top[:, :, :5], out.top_candidate_ids[:, :, :5])
  assert (got[0].decode_lengths == interval).all()


def test_what_has_no_results_before_its_end():
  batch = dict(ids=np.array([[1]]), paddings=np.zeros([1, 1]))
  common = dict(seqlen=3, max_decode_steps=2, eos_id=-1)
  for settings, interval, message in (
    (GreedyDecoderHParams(**common), 1, 'GreedyDecoderHParams has no results'),
    (SampleDecoderHParams(**common), 1, 'fprop_for_prefix is False; expected'),
    (
      SampleDecoderHParams(**common, fprop_for_prefix=True),
      0,
      'interval_steps is 0',
    ),
  ):
    with pytest.raises(errors.UserError, match=message):
      _streamed(settings, batch, interval)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'eos_id': 11}, 'decoder_tpl: .*eos_id is 11; expected ids below 11'),
    ({'max_decode_steps': None}, 'decoder_tpl: .*max_decode_steps is None'),
    ({'use_extra_input_kwargs': True}, 'use_extra_input_kwargs is True'),
    ({'min_decode_steps': 2}, 'min_decode_steps is 2, which sampling'),
    ({'cf_guidance_scale': (1, 2, 3)}, 'cf_guidance_scale has 3 numbers'),
    ({'controlled_decoding': 1}, 'controlled_decoding is 1'),
    ({'optimize_eos': True, 'fprop_for_prefix': False}, 'expected True, since'),
    ({'num_samples': 2, 'vanilla_sample_decode': True}, 'num_samples is 2'),
    ({'num_samples': 0}, 'num_samples is 0; expected an integer'),
    ({'p': 1.5}, 'p is 1.5; expected a number from 0 to 1'),
    ({'temperature': -1}, 'temperature is -1; expected a number'),
  ],
)
def test_what_is_refused(settings, message):
  with pytest.raises(errors.UserError, match=message):
    _sample(**settings)


@pytest.mark.parametrize(
  'name,value,words',
  [
    ('per_example_top_k', 1, 'k is 0, but the batch has per_example_top_k'),
    ('cf_guidance_scale', 2.0, 'cf_guidance_scale is None, but the batch'),
    ('enforce_sample_constraints', True, 'sample_constraint is None, but'),
  ],
)
def test_a_field_of_the_batch_that_would_have_no_effect(name, value, words):
  batch = greedy_test.prefix_batch()
  batch[name] = jnp.full([len(batch.ids)], value)
  with pytest.raises(errors.UserError, match=words):
    _sample(batch, k=0)
