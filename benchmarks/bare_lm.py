"""A Transformer language model in plain JAX: one jitted function.

    python -m benchmarks.bare_lm '{"NUM_LAYERS": 4, ...}'

makes one step of a new model, see `benchmarks.first_step`.

Pure functions over a dict of weights, optax, and a donated state. It computes
the same function of the same weights as the translated experiment, without
anything that training does not need: the loss is the only metric, and paddings
are not masked (attention is causal, and padding has weight 0 in the loss).

Shapes: B batch, T time, D model dims, N heads, H dims of a head, F inner dims
of the feed-forward, V vocabulary.
"""

import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

Weights = dict[str, Any]


class State(NamedTuple):
  """The training state: weights and optax's state."""

  weights: Weights
  opt_state: Any


class Settings(NamedTuple):
  """Training settings.

  Attributes:
    learning_rate: maps the number of earlier steps to the rate.
    beta1: Adam's.
    beta2: Adam's.
    epsilon: Adam's.
    clip_norm: the largest global norm of the gradients.
    attention: 'jax.nn' uses `jax.nn.dot_product_attention`, 'plain' einsums and
      a softmax.
  """

  learning_rate: Callable[[jax.Array], jax.Array]
  beta1: float
  beta2: float
  epsilon: float
  clip_norm: float
  attention: str = 'jax.nn'


def weights_of(params: dict) -> Weights:
  """Returns a copy of a translated model's weights, with short names.

  Args:
    params: the `params` collection of a `LanguageModel` with a `TransformerLm`.
  """
  lm = params['lm']
  stack = lm['transformer']
  logits = lm['softmax']['logits_ffn']
  weights = dict(
    emb=lm['embedding_lookup']['emb_var'],
    layers=[_layer_of(stack[f'x_layers_{i}']) for i in range(len(stack))],
    out=dict(w=logits['linear']['w'], b=logits['bias']['b']),
  )
  return jax.tree.map(jnp.array, weights)


def _layer_of(layer: dict) -> Weights:
  attention, ff = layer['self_attention'], layer['ff_layer']
  first, second = ff['ffn_layer1'], ff['ffn_layer2']
  names = ('query', 'key', 'value', 'post')
  return dict(
    norm1=layer['layer_norm'],
    **{name: attention[name] for name in names},
    dim_scale=attention['per_dim_scale']['per_dim_scale'],
    norm2=ff['layer_norm'],
    ff1=dict(w=first['linear']['w'], b=first['bias']['b']),
    ff2=dict(w=second['linear']['w'], b=second['bias']['b']),
  )


def make_step(settings: Settings):
  """Returns (init, step).

  `init` maps weights to a state. `step` maps (state, batch) to (state, loss);
  it is jitted and donates the state.
  """
  optimizer = optax.chain(
    optax.clip_by_global_norm(settings.clip_norm),
    optax.adam(
      settings.learning_rate,
      b1=settings.beta1,
      b2=settings.beta2,
      eps=settings.epsilon,
    ),
  )

  def step(state, batch):
    loss, gradients = jax.value_and_grad(_loss)(
      state.weights, batch, settings.attention
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state)
    weights = optax.apply_updates(state.weights, updates)
    return State(weights, opt_state), loss

  def init(weights):
    return State(weights, optimizer.init(weights))

  return init, jax.jit(step, donate_argnums=0)


def _loss(weights: Weights, batch: dict, attention: str) -> jax.Array:
  """Returns the mean cross-entropy [] of the batch's tokens, in nats.

  Args:
    weights: as `weights_of` returns them.
    batch: `ids`, `labels` [B, T] int, and `weights` [B, T].
    attention: as in `Settings`.
  """
  dims = weights['emb'].shape[1]
  x = weights['emb'][batch['ids']] * math.sqrt(dims)
  x = x + _positions(x.shape[1], dims)
  for layer in weights['layers']:
    x = _norm(x, layer['norm1'])
    x = x + _attend(x, layer, attention)  # Lingvo adds the normalized input.
    x = x + _feed_forward(_norm(x, layer['norm2']), layer)
  # Without a matrix of its own, the softmax shares the embedding's.
  matrix = weights['out']['w'] if 'w' in weights['out'] else weights['emb'].T
  logits = x @ matrix + weights['out']['b']
  xent = optax.softmax_cross_entropy_with_integer_labels(
    logits, batch['labels']
  )
  return jnp.sum(xent * batch['weights']) / jnp.sum(batch['weights'])


