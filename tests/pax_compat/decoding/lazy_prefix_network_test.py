"""Samples that share the cache of their prefix are the same samples."""

import functools

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import BeamSearchHParams, SampleDecoderHParams
from pax_compat.decoding import prefixes
from pax_compat.decoding.aligned_steps import AlignedSteps
from pax_compat.decoding.lazy_prefix_network import LazyPrefixNetwork
from pax_compat.layers import models
from pax_compat.layers.attentions import lazy_prefix
from tests.pax_compat.decoding import greedy_test

P, STEPS = greedy_test.P, greedy_test.STEPS
COMMON = dict(
  seqlen=P + STEPS, max_decode_steps=STEPS, eos_id=3, fprop_for_prefix=True
)
ATTENTIONS = {
  'plain': lazy_prefix.DotProductAttentionWithLPB.config(
    use_rotary_position_emb=True
  ),
  'queries': lazy_prefix.MultiQueryDotProductAttentionLPB.config(
    local_window_size=(3, 0)
  ),
  'convolved': lazy_prefix.DotProductAttentionWithLPB.config(dconv_qkv=True),
  'int8': lazy_prefix.DotProductAttentionWithLPB.config(kv_cache_dtype='int8'),
}


def _lm(kind, attention, model_type='causal'):
  config = greedy_test.lm_config(kind, model_type)
  stack = config.stacked_transformer_tpl
  block = stack if kind == 'stacked' else stack.block
  block.transformer_layer_params_tpl.tr_atten_tpl = attention
  return config


@functools.cache
def _params(kind, attention):
  return greedy_test.random_weights(_lm(kind, ATTENTIONS[attention]))


def _decode(kind, attention, settings):
  model = models.LanguageModel.config(
    lm_tpl=_lm(kind, ATTENTIONS[attention]), decoder_tpl=settings
  ).Instantiate()

  @jax.jit
  def run(params, batch):
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        {PARAMS: {'lm': params}},
        batch,
        method=model.decode,
        mutable=[DECODE_CACHE],
        rngs={RANDOM: jax.random.key(3)},
      )
    return out

  return run(_params(kind, attention), greedy_test.prefix_batch())


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, attention, cls, fields',
  [
    ('stacked', 'plain', SampleDecoderHParams, {'max_decode_steps': [2, 6]}),
    ('repeated', 'queries', SampleDecoderHParams, {}),
    ('stacked', 'convolved', SampleDecoderHParams, {}),
    ('repeated', 'int8', SampleDecoderHParams, {}),
    ('stacked', 'queries', BeamSearchHParams, {}),
  ],
)
def test_samples_are_the_same(kind, attention, cls, fields):
  number = 'num_samples' if cls is SampleDecoderHParams else 'beam_size'
  settings = {**COMMON, number: 3, **fields}
  out, want = (
    _decode(kind, attention, cls(**settings, lazy_prefix_broadcast=lazy))
    for lazy in (True, False)
  )
  for name in ('output_ids', 'decode_lengths', 'prefix_ids'):
    np.testing.assert_array_equal(out[name], want[name], err_msg=name)
  np.testing.assert_allclose(out.logprobs, want.logprobs, atol=1e-4)


def _network(config, repeats):
  """Returns the shapes of the states of a network, and of its prefix."""
  settings = SampleDecoderHParams(**COMMON, num_samples=repeats)
  layer = config.Instantiate()

  def begin():
    batch = greedy_test.prefix_batch()
    variables = layer.init(jax.random.key(0), batch.ids, batch.paddings)
    network = LazyPrefixNetwork(
      layer.bind(base_layer.unbox(variables)),
      lambda lm, length, repeats: lm.init_states(
        len(batch.ids) * repeats, length
      ),
      models.language_model._extend_step,
    )
    prefix = prefixes.create(batch.ids, greedy_test.LENGTHS)
    steps = AlignedSteps(network, settings, prefix, repeats=repeats)
    _, states = steps.read_prefix()
    return states, network._variables[base_layer.PREFIX_DECODE_CACHE]

  return jax.eval_shape(begin)


def test_the_prefix_is_held_once():
  states, prefix = _network(_lm('stacked', ATTENTIONS['plain']), 3)
  rows = len(greedy_test.LENGTHS)
  shapes = [
    [x.shape for x in jax.tree.leaves(tree) if x.ndim == 4]
    for tree in (states, prefix)
  ]
  # Keys and values of two layers.
  assert shapes[0] == [(rows * 3, STEPS, 2, 4)] * 4
  assert shapes[1] == [(rows, P, 2, 4)] * 4


@pytest.mark.slow
def test_what_cannot_be_shared_is_an_error():
  config = _lm('stacked', ATTENTIONS['plain'], 'prefix')
  with pytest.raises(errors.UserError, match='decode state is_prefix cannot'):
    _network(config, 2)
  plain = greedy_test.lm_config('stacked')
  settings = SampleDecoderHParams(
    **COMMON, num_samples=2, lazy_prefix_broadcast=True
  )
  model = models.LanguageModel.config(
    lm_tpl=plain, decoder_tpl=settings
  ).Instantiate()

  def decode():
    batch = greedy_test.prefix_batch()
    lm = plain.Instantiate().init(jax.random.key(0), batch.ids, batch.paddings)
    return model.apply(
      {PARAMS: {'lm': lm[PARAMS]}},
      batch,
      method=model.decode,
      mutable=[DECODE_CACHE],
      rngs={RANDOM: jax.random.key(3)},
    )

  with pytest.raises(errors.UserError, match='DotProductAttentionWithLPB'):
    jax.eval_shape(decode)
  with pytest.raises(errors.UserError, match='fprop_for_prefix is False'):
    SampleDecoderHParams(
      seqlen=8, num_samples=2, lazy_prefix_broadcast=True
    ).check_complete()
