"""Statistics of codes: perplexity, entropy and coverage of a codebook.

Shapes: G groups, V classes of a group.
"""

import jax
import jax.numpy as jnp


def batch_pplx_entropy_from_codes(
  codes: jax.Array,
  num_classes: int,
  *,
  paddings: jax.Array | None = None,
  data_parallel_axis: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns how evenly codes are used in a batch.

  Args:
    codes: [..., G], in 0..V-1.
    num_classes: V.
    paddings: [...], 1 where a position is padding; None if there is none.
    data_parallel_axis: axis of a mapped function to sum over; None for none.

  Returns:
    The perplexity [], a mean over groups; its logarithm []; and the counts
    [G, V] of the codes.
  """
  codes = codes.astype(jnp.int32)
  groups = codes.shape[-1]
  weights = jnp.ones(codes.shape[:-1], jnp.float32)
  if paddings is not None:
    weights -= paddings.astype(jnp.int32)
  one_hot = jax.nn.one_hot(codes.reshape(-1, groups), num_classes)
  counts = jnp.einsum('ngv,n->gv', one_hot, weights.reshape(-1))
  total = jnp.sum(weights)
  if data_parallel_axis is not None:
    counts, total = jax.lax.psum((counts, total), data_parallel_axis)
  shares = counts / jnp.maximum(total, 1.0)
  logs = jnp.log(jnp.maximum(shares, 1e-30))
  perplexity = jnp.mean(jnp.exp(-jnp.sum(shares * logs, -1)))
  return perplexity, jnp.log(perplexity), counts


def batch_codebook_coverage(
  codes: jax.Array,
  num_classes: int,
  *,
  paddings: jax.Array,
  data_parallel_axis: str | None = None,
) -> jax.Array:
  """Returns the share of codes that are used, [], a mean over groups.

  Args:
    codes: as in `batch_pplx_entropy_from_codes`, like the others.
    num_classes: V.
    paddings: [...].
    data_parallel_axis: axis to sum over.
  """
  _, _, counts = batch_pplx_entropy_from_codes(
    codes,
    num_classes,
    paddings=paddings,
    data_parallel_axis=data_parallel_axis,
  )
  return jnp.mean(jnp.sum(counts > 0, -1) / num_classes)
