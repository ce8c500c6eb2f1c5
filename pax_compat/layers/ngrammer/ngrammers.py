"""N-grammers, https://arxiv.org/abs/2207.06366.

Each head looks up an embedding of a pair of ids, those of a position and of the
one before it, and adds it to its vector.

Shapes: B batch, L time, N heads, H dims of a head, D = N * H, K clusters.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layers import embeddings, normalizations
from pax_compat.layers.ngrammer import clusters


def get_bigram_ids(
  ids: jax.Array,
  vocab_size: int,
  segment_pos: jax.Array | None = None,
  pair_ids: jax.Array | None = None,
) -> jax.Array:
  """Returns ids of pairs: an id plus `vocab_size` times the other one.

  Args:
    ids: [B, L], int.
    vocab_size: number of ids.
    segment_pos: [B, L], positions within packed examples, whose first id is
      paired with 0; None if a row is one example.
    pair_ids: [B, L], the position of the other id, L for 0; None takes the
      position before.

  Returns:
    [B, L], int.
  """
  padded = jnp.pad(ids, [(0, 0), (0, 1)])
  if pair_ids is None:
    others = jnp.pad(ids, [(0, 0), (1, 0)])[:, :-1]
  else:
    others = jnp.take_along_axis(padded, pair_ids, axis=1)
  if segment_pos is not None:
    others = jnp.where(segment_pos == 0, 0, others)
  return ids + others * vocab_size


def _primes_above(number: int, count: int) -> list[int]:
  """Returns the first primes larger than `number`."""
  found = []
  while len(found) < count:
    number += 1
    divisors = range(2, int(number**0.5) + 1)
    if number > 1 and all(number % d for d in divisors):
      found.append(number)
  return found


class PerHead(base_layer.BaseLayer):
  """Base of layers that normalize each head's vectors separately.

  Attributes:
    num_heads: N.
    dim_per_head: H.
  """

  num_heads: int = REQUIRED
  dim_per_head: int = REQUIRED

  def _create_norms(self, name: str, dims: int):
    norms = [
      normalizations.LayerNorm.config(dim=dims) for _ in range(self.num_heads)
    ]
    self.create_children(name, norms)

  def _normalized(self, x: jax.Array) -> jax.Array:
    """Returns vectors [B, L, D] or [B, L, N, H] normalized, [B, L, N, H]."""
    x = x.astype(self.compute_dtype)
    x = x.reshape(*x.shape[:2], self.num_heads, -1)
    heads = [norm(x[:, :, i]) for i, norm in enumerate(self.emb_layer_norm)]
    return jnp.stack(heads, 2)

  def _finished(self, x, paddings, merge_heads: bool) -> jax.Array:
    if paddings is not None:
      x *= (1 - paddings)[:, :, None, None]
    return x.reshape(*x.shape[:2], -1) if merge_heads else x


def check_dims(layer):
  name, dims = type(layer).__name__, layer.ngram_emb_dim
  fits = dims <= layer.dim_per_head
  if not layer.concat_ngrams:
    fits = dims == layer.dim_per_head
  if not fits:
    raise errors.UserError(
      f'{name}.ngram_emb_dim is {dims} and dim_per_head {layer.dim_per_head};'
      ' expected them to be equal, or with concat_ngrams the first to be'
      ' smaller'
    )


class BaseNgrammer(PerHead):
  """Base of layers with a table of embeddings of pairs for each head.

  Attributes:
    ngram_vocab_size: rows of each head's table.
    ngram_emb_dim: dims of a row.
    concat_ngrams: whether the last dims of a head are replaced; else they are
      added to.
  """

  ngram_vocab_size: int = 768 * 256
  ngram_emb_dim: int = 8
  concat_ngrams: bool = True

  def setup(self):
    check_dims(self)
    self._create_norms('emb_layer_norm', self.dim_per_head)
    self._create_norms('ngram_layer_norm', self.ngram_emb_dim)

  def _with_ngrams(self, x: jax.Array, ngrams: jax.Array) -> jax.Array:
    """Returns `x` [B, L, N, H] with embeddings of pairs, added or inside."""
    if not self.concat_ngrams:
      return x + ngrams
    kept = self.dim_per_head - self.ngram_emb_dim
    return jnp.concatenate([x[..., :kept], ngrams], -1)


class Ngrammer(BaseNgrammer):
  """Looks up pairs of given ids, which are hashed to the rows of a table.

  Attributes:
    unigram_vocab_size: number of ids.
  """

  unigram_vocab_size: int = REQUIRED

  def setup(self):
    super().setup()
    table = embeddings.Embedding.config(
      num_classes=self.ngram_vocab_size,
      input_dims=self.ngram_emb_dim,
      params_init=self.params_init,
      weight_split_dims_mapping=self.weight_split_dims_mapping,
    )
    tables = [table.clone() for _ in range(self.num_heads)]
    self.create_children('ngram_table', tables)

  def __call__(
    self,
    input_ids: jax.Array,
    input_embs: jax.Array,
    paddings: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    merge_heads: bool = True,
    pair_ids: jax.Array | None = None,
    emb_var: jax.Array | None = None,
    **kwargs,
  ) -> jax.Array:
    """Adds embeddings of pairs to vectors, which are normalized first.

    Args:
      input_ids: [B, L] or [B, L, N], int.
      input_embs: [B, L, D] or [B, L, N, H].
      paddings: [B, L], 1 where a position is padding, which gets zeros.
      segment_pos: see `get_bigram_ids`.
      merge_heads: whether the outputs are [B, L, D]; else [B, L, N, H].
      pair_ids: [B, N, L]; see `get_bigram_ids`.
      emb_var: not used.
      **kwargs: not used.
    """
    del emb_var, kwargs
    size = self.ngram_vocab_size
    found = []
    for i, prime in enumerate(_primes_above(size, self.num_heads)):
      ids = get_bigram_ids(
        input_ids if input_ids.ndim == 2 else input_ids[:, :, i],
        self.unigram_vocab_size,
        segment_pos,
        None if pair_ids is None else pair_ids[:, i],
      )
      ids = (ids * (i + 1) + (i + 1)) % prime % size
      vectors = self.ngram_table[i].emb_lookup(ids)
      found.append(self.ngram_layer_norm[i](vectors))
    x = self._with_ngrams(self._normalized(input_embs), jnp.stack(found, 2))
    return self._finished(x, paddings, merge_heads)


class VQNgrammer(base_layer.BaseLayer):
  """An `Ngrammer` whose ids are the clusters of the vectors.

  Attributes:
    ngram_vocab_size: see `Ngrammer`.
    unigram_vocab_size: number of token ids, for the table of their clusters; 0
      for no table.
    ngram_emb_dim: see `Ngrammer`.
    ngram_using_attention_scores: whether a position is paired with the one that
      it attends to most, not with the one before it.
    causal_attention: whether that is an earlier one.
    concat_ngrams: see `Ngrammer`.
    num_clusters: K.
    num_heads: N.
    decay: see `VectorQuantization`.
    epsilon: likewise.
    dim_per_head: H.
    use_cached_input_ids_to_cluster_ids: whether clusters are those of the table
      at evaluation.
    enable_cache_updates: whether training updates the table.
    prenormalize: see `VectorQuantization`.
  """

  ngram_vocab_size: int = 768 * 256
  unigram_vocab_size: int = 0
  ngram_emb_dim: int = 8
  ngram_using_attention_scores: bool = False
  causal_attention: bool = True
  concat_ngrams: bool = False
  num_clusters: int = REQUIRED
  num_heads: int = REQUIRED
  decay: float = 0.999
  epsilon: float = 1e-6
  dim_per_head: int = REQUIRED
  use_cached_input_ids_to_cluster_ids: bool = False
  enable_cache_updates: bool = True
  prenormalize: bool = False

  def setup(self):
    check_dims(self)
    heads = dict(num_heads=self.num_heads, dim_per_head=self.dim_per_head)
    self.create_child(
      'vq_layer',
      clusters.VectorQuantization.config(
        num_clusters=self.num_clusters,
        decay=self.decay,
        epsilon=self.epsilon,
        prenormalize=self.prenormalize,
        **heads,
      ),
    )
    if self.unigram_vocab_size:
      shape = [self.unigram_vocab_size, self.num_heads]
      table = WeightHParams(shape, WeightInit.Constant(0), dtype=jnp.int32)
      self.create_variable(
        'input_id_to_cluster_id_cache', table, trainable=False
      )
    self.create_child(
      'ngram_layer',
      Ngrammer.config(
        ngram_vocab_size=self.ngram_vocab_size,
        unigram_vocab_size=self.num_clusters,
        ngram_emb_dim=self.ngram_emb_dim,
        concat_ngrams=self.concat_ngrams,
        weight_split_dims_mapping=self.weight_split_dims_mapping,
        **heads,
      ),
    )

  def __call__(
    self,
    input_ids: jax.Array | None,
    input_embs: jax.Array,
    paddings: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    merge_heads: bool = True,
    attention_scores: jax.Array | None = None,
    emb_var: jax.Array | None = None,
  ) -> jax.Array:
    """Adds embeddings of pairs of clusters; see `Ngrammer`.

    Args:
      input_ids: [B, L], token ids for the table of clusters; or None.
      input_embs: [B, L, D] or [B, L, N, H].
      paddings: [B, L].
      segment_pos: [B, L].
      merge_heads: whether the outputs are [B, L, D]; else [B, L, N, H].
      attention_scores: [B, N, L, L]; required to pair by attention.
      emb_var: not used.
    """
    del emb_var
    pair_ids = None
    if self.use_cached_input_ids_to_cluster_ids:
      ids = self._cached(input_ids)
    else:
      if self.ngram_using_attention_scores:
        pair_ids = self._pairs(attention_scores)
      distances, _ = self.vq_layer(input_embs, paddings=paddings)
      ids = jnp.argmin(distances, -1)
      self._store(input_ids, ids)
    return self.ngram_layer(
      ids,
      input_embs,
      paddings,
      segment_pos,
      merge_heads=merge_heads,
      pair_ids=pair_ids,
    )

  def extend_step(
    self,
    input_embs: jax.Array,
    step: jax.Array | int,
    merge_heads: bool = True,
    attention_score: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the outputs of a position, [B, D] or [B, N, H].

    Args:
      input_embs: [B, L, D] or [B, L, N, H], with the positions before.
      step: [], the position.
      merge_heads: see `__call__`.
      attention_score: [B, N, L], of the position; required to pair by
        attention.

    Raises:
      UserError: the position may be paired with a later one.
    """
    if attention_score is not None:
      attention_score = attention_score[:, :, None]
    return self.extend_steps(
      input_embs, step, 1, None, merge_heads, attention_score
    )[:, 0]

  def extend_steps(
    self,
    input_embs: jax.Array,
    step: jax.Array | int,
    steps: int,
    segment_pos: jax.Array | None = None,
    merge_heads: bool = True,
    attention_scores: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the outputs of T positions, [B, T, D] or [B, T, N, H].

    Args:
      input_embs: [B, L, D] or [B, L, N, H], with the positions before.
      step: [], the first of the positions.
      steps: T.
      segment_pos: [B or 1, T], the positions within their examples, whose first
        one is paired with 0; None if a row is one example.
      merge_heads: see `__call__`.
      attention_scores: [B, N, T, L], of the positions; required to pair by
        attention.

    Raises:
      UserError: a position may be paired with a later one.
    """
    shape = input_embs.shape[:2]
    pair_ids = None
    if self.ngram_using_attention_scores:
      if not self.causal_attention:
        raise errors.UserError(
          'VQNgrammer.extend_step needs causal_attention to be True'
        )
      if attention_scores is None:
        raise errors.UserError(
          'VQNgrammer.ngram_using_attention_scores needs attention_score'
        )
      found = self._pairs(attention_scores, step)
      pair_ids = jax.lax.dynamic_update_slice_in_dim(
        jnp.zeros((*found.shape[:2], shape[1]), found.dtype), found, step, 2
      )
    if segment_pos is not None:
      new = jnp.broadcast_to(segment_pos, (shape[0], steps))
      segment_pos = jax.lax.dynamic_update_slice_in_dim(
        jnp.zeros(shape, new.dtype), new, step, 1
      )
    distances, _ = self.vq_layer(input_embs)
    outputs = self.ngram_layer(
      jnp.argmin(distances, -1),
      input_embs,
      segment_pos=segment_pos,
      merge_heads=merge_heads,
      pair_ids=pair_ids,
    )
    return jax.lax.dynamic_slice_in_dim(outputs, step, steps, axis=1)

  def _cached(self, input_ids) -> jax.Array:
    if not self.do_eval or not self.unigram_vocab_size or input_ids is None:
      raise errors.UserError(
        'VQNgrammer.use_cached_input_ids_to_cluster_ids needs an evaluation, a'
        ' unigram_vocab_size and input_ids'
      )
    return self.get_var('input_id_to_cluster_id_cache')[input_ids]

  def _store(self, input_ids, ids):
    if self.do_eval or not self.unigram_vocab_size or input_ids is None:
      return
    if self.enable_cache_updates:
      cache = self.get_var('input_id_to_cluster_id_cache')
      cache = cache.at[input_ids.reshape(-1)].set(
        ids.reshape(-1, self.num_heads).astype(cache.dtype)
      )
      self.update_var('input_id_to_cluster_id_cache', cache)

  def _pairs(
    self, scores: jax.Array | None, step: jax.Array | int = 0
  ) -> jax.Array:
    """Returns the position [B, N, T] that each one is paired with.

    Args:
      scores: [B, N, T, L].
      step: [], the first of the T positions.
    """
    if scores is None:
      raise errors.UserError(
        'VQNgrammer.ngram_using_attention_scores needs attention_scores'
      )
    if not self.causal_attention:
      return jnp.argmax(scores, -1)
    length = scores.shape[3]
    positions = step + jnp.arange(scores.shape[2])
    is_before = positions[:, None] > jnp.arange(length)
    best = jnp.argmax(jnp.where(is_before, scores, -jnp.inf), -1)
    return jnp.where(positions == 0, length, best)


class NgrammerStub(PerHead):
  """The normalization of an N-grammer, without embeddings of pairs."""

  def setup(self):
    self._create_norms('emb_layer_norm', self.dim_per_head)

  def __call__(
    self,
    input_ids: jax.Array | None,
    input_embs: jax.Array,
    paddings: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    merge_heads: bool = True,
    attention_scores: jax.Array | None = None,
    emb_var: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the vectors normalized; see `Ngrammer`."""
    del input_ids, segment_pos, attention_scores, emb_var
    return self._finished(self._normalized(input_embs), paddings, merge_heads)
