"""Translated attention by distance against Lingvo's, run for real.

Shapes: B batch, T time, D model dims, N heads.
"""

import flax.linen as nn
import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import learners
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
)
from tests.adaptors.translate.parity import check_layer, issues_of, translate

B, T, D, N = 3, 7, 8, 2
RNG = np.random.default_rng(1)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [4], [1]])).astype(np.float32)
_MASK = attention_masks.padding_mask(PADDINGS)
# Windows and their blocks, down to one that has all.
WINDOWS = [
  dict(left_context=3, right_context=1),
  dict(left_context=4, block_size=5),
  dict(left_context=1, right_context=2, block_size=20),
]


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's module of batch-major attention."""
  return lingvo_runtime.module('lingvo.core.batch_major_attention')


def _attention(lingvo, cls, **fields):
  return (
    getattr(lingvo, cls)
    .Params()
    .Set(name='atten', input_dim=D, hidden_dim=12, num_heads=N, **fields)
  )


def _check(params, *, causal=None, do_eval=True):
  """Compares self-attention, to the past only if `causal`."""
  lingvo = lingvo_runtime.module('lingvo.core.batch_major_attention')
  tf = lingvo_runtime.module('lingvo.compat')
  future = None
  if causal:
    future = np.tile(lingvo.CausalPadding(T)[None], [B, 1, 1])
  check_layer(
    params,
    [X],
    fprop=lambda layer, theta, x: layer.FProp(
      theta, x, x, x, tf.constant(PADDINGS), None, future
    )[0],
    call=lambda layer, x: layer(
      x, x, x, atten_mask=AttentionMask(_MASK, causal=bool(causal))
    )[0],
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  ('causal', 'fields'),
  [
    (False, {}),
    (True, {'skip_term_b': True}),
    (True, {'use_bias': False, 'enable_per_dim_scale': False}),
    (False, {'enable_qkv_proj_in_onestep': True, 'atten_logit_cap': 0.1}),
    (False, {'enable_scaling_code_motion': True}),
  ],
  ids=str,
)
def test_attention_xl(lingvo, fields, causal):
  params = _attention(
    lingvo, 'MultiHeadedAttentionXL', rel_pos_emb_dim=6, **fields
  )
  _check(params, causal=causal, do_eval=causal)


@pytest.mark.parametrize(
  'fields',
  [
    {'atten_logit_cap': 0.1},
    {'rel_pos_emb_dim': 5, 'use_bias': False},
    {'skip_value_emb': True},
  ],
  ids=','.join,
)
def test_attention_rpe(lingvo, fields):
  params = _attention(
    lingvo, 'MultiHeadedAttentionRPE', rel_pos_radius=3, **fields
  )
  _check(params, causal='rel_pos_emb_dim' in fields, do_eval=False)


@pytest.mark.parametrize(
  ('cls', 'window', 'fields'),
  [
    ('LocalSelfAttention', WINDOWS[1], {'atten_logit_cap': 0.1}),
    ('LocalSelfAttention', WINDOWS[2], {}),
    ('LocalSelfAttentionXL', WINDOWS[0], {'rel_pos_emb_dim': 6}),
    ('LocalSelfAttentionXL', WINDOWS[2], {'rel_pos_emb_dim': 6}),
  ],
  ids=str,
)
def test_local_attention(lingvo, cls, fields, window):
  _check(_attention(lingvo, cls, **fields, **window))


@pytest.mark.parametrize(
  ('cls', 'fields'),
  [
    ('LocalSelfAttention', {'atten_extra_logit': 0.3}),
    ('LocalSelfAttention', {'force_consistent_probs_shape': True}),
    ('LocalSelfAttentionXL', {'rel_pos_emb_dim': 6, 'skip_term_b': True}),
  ],
)
def test_local_attention_while_training(lingvo, cls, fields):
  _check(_attention(lingvo, cls, **fields, **WINDOWS[0]), do_eval=False)


def test_rotated_local_attention(lingvo):
  layers = lingvo_runtime.module('lingvo.core.layers')
  rope = layers.RotaryPositionalEmbeddingLayer.Params()
  _check(_attention(lingvo, 'LocalSelfAttention', rope_tpl=rope, **WINDOWS[0]))


@pytest.mark.parametrize(
  ('relative', 'local'), [(True, None), (False, 2), (True, 2)]
)
def test_transformer_layer_of_common_params(lingvo, relative, local):
  """Each class as `CommonParams` chooses it.

  A local one ignores `mask_self_atten`.
  """
  params = lingvo.TransformerLayer.CommonParams(
    input_dim=D,
    atten_num_heads=N,
    atten_is_relative=relative,
    atten_local_context=local,
    mask_self_atten=True,
    fflayer_hidden_dim=12,
  )
  check_layer(
    params,
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x, PADDINGS)[0],
    call=lambda layer, x: layer(x, PADDINGS)[0],
  )


def test_positions_start_as_in_lingvo(lingvo):
  """The projection of distances has another fan-in."""
  params = _attention(
    lingvo,
    'MultiHeadedAttentionXL',
    rel_pos_emb_dim=40,
    enable_qkv_proj_in_onestep=True,
  ).Set(hidden_dim=60)
  translated = translate(params)
  layer = translated.config.Instantiate()
  first = jax.jit(lambda key: layer.init(key, X, X, X))(jax.random.key(0))
  first = learners.by_path(nn.unbox(first)['params'])
  ours = translated.variables.to_lingvo(
    {path: np.asarray(value) for path, value in first.items()}
  )
  with lingvo_runtime.cluster():
    theirs = dict(params.Instantiate().vars.FlattenItems())
  assert set(ours) == set(theirs)
  for path, variable in theirs.items():
    value = variable.numpy()
    np.testing.assert_allclose(
      ours[path].std(), value.std(), rtol=0.05, err_msg=path
    )


@pytest.mark.parametrize(
  ('cls', 'field', 'value'),
  [
    ('MultiHeadedAttentionXL', 'packed_input', True),
    ('MultiHeadedAttentionXL', 'rel_pos_emb_dim', 5),
    ('MultiHeadedAttentionXL', 'dim_per_head', 3),
    ('LocalSelfAttentionXL', 'rel_pos_emb_dim', None),
    ('LocalSelfAttentionXL', 'enable_ctx_post_proj', False),
    ('MultiHeadedAttentionRPE', 'rel_pos_radius', None),
    ('LocalSelfAttention', 'query_stride', 2),
    ('LocalSelfAttention', 'left_context', None),
  ],
)
def test_refuses_other_settings(lingvo, cls, field, value):
  params = _attention(lingvo, cls)
  if 'Local' in cls:
    params.left_context = 2
  if 'XL' in cls:
    params.rel_pos_emb_dim = 6
  issues = issues_of(params.Set(**{field: value}))
  assert f'layer.{field}' in '\n'.join(issues)
