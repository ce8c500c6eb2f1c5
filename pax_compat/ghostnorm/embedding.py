"""`Embedding` with Pax's protocol of ghost norms.

Shapes: D model dims, V vocabulary.
"""

import flax.linen as nn
import jax

from pax_compat import errors
from pax_compat.base_layer import WeightHParams
from pax_compat.ghostnorm import base
from pax_compat.layers.embeddings import embedding_tables


class EmbeddingGhostNorm(embedding_tables.Embedding):
  """An `Embedding` with the protocol of `ghostnorm.base`.

  Attributes:
    use_softmax_shared_embedding_shape_weights: whether the weight is [D, V], as
      that of a `SharedEmbeddingSoftmax`.
  """

  use_softmax_shared_embedding_shape_weights: bool = False

  def setup(self):
    if not self.use_softmax_shared_embedding_shape_weights:
      super().setup()
      return
    if self.sparse_gradients:
      raise errors.UserError(
        'EmbeddingGhostNorm: sparse_gradients do not go together with'
        ' use_softmax_shared_embedding_shape_weights'
      )
    self.create_variable(
      'emb_var',
      WeightHParams(
        [self.input_dims, self.num_classes],
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def _table(self) -> jax.Array:
    if self.use_softmax_shared_embedding_shape_weights:
      return self.theta.emb_var.T
    return super()._table()

  @nn.nowrap
  def __call__(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    return base.call(self, super().__call__, '__call__', ids)

  @nn.nowrap
  def emb_lookup(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    return base.call(self, super().emb_lookup, 'emb_lookup', ids)
