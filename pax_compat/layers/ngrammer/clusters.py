"""Online clustering of vectors, and their compression.

Shapes: B batch, L time, N heads, H dims of a head, K clusters, C components.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED
from pax_compat.layers.ngrammer import bregman


class VectorQuantization(base_layer.BaseLayer):
  """k-means clustering of each head's vectors.

  The means move in training, without the learner.

  Attributes:
    num_clusters: K.
    num_heads: N.
    decay: decay of the means.
    epsilon: added to the number of a cluster's vectors.
    dim_per_head: H.
    prenormalize: whether vectors get length 1 first.
  """

  num_clusters: int = REQUIRED
  num_heads: int = REQUIRED
  decay: float = 0.999
  epsilon: float = 1e-6
  dim_per_head: int = REQUIRED
  prenormalize: bool = False

  def setup(self):
    shape = [self.num_heads, self.num_clusters, self.dim_per_head]
    self.create_variable('means', WeightHParams(shape), trainable=False)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    summarize_and_update: bool = True,
  ) -> tuple[jax.Array, jax.Array]:
    """Computes distances from the means.

    Args:
      inputs: [B, L, N, H] or [B, L, N * H].
      paddings: [B, L], 1 where a position is padding, which does not move the
        means; None if there is none.
      summarize_and_update: whether the means move in training, and summaries
        are written.

    Returns:
      Squared distances [B, L, N, K], and the nearest means [B, L, N, H], 0 for
      padding.
    """
    means = self.get_var('means')
    x = inputs.astype(self.compute_dtype)
    x = x.reshape(*x.shape[:2], self.num_heads, self.dim_per_head)
    if self.prenormalize:
      norms = jnp.linalg.norm(x, axis=-1, keepdims=True)
      x /= jnp.where(norms > 0, norms, 1.0)
    distances = -2 * jnp.einsum('blnh,nkh->blnk', x, means)
    distances += jnp.sum(jnp.square(x), -1, keepdims=True)
    distances += jnp.sum(jnp.square(means), -1)
    nearest = jnp.argmin(distances, axis=-1)
    one_hot = jax.nn.one_hot(nearest, self.num_clusters, dtype=means.dtype)
    if paddings is not None:
      one_hot *= (1 - paddings)[:, :, None, None]
    centroids = jnp.einsum('blnk,nkh->blnh', one_hot, means)
    if summarize_and_update:
      self._summarize(means, one_hot)
      if not self.do_eval:
        counts = jnp.sum(one_hot, axis=(0, 1))[..., None]
        sums = jnp.einsum('blnk,blnh->nkh', one_hot, x)
        moved = (1 - self.decay) * sums / (self.epsilon + counts)
        moved = jax.lax.stop_gradient(moved + self.decay * means)
        self.update_var('means', moved.astype(means.dtype))
    return distances, centroids

  def _summarize(self, means, one_hot):
    norms = jnp.linalg.norm(means, axis=-1)
    for name, value in {
      'avg': jnp.mean(norms),
      'min': jnp.min(norms),
      'max': jnp.max(norms),
    }.items():
      self.add_summary(f'k_means/centroid/l2_norm_{name}', value)
    counts = jnp.sum(one_hot, axis=(0, 1))
    for i in range(self.num_heads):
      unused = jnp.mean(counts[i] == 0)
      name = f'k_means/centroid/inactive_clusters_proportion/head{i}'
      self.add_summary(name, unused)


class BregmanCompression(bregman.PcaSettings):
  """Compresses each head's vectors by a `BregmanPCA`.

  Attributes:
    num_heads: N.
    dim_per_head: H.
  """

  num_heads: int = REQUIRED
  dim_per_head: int = REQUIRED

  def setup(self):
    pca = bregman.BregmanPCA.config(
      input_dims=self.dim_per_head, **self._pca_settings()
    )
    self.create_children(
      'bregman_layers', [pca.clone() for _ in range(self.num_heads)]
    )

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> jax.Array:
    """Returns the coefficients [B, L, N, C].

    Args:
      inputs: [B, L, N, H] or [B, L, N * H].
      paddings: [B, L]; as in Pax, a factor of the coefficients from which the
        components learn; None for none.
    """
    batch, length = inputs.shape[:2]
    x = inputs.astype(self.compute_dtype)
    x = x.reshape(batch * length, self.num_heads, self.dim_per_head)
    mask = None if paddings is None else paddings.reshape(-1, 1)
    heads = [
      layer(x[:, i], mask)[1] for i, layer in enumerate(self.bregman_layers)
    ]
    return jnp.stack(heads, 1).reshape(batch, length, self.num_heads, -1)
