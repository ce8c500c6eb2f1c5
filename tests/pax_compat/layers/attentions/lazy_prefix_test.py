"""Steps after prefixes that samples share, against whole passes."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import DECODE_CACHE, PREFIX_DECODE_CACHE
from pax_compat.layers.attentions import lazy_prefix, multi_query_attention
from pax_compat.layers.attentions.attention_masks import AttentionMask

B, T, D = 2, 7, 8
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(B, T, D)).astype(np.float32)


def _layer(cls, **fields):
  config = cls.config(input_dim=D, hidden_dim=8, num_heads=2, **fields)
  layer = config.Instantiate()
  variables = layer.init(jax.random.key(0), INPUTS, INPUTS, INPUTS)
  return layer, base_layer.unbox(variables)


@pytest.mark.slow
@pytest.mark.parametrize(
  'cls, fields',
  [
    (lazy_prefix.DotProductAttentionWithLPB, {'atten_logit_cap': 20.0}),
    (lazy_prefix.DotProductAttentionWithLPB, {'dconv_qkv': True}),
    (
      lazy_prefix.MultiQueryDotProductAttentionLPB,
      {'use_rotary_position_emb': True, 'attention_extra_logit': 0.5},
    ),
  ],
)
def test_samples_of_samples(cls, fields):
  layer, variables = _layer(cls, **fields)
  mask = AttentionMask(None, causal=True)
  want, _ = layer.apply(variables, INPUTS, INPUTS, INPUTS, mask)
  collections = [DECODE_CACHE, PREFIX_DECODE_CACHE]
  prefix = INPUTS[:, :3]
  _, states = layer.apply(
    variables, prefix, prefix, prefix, mask, mutable=[DECODE_CACHE]
  )
  step, rows = 3, 1
  for samples in (2, 3):
    _, states = layer.apply(
      {**variables, **states},
      samples,
      2,
      method='lazy_broadcast_prefix',
      mutable=collections,
    )
    rows *= samples
    assert states[DECODE_CACHE]['key_state'].shape[:2] == (B * rows, 2)
    for time_step in range(step, step + 2):
      found, states = layer.apply(
        {**variables, **states},
        np.repeat(INPUTS[:, time_step], rows, axis=0),
        time_step=time_step,
        method='extend_step',
        mutable=collections,
      )
      np.testing.assert_allclose(
        found, np.repeat(want[:, time_step], rows, axis=0), atol=1e-5
      )
    step += 2
  assert set(states[PREFIX_DECODE_CACHE]) == {
    'key_state_0_pfx',
    'value_state_0_pfx',
    'key_state_1_pfx',
    'value_state_1_pfx',
  }


def test_local_window():
  cls = multi_query_attention.MultiQueryDotProductAttention
  layer, variables = _layer(cls, local_window_size=(2, 1))
  plain, _ = _layer(cls)
  distance = np.arange(T) - np.arange(T)[:, None]
  window = (distance >= -2) & (distance <= 1)
  for causal in (False, True):
    found, _ = layer.apply(
      variables, INPUTS, INPUTS, INPUTS, AttentionMask(None, causal=causal)
    )
    mask = window & (distance <= 0) if causal else window
    want, _ = plain.apply(variables, INPUTS, INPUTS, INPUTS, mask[None, None])
    np.testing.assert_allclose(found, want, atol=1e-6)
  _, states = layer.apply(
    variables, B, T, method='init_states', mutable=[DECODE_CACHE]
  )
  for time_step in range(T):
    step, states = layer.apply(
      {**variables, **states},
      INPUTS[:, time_step],
      time_step=time_step,
      method='extend_step',
      mutable=[DECODE_CACHE],
    )
    np.testing.assert_allclose(step, found[:, time_step], atol=1e-6)