def _positions(length: int, dims: int) -> jax.Array:
  """Returns the sinusoidal positions [T, D]."""
  count = dims // 2
  steps = jnp.arange(count) * (math.log(10_000) / (count - 1))
  angles = jnp.arange(length)[:, None] * jnp.exp(-steps)
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _norm(x: jax.Array, norm: Weights) -> jax.Array:
  """Layer normalization of `x` [B, T, D]; the scale is 1 + the weight."""
  mean = jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.var(x, axis=-1, keepdims=True)
  x = (x - mean) * jax.lax.rsqrt(variance + 1e-6)
  return x * (1 + norm['scale']) + norm['bias']


def _attend(x: jax.Array, layer: Weights, attention: str) -> jax.Array:
  """Causal self-attention of `x` [B, T, D]."""
  query, key, value = (
    jnp.einsum('btd,dnh->btnh', x, layer[name]['w']) + layer[name]['b']
    for name in ('query', 'key', 'value')
  )
  scale = jax.nn.softplus(layer['dim_scale']) / math.log(2)
  query = query * (scale / math.sqrt(query.shape[-1]))
  if attention == 'jax.nn':
    mixed = jax.nn.dot_product_attention(
      query, key, value, is_causal=True, scale=1.0
    )
  else:
    mixed = _plain_attention(query, key, value)
  return (
    jnp.einsum('btnh,dnh->btd', mixed, layer['post']['w']) + layer['post']['b']
  )


def _plain_attention(query, key, value) -> jax.Array:
  length = query.shape[1]
  logits = jnp.einsum('btnh,bsnh->bnts', query, key)
  visible = jnp.tril(jnp.ones([length, length], bool))
  probs = jax.nn.softmax(jnp.where(visible, logits, -1e30), axis=-1)
  return jnp.einsum('bnts,bsnh->btnh', probs, value)


def _feed_forward(x: jax.Array, layer: Weights) -> jax.Array:
  """Two projections of `x` [B, T, D] with a ReLU between them."""
  inner = jax.nn.relu(x @ layer['ff1']['w'] + layer['ff1']['b'])
  return inner @ layer['ff2']['w'] + layer['ff2']['b']


def initial_weights(
  key: jax.Array, *, layers: int, dims: int, hidden: int, heads: int, vocab: int
) -> Weights:
  """Returns random weights; the softmax shares the matrix of the embedding."""
  keys = iter(jax.random.split(key, 1 + 6 * layers))

  def normal(*shape):
    return jax.random.normal(next(keys), shape) * dims**-0.5

  def norm():
    return dict(scale=jnp.zeros(dims), bias=jnp.zeros(dims))

  def heads_of():
    shape = heads, dims // heads
    return dict(w=normal(dims, *shape), b=jnp.zeros(shape))

  def layer():
    return dict(
      norm1=norm(),
      query=heads_of(),
      key=heads_of(),
      value=heads_of(),
      post=dict(w=normal(dims, heads, dims // heads), b=jnp.zeros(dims)),
      dim_scale=jnp.zeros(dims // heads),
      norm2=norm(),
      ff1=dict(w=normal(dims, hidden), b=jnp.zeros(hidden)),
      ff2=dict(w=normal(hidden, dims), b=jnp.zeros(dims)),
    )

  return dict(
    emb=normal(vocab, dims),
    layers=[layer() for _ in range(layers)],
    out=dict(b=jnp.zeros(vocab)),
  )


def main():
  """Makes one step, and prints its loss."""
  sizes = json.loads(sys.argv[1])
  init, step = make_step(
    Settings(lambda _: 1e-3, 0.9, 0.999, 1e-6, 1.0, attention='plain')
  )
  rows = sizes['PERCORE_BATCH_SIZE'], sizes['MAX_SEQ_LEN']

  @jax.jit
  def create(key):
    return initial_weights(
      key,
      layers=sizes['NUM_LAYERS'],
      dims=sizes['MODEL_DIMS'],
      hidden=sizes['HIDDEN_DIMS'],
      heads=sizes['NUM_HEADS'],
      vocab=sizes['VOCAB_SIZE'],
    )

  rng = np.random.default_rng(0)
  ids = rng.integers(0, sizes['VOCAB_SIZE'], rows, dtype=np.int32)
  batch = dict(ids=ids, labels=ids, weights=np.ones(rows, np.float32))
  _, loss = step(init(create(jax.random.key(0))), batch)
  print(f'step 1 loss {float(loss):.2f}')


if __name__ == '__main__':
  main()
