"""The bias of distances against T5's buckets, one pair at a time.

Shapes: B batch, T target time, S source time, N heads.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions import relative_bias
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

N = 2


def _layer(**fields):
  return relative_bias.RelativeBias.config(num_heads=N, **fields).Instantiate()


def _indices(length):
  return jnp.arange(length)[None]


BUCKETS = pytest.mark.parametrize(
  'fields',
  [
    {},
    {'bidirectional': True},
    {'relative_attention_num_buckets': 8, 'relative_attention_max_distance': 9},
    {
      'relative_attention_num_buckets': 12,
      'relative_attention_max_distance': 20,
      'bidirectional': True,
    },
  ],
)


def _naive(weight, query_positions, key_positions, fields):
  return naive_attention.relative_bias(
    weight,
    np.asarray(query_positions),
    np.asarray(key_positions),
    farthest=fields.get('relative_attention_max_distance', 128),
    bidirectional=fields.get('bidirectional', False),
  )


def _weight(fields):
  return random(N, fields.get('relative_attention_num_buckets', 32))


@BUCKETS
@pytest.mark.parametrize(('targets', 'sources'), [(30, 30), (3, 24), (24, 3)])
def test_bias_of_whole_sequences(targets, sources, fields):
  weight = _weight(fields)
  args = _indices(targets), _indices(sources)
  got = _layer(**fields).apply({PARAMS: {'wrb': weight}}, *args)
  assert got.shape == (1, N, targets, sources)
  np.testing.assert_array_equal(
    got, _naive(weight, *args, fields).astype(np.float32)
  )


@BUCKETS
def test_bias_between_far_positions(fields):
  weight = _weight(fields)
  queries = jnp.array([[0, 150, 300]])
  keys = jnp.arange(300)[None]
  got = _layer(use_length_as_position=False, **fields).apply(
    {PARAMS: {'wrb': weight}}, queries, keys
  )
  want = _naive(weight, queries, keys, fields)
  np.testing.assert_array_equal(got, want.astype(np.float32))


def test_positions_count_unless_the_index_is_taken():
  weight = random(N, 32)
  positions = jnp.array([[0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 2, 3]])
  by_position = _layer(use_length_as_position=False).apply(
    {PARAMS: {'wrb': weight}}, positions
  )
  assert by_position.shape == (2, N, 6, 6)
  want = _naive(weight, positions, positions, {})
  np.testing.assert_array_equal(by_position, want.astype(np.float32))
  by_index = _layer().apply({PARAMS: {'wrb': weight}}, positions)
  want = _naive(weight, _indices(6), _indices(6), {})
  np.testing.assert_array_equal(by_index, want.astype(np.float32))


@pytest.mark.parametrize('use_length', [False, True])
def test_gradients_are_sums_over_the_pairs_of_a_bucket(use_length):
  positions = _indices(40)
  upstream = random(1, N, 40, 40, seed=1)
  layer = _layer(use_length_as_position=use_length, bidirectional=True)

  def loss(weight):
    return jnp.sum(layer.apply({PARAMS: {'wrb': weight}}, positions) * upstream)

  got = jax.grad(loss)(random(N, 32))
  want = np.zeros((N, 32))
  for t, s in np.ndindex(40, 40):
    bucket = naive_attention.bucket(s - t, bidirectional=True)
    want[:, bucket] += upstream[0, :, t, s]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('steps', [1, 3])
def test_steps_of_decoding_are_rows_of_the_whole(steps):
  weights = {PARAMS: {'wrb': random(N, 32)}}
  layer = _layer()
  whole = layer.apply(weights, _indices(50))
  step = jax.jit(
    lambda t: layer.apply(weights, 50, t, steps, method='extend_step')
  )
  for start in (0, 20, 47):
    np.testing.assert_array_equal(
      step(start), whole[:, :, start : start + steps]
    )


@pytest.mark.parametrize('xavier', [False, True])
def test_where_the_weights_start(xavier):
  layer = relative_bias.RelativeBias.config(
    num_heads=64, relative_attention_num_buckets=64, use_xavier_init=xavier
  ).Instantiate()
  weight = layer.init_boxed({PARAMS: jax.random.key(0)}, _indices(2))[PARAMS][
    'wrb'
  ]
  assert weight.value.shape == (64, 64)
  # Uniform over [-a, a] has the deviation a / sqrt(3).
  want = np.sqrt(6 / 128) / np.sqrt(3) if xavier else 1 / 64
  np.testing.assert_allclose(np.std(weight.value), want, rtol=0.05)


@pytest.mark.parametrize(
  'fields',
  [
    {'relative_attention_num_buckets': 1},
    {'relative_attention_num_buckets': 3, 'bidirectional': True},
    {'relative_attention_max_distance': 16},
    {'relative_attention_max_distance': 8, 'bidirectional': True},
  ],
)
def test_buckets_reach_beyond_the_near_distances(fields):
  with pytest.raises(errors.UserError, match='relative_attention_max_distance'):
    _layer(**fields).init_boxed({PARAMS: jax.random.key(0)}, _indices(2))
