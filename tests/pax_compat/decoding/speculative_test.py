"""Speculative decoding against the target network alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test, table_network

P, STEPS, LENGTHS = greedy_test.P, greedy_test.STEPS, greedy_test.LENGTHS
V = 4
RNG = np.random.default_rng(5)
TABLE = RNG.normal(size=(V, V)) * 1.5
OTHER = TABLE + RNG.normal(size=(V, V))


def _model(lm, settings=None):
  return models.LanguageModel.config(
    lm_tpl=lm, decoder_tpl=settings or GreedyDecoderHParams(seqlen=1)
  ).Instantiate()


def _decoder(target, draft, settings, draft_steps):
  """Returns the compiled function (target and draft params, batch, seed)."""
  target, draft = _model(target), _model(draft)

  @jax.jit
  def run(params, batch, seed):
    rngs = {RANDOM: jax.random.key(seed)}
    with base_layer.eval_mode():
      bound = [
        model.bind({PARAMS: {'lm': one}} if one else {}, rngs=rngs)
        for model, one in zip((target, draft), params, strict=True)
      ]
      return bound[0].decode_with_draft(
        bound[1], settings, batch, draft_steps=draft_steps
      )

  return run


def _settings(cls=SampleDecoderHParams, **fields):
  fields = {'seqlen': P + STEPS, 'max_decode_steps': STEPS, **fields}
  return cls(**{'fprop_for_prefix': True, 'eos_id': -1, **fields})


def _table(table):
  return table_network.Table.config(table=np.asarray(table), vocab_size=V)


def _tables(settings, draft_steps, batch, draft=OTHER, seed=0):
  run = _decoder(_table(TABLE), _table(draft), settings, draft_steps)
  return jax.tree.map(np.asarray, run((None, None), batch, seed))


def _exact(table, fields):
  """Returns the probabilities of all V**3 continuations of the token 1."""
  sampler = SampleDecoderHParams(**fields).next_token_sampler()
  probs = np.asarray(
    sampler.probabilities(jnp.asarray(table), fields['temperature']), np.float64
  )
  return np.einsum('a,ab,bc->abc', probs[1], probs, probs).ravel()


def _pvalue(drawn, exact):
  """Returns the p-value of numbers of draws, rare ones added up."""
  if drawn[exact == 0].any():
    return 0.0
  expected = drawn.sum() * exact / exact.sum()
  rare = expected < 5
  drawn = np.append(drawn[~rare], drawn[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  kept = expected > 0
  assert kept.sum() > 1
  return stats.chisquare(drawn[kept], expected[kept]).pvalue


@pytest.mark.parametrize(
  ('fields', 'draft_steps'),
  [
    ({'temperature': 1.0, 'k': 0}, 3),
    pytest.param({'temperature': 1.0, 'k': 0}, 1, marks=pytest.mark.slow),
    pytest.param({'temperature': 0.7, 'k': 3}, 2, marks=pytest.mark.slow),
    pytest.param(
      {'temperature': 1.3, 'k': 0, 'p': 0.8}, 3, marks=pytest.mark.slow
    ),
  ],
)
def test_samples_have_the_distribution_of_the_target(fields, draft_steps):
  batch = NestedMap(ids=np.array([[1]]), paddings=np.zeros([1, 1]))
  settings = _settings(
    num_samples=20_000, seqlen=4, max_decode_steps=3, **fields
  )
  out = _tables(settings, draft_steps, batch)
  tokens = out.output_ids[0, :, 1:]
  drawn = np.bincount(tokens @ [V * V, V, 1], minlength=V**3)
  assert _pvalue(drawn, _exact(TABLE, fields)) > 1e-4
  assert _pvalue(drawn, _exact(OTHER, fields)) < 1e-6
  # The target alone needs a step for each token.
  assert out.target_steps.mean() < 2.8
  assert out.target_steps.max() == 3


@functools.cache
def _params():
  return greedy_test.random_weights(greedy_test.lm_config())


def _greedy_alone(batch, **fields):
  model = _model(
    greedy_test.lm_config(), _settings(GreedyDecoderHParams, **fields)
  )
  with base_layer.eval_mode():
    (_, out, _), _ = model.apply(
      {PARAMS: {'lm': _params()}},
      batch,
      method=model.decode,
      mutable=[base_layer.DECODE_CACHE],
    )
  return out


@pytest.mark.slow
@pytest.mark.parametrize('eos', [-1, (3, 5)])
def test_greedy_tokens_are_those_of_the_target(eos):
  batch = greedy_test.prefix_batch()
  want = _greedy_alone(batch, eos_id=eos)
  params, config = _params(), greedy_test.lm_config()
  rng = np.random.default_rng(1)
  settings = _settings(GreedyDecoderHParams, eos_id=eos)
  run = _decoder(config, config, settings, draft_steps=2)
  decoded = np.asarray(want.decode_lengths) - LENGTHS[:, None]
  # One of the prefix, then up to 3 tokens in each.
  fewest = 1 + -(-(decoded - 1) // 3)
  for noise in (0.0, 0.3):
    draft = jax.tree.map(
      lambda x, noise=noise: x + noise * rng.normal(size=x.shape), params
    )
    out = run((params, draft), batch, 0)
    for name in ('output_ids', 'decode_lengths', 'prefix_ids'):
      np.testing.assert_array_equal(out[name], want[name])
    np.testing.assert_allclose(out.logprobs, want.logprobs, atol=1e-4)
    assert (out.target_steps <= decoded).all()
    assert (out.target_steps >= fewest).all()
    assert (out.target_steps == fewest).all() == (not noise)


@pytest.mark.slow
@pytest.mark.parametrize('model_type', ['causal', 'prefix'])
def test_samples_do_not_depend_on_the_batch(model_type):
  batch = greedy_test.prefix_batch()
  config = greedy_test.lm_config('repeated', model_type)
  params = greedy_test.random_weights(config)
  settings = _settings(k=5, num_samples=2, sort_samples=False)
  run = _decoder(config, config, settings, draft_steps=2)
  out = run((params, params), batch, 3)
  np.testing.assert_array_equal(
    out.target_steps, np.broadcast_to(1 + -(-(STEPS - 1) // 3), (4, 2))
  )
  batch = NestedMap(
    ids=np.pad(batch.ids[:2], ((0, 0), (0, 3))),
    paddings=np.pad(batch.paddings[:2], ((0, 0), (0, 3)), constant_values=1),
    prefix_lengths=LENGTHS[:2],
  )
  again = run((params, params), batch, 3)
  np.testing.assert_array_equal(
    again.output_ids[..., : P + STEPS], out.output_ids[:2]
  )


class _Recurrent(table_network.Table):
  """Has a state without positions."""

  def init_states(self, batch_size, length):
    super().init_states(batch_size, length)
    self.update_decode_state('hidden', jnp.zeros([batch_size, 2]))


def test_states_that_cannot_go_back_are_refused():
  batch = NestedMap(ids=np.array([[1]]), paddings=np.zeros([1, 1]))
  recurrent = _Recurrent.config(table=TABLE, vocab_size=V)
  run = _decoder(_table(TABLE), recurrent, _settings(k=0), 2)
  with pytest.raises(
    errors.UserError, match="draft model: .*'hidden'.* cannot"
  ):
    run((None, None), batch, 0)


def test_what_is_refused():
  batch = NestedMap(ids=np.array([[1]]), paddings=np.zeros([1, 1]))
  settings = _settings(k=0)
  with pytest.raises(errors.UserError, match='vocabulary of 3 tokens'):
    run = _decoder(
      _table(TABLE),
      table_network.Table.config(table=TABLE[:3, :3], vocab_size=3),
      settings,
      2,
    )
    run((None, None), batch, 0)
  for fields, steps, message in (
    ({}, 0, 'draft_steps is 0; expected 1'),
    ({'optimize_eos': True, 'eos_id': 1}, 2, 'optimize_eos is True, which'),
    ({'cf_guidance_scale': 2.0}, 2, 'decoder_tpl.cf_guidance_scale is 2.0'),
    ({'fprop_for_prefix': False}, 2, 'fprop_for_prefix is False'),
    ({'cls': BeamSearchHParams}, 2, 'is a BeamSearchHParams, which does not'),
    ({'cls': GreedyDecoderHParams, 'min_decode_steps': 2}, 2, 'min_decode_st'),
  ):
    with pytest.raises(errors.UserError, match=message):
      _tables(_settings(**fields), steps, batch)
  batch.temperature = np.ones([1])
  with pytest.raises(errors.UserError, match='the field temperature, which'):
    _tables(settings, 2, batch)
