"""N-grammers at the inputs of Transformer models.

Shapes: B batch, T time, L new tokens of a decoding step, D model dims.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pax_compat import base_layer


def add_ngrams(
  ngrammer: Callable[..., jax.Array],
  ids: jax.Array,
  vectors: jax.Array,
  paddings: jax.Array | None,
  segment_pos: jax.Array | None,
) -> jax.Array:
  """Returns embedded tokens with those of pairs, [B, T, D].

  Args:
    ngrammer: an `Ngrammer` or another layer that is called as it.
    ids: [B, T].
    vectors: [B, T, D], the embedded tokens.
    paddings: [B, T], or None.
    segment_pos: [B, T], positions within packed examples, or None.
  """
  return ngrammer(
    input_ids=ids,
    input_embs=vectors,
    paddings=paddings,
    segment_pos=segment_pos,
    emb_var=None,
  )


def store_previous(
  model: base_layer.BaseLayer,
  ids: jax.Array,
  vectors: jax.Array,
  time_step: jax.Array | int,
):
  """Stores the token before a position as the decode state of `extend`.

  Args:
    model: the model, whose decode states are mutable.
    ids: [B, T].
    vectors: [B, T, D].
    time_step: the position; before the first one is the id 0.
  """

  def before(x):
    padded = jnp.pad(x, ((0, 0), (1, 0)) + ((0, 0),) * (x.ndim - 2))
    return jax.lax.dynamic_slice_in_dim(padded, time_step, 1, axis=1)

  model.update_decode_state('ngrammer_prefix', before(ids))
  model.update_decode_state('ngrammer_prefix_emb', before(vectors))


def extend(
  model: base_layer.BaseLayer,
  ngrammer: Callable[..., jax.Array],
  ids: jax.Array,
  vectors: jax.Array,
  segment_pos: jax.Array,
) -> jax.Array:
  """Returns `add_ngrams` of the tokens of a decoding step, [B, L, D].

  Args:
    model: the model with the state of `store_previous`, which is updated.
    ngrammer: see `add_ngrams`.
    ids: [B, L].
    vectors: [B, L, D].
    segment_pos: [B or 1, L]; the token of position 0 has none before it.
  """
  before = model.get_decode_state('ngrammer_prefix')
  before_emb = model.get_decode_state('ngrammer_prefix_emb')
  positions = jnp.broadcast_to(segment_pos, ids.shape)
  result = add_ngrams(
    ngrammer,
    jnp.concatenate([before, ids.astype(before.dtype)], axis=1),
    jnp.concatenate([before_emb, vectors.astype(before_emb.dtype)], axis=1),
    None,
    jnp.pad(positions, ((0, 0), (1, 0))),
  )
  model.update_decode_state('ngrammer_prefix', ids[:, -1:].astype(before.dtype))
  model.update_decode_state(
    'ngrammer_prefix_emb', vectors[:, -1:].astype(before_emb.dtype)
  )
  return result[:, 1:]
