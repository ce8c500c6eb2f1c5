"""Attention, and what it takes of positions, against Lingvo's, run for real.

Shapes: B batch, T target time, S source time, D model dims, N heads, K heads of
keys and values, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
)
from pax_compat.layers.attentions.dot_product import (
  DotProductAttention,
)
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.attentions.relative_bias import RelativeBias
from pax_compat.layers.embeddings.rotary_embedding import (
  RotaryPositionalEmbedding,
)
from tests.adaptors.translate.attention_inputs import (
  PADDINGS,
  SEGMENT_IDS,
  SOURCE,
  SOURCE_PADDINGS,
  B,
  D,
  N,
  T,
  X,
)
from tests.adaptors.translate.parity import assert_gradients_close
from tests.adaptors.translate.same_weights import check, same_names

RNG = np.random.default_rng(2)


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's module of attention."""
  return lingvo_runtime.module('lingvo.core.batch_major_attention')


def _attention(lingvo, **fields):
  return lingvo.MultiHeadedAttention.Params().Set(
    name='atten', input_dim=D, hidden_dim=16, num_heads=N, **fields
  )


def _dot_product(cls=DotProductAttention, **fields):
  return cls.config(
    **{**dict(input_dim=D, hidden_dim=16, num_heads=N), **fields}
  )


def _check_causal(lingvo, config, params, rename=same_names):
  """Compares self-attention that is causal and has paddings."""
  mask = attention_masks.padding_mask(PADDINGS)

  def fprop(layer, theta, x):
    future = lingvo.CausalPadding(T)[None]
    return layer.FProp(theta, x, x, x, PADDINGS, None, future)[0]

  def call(layer, x):
    return layer(x, x, x, atten_mask=AttentionMask(mask, causal=True))[0]

  check(config, params, [X], fprop=fprop, call=call, rename=rename)


@pytest.mark.parametrize(
  ('theirs', 'ours'),
  [
    ({}, {}),
    (
      {'enable_per_dim_scale': False},
      {'internal_enable_per_dim_scale': False},
    ),
    ({'enable_query_scale': False}, {'internal_enable_query_scale': False}),
    ({'use_bias': False}, {'use_bias': False}),
    ({'dim_per_head': 3}, {'dim_per_head': 3}),
    ({'atten_logit_cap': 0.5}, {'atten_logit_cap': 0.5}),
    ({'atten_extra_logit': 0.7}, {'attention_extra_logit': 0.7}),
    ({'enable_scaling_code_motion': True}, {}),
  ],
  ids=lambda fields: ','.join(fields),
)
def test_attention(lingvo, theirs, ours):
  _check_causal(lingvo, _dot_product(**ours), _attention(lingvo, **theirs))


def test_attention_with_a_constant_scale_of_hidden_dim(lingvo):
  """Heads of other dims than hidden_dim / num_heads are scaled by that."""
  fields = dict(dim_per_head=3, hidden_dim=32)
  _check_causal(
    lingvo,
    _dot_product(internal_enable_per_dim_scale=False, **fields),
    _attention(lingvo, enable_per_dim_scale=False).Set(**fields),
  )


def test_attention_with_rotated_heads(lingvo):
  layers = lingvo_runtime.module('lingvo.core.layers')
  rope = layers.RotaryPositionalEmbeddingLayer.Params()
  _check_causal(
    lingvo,
    _dot_product(use_rotary_position_emb=True),
    _attention(lingvo, rope_tpl=rope),
  )


