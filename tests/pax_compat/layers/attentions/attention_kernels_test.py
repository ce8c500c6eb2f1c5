"""The choice of an attention kernel; splash attention against the plain one.

Shapes: B batch, T target time, S source time, N heads, H dims of a head.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, layers
from pax_compat.layer_core import sharding
from pax_compat.layers.attentions import (
  attention_kernels,
  attention_masks,
  splash_attention,
)
from pax_compat.layers.attentions.attention_ops import (
  AttentionInputs,
  AttentionOptions,
)
from pax_compat.trainer import model_flops
from tests.pax_compat.layers.naive_attention import random

B, T, S, N, H = 2, 5, 7, 4, 6
# Head dims of splash attention.
_LANES = 128


def _heads(targets=T, sources=S, kv_heads=N, heads=N, dims=H):
  query = random(B, targets, heads, dims, seed=1)
  key, value = (
    random(B, sources, kv_heads, dims, seed=seed) for seed in (2, 3)
  )
  return query, key, value


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('kv_heads', [1, N])
@pytest.mark.parametrize('bias', [False, True])
def test_both_kernels_agree(bias, kv_heads, causal, monkeypatch):
  heads = _heads(kv_heads=kv_heads)
  mask = np.array(random(B, 1, 1, S, seed=4) > 0)
  mask[..., 0] = True
  mask[1] = False  # The second example sees nothing.
  bias = random(1, N, T, S, seed=5) if bias else None

  def run(backend):
    monkeypatch.setattr(jax, 'default_backend', lambda: backend)
    return attention_kernels.dot_product_attention(
      AttentionInputs(*heads, mask=mask, bias=bias, causal=causal)
    )

  on_cpu, on_gpu = run('cpu'), run('gpu')
  # A target without visible sources gets the mean over all sources, or over
  # those before it.
  np.testing.assert_allclose(on_cpu[0], on_gpu[0], rtol=1e-5, atol=1e-5)
  if not causal:
    np.testing.assert_allclose(on_cpu[1], on_gpu[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ('fits', 'capability', 'shape', 'dtype'),
  [
    (True, 9.0, (2, 8, 2, 64), jnp.bfloat16),
    (True, 8.0, (2, 8, 2, 128), jnp.float16),
    (False, 7.5, (2, 8, 2, 64), jnp.bfloat16),
    (False, 9.0, (2, 8, 2, 64), jnp.float32),
    (False, 9.0, (2, 8, 2, 256), jnp.bfloat16),
    (False, 9.0, (2, 8, 2, 20), jnp.bfloat16),
    (False, 9.0, (2, 7, 2, 64), jnp.bfloat16),
  ],
)
def test_what_flash_attention_is_for(fits, capability, shape, dtype):
  heads = jax.ShapeDtypeStruct(shape, dtype)
  assert fits == attention_kernels.flash_attention_fits(
    heads, heads, compute_capability=capability
  )


def _packed_rows(length):
  """Returns the mask of a packed row, and of one that is half padding."""
  positions = np.arange(length)
  segments = np.stack([1 + positions // 150, positions < length // 2])
  paddings = np.stack([positions < 0, positions >= length // 2])
  return attention_masks.self_attention_segments(
    jnp.asarray(segments, jnp.int32), jnp.asarray(paddings, jnp.float32)
  )


@pytest.mark.parametrize(
  ('length', 'kv_heads', 'cap', 'causal'),
  [
    (384, 2, 2.0, True),  # Three blocks; one kernel for the gradients.
    (640, 1, 0.0, True),  # Five blocks; two kernels for the gradients.
    (256, 2, 0.0, False),
  ],
)
def test_splash_attention_equals_the_products(length, kv_heads, cap, causal):
  heads = _heads(length, length, kv_heads, heads=2, dims=_LANES)
  mask, seed = _packed_rows(length), random(B, length, 2, _LANES, seed=7)

  def weighted(kernel, query, key, value):
    encoded = attention_kernels.dot_product_attention(
      AttentionInputs(query * _LANES**-0.5, key, value, mask, causal=causal),
      AttentionOptions(logit_cap=cap, kernel=kernel),
    )
    return jnp.sum(encoded * seed), encoded

  (_, plain), of_plain = _with_gradients(weighted, 'plain', heads)
  (_, splash), of_splash = _with_gradients(weighted, 'splash', heads)
  np.testing.assert_allclose(splash, plain, rtol=1e-5, atol=1e-5)
  for ours, other in zip(of_splash, of_plain, strict=True):
    np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-4)


def _with_gradients(weighted, kernel, heads):
  function = functools.partial(weighted, kernel)
  return jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2), has_aux=True))(
    *heads
  )


@pytest.mark.parametrize(
  ('what', 'fields', 'options'),
  [
    ('a bias', {'bias': np.zeros([1, 1, 256, 256])}, {}),
    ('an extra logit', {}, {'extra_logit': 0.0}),
    ('dropout', {}, {'dropout': lambda x: x}),
    ('a mask that', {'mask': np.ones([B, 1, 1, 256], bool)}, {}),
    ('heads of 64 dims', {'dims': 64}, {}),
    ('200 positions', {'targets': 200, 'sources': 200}, {}),
    ('sources that', {'sources': 128}, {}),
  ],
)
def test_what_splash_attention_does_not_support(what, fields, options):
  sizes = {'targets': 256, 'sources': 256, 'dims': _LANES}
  sizes |= {k: v for k, v in fields.items() if k in sizes}
  others = {k: v for k, v in fields.items() if k not in sizes}
  heads = [jnp.asarray(x) for x in _heads(**sizes)]
  inputs = AttentionInputs(*heads, causal=True, **others)
  options = AttentionOptions(kernel='splash', **options)
  assert what in splash_attention.unsupported(inputs, options)
  with pytest.raises(errors.UserError, match=what):
    attention_kernels.dot_product_attention(inputs, options)


def test_the_choice_for_a_tpu_is_recorded(monkeypatch):
  monkeypatch.setattr(sharding, 'platform', lambda: 'tpu')
  monkeypatch.setattr(
    splash_attention, 'attend', lambda inputs, options: inputs.query
  )

  def chosen(dims, **options):
    heads = [jnp.asarray(x) for x in _heads(128, 128, dims=dims)]
    with attention_kernels.recording() as found:
      attention_kernels.dot_product_attention(
        AttentionInputs(*heads, causal=True), AttentionOptions(**options)
      )
    return ' '.join(found)

  assert chosen(_LANES).startswith('splash, for 128 targets')
  assert chosen(_LANES, kernel='plain') == ''
  assert chosen(64, logit_cap=1.0).startswith('plain')
  assert 'does not support heads of 64 dims' in chosen(64)


def test_a_stack_attends_by_segments_with_either_kernel():
  def encoded(kernel):
    stack = layers.StackedTransformer.config(
      num_layers=1,
      model_dims=8,
      hidden_dims=8,
      num_heads=1,
      dim_per_head=_LANES,
      mask_self_attention=True,
      packed_input=True,
    )
    layer = stack.transformer_layer_params_tpl
    layer.tr_atten_tpl.attention_kernel = kernel
    ids = jnp.asarray([[1] * 50 + [2] * 60 + [0] * 18])
    args = jnp.asarray(random(1, 128, 8, seed=1)), jnp.float32(ids == 0)
    module = stack.Instantiate()
    variables = module.init(jax.random.key(0), *args, segment_ids=ids)
    return module.apply(variables, *args, segment_ids=ids)

  # Padding differs: it attends to itself, or to all.
  splash, plain = (encoded(k)[:, :110] for k in ('splash', 'plain'))
  np.testing.assert_allclose(splash, plain, rtol=1e-5, atol=1e-5)


def test_an_unknown_kernel_is_an_error():
  with pytest.raises(errors.UserError, match='did you mean: splash'):
    attention_kernels.check('splsh', where='x')


def test_the_products_of_splash_attention_are_counted():
  length, rows, heads = 1024, 3, 2
  shape = jax.ShapeDtypeStruct([rows, length, heads, _LANES], jnp.float32)

  def loss(query, key, value):
    inputs = AttentionInputs(query, key, value, causal=True)
    options = AttentionOptions(kernel='splash')
    return jnp.sum(attention_kernels.dot_product_attention(inputs, options))

  traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*[shape] * 3)
  of_one_product = 2 * rows * heads * length**2 * _LANES
  # Two products forwards, five backwards; of four blocks, three.
  counted = model_flops.of_traced(traced)
  assert counted == pytest.approx(7 * 3 / 4 * of_one_product, rel=0.01)
