"""N-grammers without ids: of pairs of compressed vectors.

Shapes: B batch, L time, N heads, H dims of a head, D = N * H, C components, V
rows of a table.
"""

import jax
import jax.numpy as jnp

from pax_compat.base_layer import WeightHParams
from pax_compat.layers.ngrammer import bregman, clusters, ngrammers


class BregmanNgrammer(ngrammers.BaseNgrammer, bregman.PcaSettings):
  """Adds embeddings of pairs of positions, weighted by their components.

  The weights of the rows of a table are a bilinear form of the coefficients,
  by `BregmanCompression`, of a position and of the one before it. The first
  position is paired with itself.
  """

  def setup(self):
    super().setup()
    rows, heads = self.ngram_vocab_size, self.num_heads
    for name, shape in {
      'correlation': [self.num_components, self.num_components, rows, heads],
      'embedding_table': [rows, self.ngram_emb_dim, heads],
    }.items():
      weight = WeightHParams(
        shape,
        init=self.params_init,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      )
      self.create_variable(name, weight)
    self.create_child(
      'bregman_compression_layer',
      clusters.BregmanCompression.config(
        num_heads=heads,
        dim_per_head=self.dim_per_head,
        params_init=self.params_init,
        **self._pca_settings(),
      ),
    )

  def __call__(
    self,
    input_ids: jax.Array | None,
    input_embs: jax.Array,
    paddings: jax.Array | None = None,
    merge_heads: bool = True,
    **kwargs,
  ) -> jax.Array:
    """Adds embeddings of pairs to vectors, which are normalized first.

    Args:
      input_ids: not used.
      input_embs: [B, L, D] or [B, L, N, H].
      paddings: [B, L], 1 where a position is padding, which gets zeros.
      merge_heads: whether the outputs are [B, L, D]; else [B, L, N, H].
      **kwargs: not used.
    """
    del input_ids, kwargs
    found = self.bregman_compression_layer(input_embs, paddings)
    before = jnp.concatenate([found[:, :1], found[:, :-1]], axis=1)
    weights = jnp.einsum(
      'blnc,blnk,ckvn->blvn', before, found, self.theta.correlation
    )
    pairs = jnp.einsum('blvn,vhn->blnh', weights, self.theta.embedding_table)
    pairs = [
      norm(pairs[:, :, i]) for i, norm in enumerate(self.ngram_layer_norm)
    ]
    x = self._with_ngrams(self._normalized(input_embs), jnp.stack(pairs, 2))
    return self._finished(x, paddings, merge_heads)

  def extend_step(
    self,
    input_embs: jax.Array,
    step: jax.Array | int,
    merge_heads: bool = True,
    attention_score: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the outputs of a position, [B, D] or [B, N, H].

    Args:
      input_embs: [B, L, D] or [B, L, N, H], with the position before.
      step: [], the position.
      merge_heads: see `__call__`.
      attention_score: not used.
    """
    del attention_score
    outputs = self(None, input_embs, merge_heads=merge_heads)
    return jax.lax.dynamic_index_in_dim(outputs, step, axis=1, keepdims=False)