def _combined(weights):
  """Returns weights whose queries, keys and values are in one."""
  weights = dict(weights)
  w, b = weights.pop('qkv.w'), weights.pop('qkv.b')
  heads = (N, 3, w.shape[-1] // 3)
  return {
    'combined_qkv/w': np.moveaxis(w.reshape(D, *heads), 2, 0),
    'combined_qkv/b': np.moveaxis(b.reshape(heads), 1, 0),
    **same_names(weights),
  }


def test_attention_with_one_projection(lingvo):
  params = _attention(lingvo, enable_qkv_proj_in_onestep=True)
  _check_causal(lingvo, _dot_product(combine_qkv=True), params, _combined)


@pytest.mark.parametrize('kv_heads', [1, 2])
def test_attention_that_shares_keys_and_values(lingvo, kv_heads):
  """Lingvo puts heads that share keys apart; ours stand side by side."""

  def rename(weights):
    weights = dict(weights)
    w, b = weights.pop('kv.w'), weights.pop('kv.b')
    post = weights.pop('post.w').reshape(D, N // kv_heads, kv_heads, -1)
    renamed = {'post/w': np.swapaxes(post, 1, 2).reshape(D, N, -1)}
    for i, name in enumerate(('key', 'value')):
      each = (x.reshape(*x.shape[:-1], 2, -1)[..., i, :] for x in (w, b))
      for part, x in zip('wb', each, strict=True):
        # One head has no dimension for heads.
        x = x.squeeze(-2) if kv_heads == 1 else x
        renamed[f'{name}/{part}'] = x
    return {**renamed, **same_names(weights)}

  _check_causal(
    lingvo,
    _dot_product(
      MultiQueryDotProductAttention,
      num_kv_heads=kv_heads,
      internal_enable_per_dim_scale=True,
    ),
    _attention(lingvo, use_mqa=True, num_kv_heads=kv_heads),
    rename,
  )


@pytest.mark.parametrize('causal', [False, True])
def test_attention_to_packed_examples(lingvo, causal):
  tf = lingvo_runtime.module('tensorflow')
  mask = attention_masks.segment_mask(SEGMENT_IDS)

  def fprop(layer, theta, x):
    theirs = lingvo.SegmentMask(SEGMENT_IDS, SEGMENT_IDS)
    if causal:
      theirs = lingvo.CausalSegmentMask(SEGMENT_IDS, tf.float32)
    return layer.FProp(theta, x, x, x, PADDINGS, theirs)[0]

  check(
    _dot_product(),
    _attention(lingvo, packed_input=True),
    [X],
    fprop=fprop,
    call=lambda layer, x: layer(
      x, x, x, atten_mask=AttentionMask(mask, causal=causal)
    )[0],
    rename=same_names,
  )


def test_attention_to_something_else(lingvo):
  dims = dict(query=D, key=3, value=7)
  sources = [SOURCE[..., :3], SOURCE[..., 1:]]
  mask = attention_masks.padding_mask(SOURCE_PADDINGS)
  check(
    _dot_product(input_dim=dims),
    _attention(lingvo).Set(input_dim=dims),
    [X, *sources],
    fprop=lambda layer, theta, q, k, v: layer.FProp(
      theta, q, k, v, SOURCE_PADDINGS
    )[0],
    call=lambda layer, q, k, v: layer(q, k, v, atten_mask=mask)[0],
    rename=same_names,
  )


@pytest.mark.parametrize(
  ('position', 'shortest', 'longest'),
  [(None, 1, 10_000), (SEGMENT_IDS * 7, 2, 50)],
)
def test_rotary_embedding(position, shortest, longest):
  timescales = dict(min_timescale=shortest, max_timescale=longest)
  layers = lingvo_runtime.module('lingvo.core.layers')
  given = None if position is None else position.astype(np.float32)
  check(
    RotaryPositionalEmbedding.config(embedding_dims=4, **timescales),
    layers.RotaryPositionalEmbeddingLayer.Params().Set(
      name='rope', embedding_dim=4, **timescales
    ),
    [X.reshape(B, T, 2, 4)],
    fprop=lambda layer, theta, x: layer.FProp(theta, x, given),
    call=lambda layer, x: layer(x, position),
  )


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize(('buckets', 'farthest'), [(32, 128), (12, 20)])
def test_relative_bias(buckets, farthest, bidirectional):
  """Every distance there is, and some beyond the farthest."""
  tf = lingvo_runtime.module('tensorflow')
  builder = lingvo_runtime.module('lingvo.core.gshard_builder').DenseBuilder
  fields = dict(
    relative_attention_num_buckets=buckets,
    relative_attention_max_distance=farthest,
  )
  params = builder.Params().Set(
    model_dim=D, relative_attention_use_universal_1d_position=False, **fields
  )
  weight = RNG.normal(size=(N, buckets)).astype(np.float32)
  queries = np.array([[0, farthest + 9], [5, 2]], np.int32)
  keys = np.tile(np.arange(farthest + 20, dtype=np.int32), (2, 1))
  bias = np.zeros([2, 2, keys.shape[1]], np.float32)
  cotangent = RNG.normal(size=(2, N, *bias.shape[1:])).astype(np.float32)
  with lingvo_runtime.cluster():
    w = tf.constant(weight)
    with tf.GradientTape() as tape:
      tape.watch(w)
      # Theirs is [B, T, N, S].
      want = tf.transpose(
        params.Instantiate()._AddRelativeBias(
          bias, queries, keys, w, bidirectional
        ),
        [0, 2, 1, 3],
      )
      loss = tf.reduce_sum(want * cotangent)
    gradient = tape.gradient(loss, w).numpy()
  layer = RelativeBias.config(
    num_heads=N,
    bidirectional=bidirectional,
    use_length_as_position=False,
    **fields,
  ).Instantiate()

  def ours(weight):
    y = layer.apply({PARAMS: {'wrb': weight}}, queries, keys)
    return jnp.sum(y * cotangent), y

  by_weight, y = jax.grad(ours, has_aux=True)(weight)
  np.testing.assert_array_equal(y, want)
  assert_gradients_close({'wrb': by_weight}, {'wrb': gradient})
