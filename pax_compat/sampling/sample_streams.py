"""A random stream for each example, whatever batch it is in.

Shapes: B rows, P tokens.
"""

import jax
import jax.numpy as jnp

from pax_compat.sampling.token_samplers import DUMMY_PRNG_KEY


def content_keys(
  key: jax.Array, ids: jax.Array, is_token: jax.Array
) -> jax.Array:
  """Returns a key for each example, which depends on its tokens only.

  So the samples of an example are the same in any batch, at any row, and with
  any padding; and examples of the same tokens have the same samples.

  Args:
    key: the key of the program.
    ids: [B, P], left-aligned tokens.
    is_token: [B, P], False at padding.

  Returns:
    Typed keys [B].
  """
  words = [_fingerprint(ids, is_token, factor) for factor in _FACTORS]

  def fold(first, second):
    return jax.random.fold_in(jax.random.fold_in(key, first), second)

  return jax.vmap(fold)(*words)


_FACTORS = (0x9E3779B1, 0xC2B2AE3D)


def _fingerprint(ids, is_token, factor: int) -> jax.Array:
  """Returns a 32-bit hash of the tokens of each row, [B]."""
  positions = jnp.arange(1, ids.shape[1] + 1, dtype=jnp.uint32)
  mixed = _mix(ids.astype(jnp.uint32) + jnp.uint32(factor))
  mixed = _mix(mixed ^ (positions * jnp.uint32(factor)))
  return _mix(jnp.sum(jnp.where(is_token, mixed, 0), axis=1, dtype=jnp.uint32))


def _mix(x: jax.Array) -> jax.Array:
  """The finalizer of MurmurHash3: each bit changes half of the others."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def given_keys(
  given: jax.Array, otherwise: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the keys that a batch gives as `gumbel_prng_key`.

  Args:
    given: key data, [B] or [B, 2].
    otherwise: keys [B], used if all of `given` is `DUMMY_PRNG_KEY`.

  Returns:
    Typed keys [B]; and whether they are the given ones, [].
  """
  data = jax.random.key_data(otherwise)
  given = jnp.asarray(given).astype(jnp.uint32)
  if given.ndim == 1:
    given = jnp.stack([given] * data.shape[1], axis=-1)
  if given.shape != data.shape:
    raise ValueError(
      f'gumbel_prng_key has the shape {given.shape}; expected {data.shape} or'
      f' {data.shape[:1]}'
    )
  is_dummy = jnp.all(given == DUMMY_PRNG_KEY)
  keys = jax.random.wrap_key_data(
    jnp.where(is_dummy, data, given), impl=jax.random.key_impl(otherwise)
  )
  return keys, ~is_dummy


def sample_keys(keys: jax.Array, num_samples: int) -> jax.Array:
  """Returns a key for each of the samples of each row, [B * num_samples]."""
  return jax.vmap(lambda key: jax.random.split(key, num_samples))(keys).ravel()


def step_keys(keys: jax.Array, steps: jax.Array) -> jax.Array:
  """Returns the keys [B] of steps [B]."""
  return jax.vmap(jax.random.fold_in)(keys, steps)
