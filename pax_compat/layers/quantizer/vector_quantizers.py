"""Quantizers of sequences by codebooks.

Shapes: B batch, T time, D dims, G groups, H = D / G, V classes of a group.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import (
  SKIP_LP_REGULARIZATION,
  WeightHParams,
  WeightInit,
)
from pax_compat.config import REQUIRED
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import stacking_over_time
from pax_compat.layers.quantizer import quantizer_objectives as objectives
from pax_compat.nested_map import NestedMap


def quantize_vector(
  latent: jax.Array, codebook: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the nearest vectors of a codebook.

  Args:
    latent: [..., G, H].
    codebook: [V, G, H].

  Returns:
    The vectors [..., G, H], their codes [..., G], and the codes as one-hot
    vectors [..., G, V].
  """
  distance = (
    jnp.sum(latent**2, -1, keepdims=True)
    - 2 * jnp.einsum('...gh,vgh->...gv', latent, codebook)
    + jnp.sum(codebook**2, -1).T
  )
  codes = jnp.argmin(distance, axis=-1)
  one_hot = jax.nn.one_hot(codes, codebook.shape[0], dtype=jnp.float32)
  return jnp.einsum('...gv,vgh->...gh', one_hot, codebook), codes, one_hot


def _normalized(x: jax.Array) -> jax.Array:
  """Returns vectors of length 1."""
  return x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-12)


def _look_up(codebook: jax.Array, codes: jax.Array) -> jax.Array:
  """Returns the vectors [B, T, D] of codes [B, T, G]."""
  one_hot = jax.nn.one_hot(codes, codebook.shape[0])
  vectors = jnp.einsum('btgv,vgh->btgh', one_hot, codebook)
  return vectors.reshape(*codes.shape[:2], -1)


def _in_groups(layer, x: jax.Array) -> jax.Array:
  """Returns vectors [B, T, D] as [B, T, G, H], normalized if it is set."""
  apart = layer.normalize_latent_per_group
  if layer.normalize_latent_vector and not apart:
    x = _normalized(x)
  x = x.reshape(*x.shape[:2], layer.num_groups, -1)
  return _normalized(x) if layer.normalize_latent_vector and apart else x


def _statistics(codes, num_classes: int, paddings) -> NestedMap:
  perplexity, entropy, _ = objectives.batch_pplx_entropy_from_codes(
    codes, num_classes, paddings=paddings
  )
  coverage = objectives.batch_codebook_coverage(
    codes, num_classes, paddings=paddings
  )
  return NestedMap(codebook_coverage=coverage, pplx=perplexity, entropy=entropy)


def _check_groups(name: str, dims: int, groups: int):
  if groups < 1 or dims % groups:
    raise errors.UserError(
      f'{name} is {dims} and num_groups {groups}; expected a multiple'
    )


class RandomVectorQuantizer(base_layer.BaseLayer):
  """A random projection and a random codebook, https://arxiv.org/abs/2202.01855.

  Outputs have no gradients, so that the weights keep their values.

  Attributes:
    latent_dim: dims of the inputs.
    projection_dim: D.
    num_latent_classes: V.
    num_groups: G.
    stack_ratio: number of steps that are stacked into one.
    codebook_init: initializer of the codebook.
    low_rank_codebook: whether the codebook of a single group is [V, D] instead
      of [V, 1, D].
    plot_codebook: whether the codebook is an image summary.
    normalize_latent_vector: whether projected vectors have length 1.
    normalize_codebook: whether vectors of the codebook have length 1.
    normalize_latent_per_group: whether that length is one of a group.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights.

    Attributes:
      vgh: of the codebook [V, G, H].
    """

    vgh: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations.

    Attributes:
      blgh: of the projected vectors [B, T, G, H].
    """

    blgh: SplitDimsMapping = None

  latent_dim: int = REQUIRED
  projection_dim: int = 16
  num_latent_classes: int = REQUIRED
  num_groups: int = 1
  stack_ratio: int = 1
  codebook_init: WeightInit = WeightInit.Gaussian()
  low_rank_codebook: bool = False
  plot_codebook: bool = False
  normalize_latent_vector: bool = False
  normalize_codebook: bool = False
  normalize_latent_per_group: bool = True

  def setup(self):
    _check_groups(
      'RandomVectorQuantizer.projection_dim',
      self.projection_dim,
      self.num_groups,
    )
    if self.stack_ratio != 1:
      self.create_child(
        'stack',
        stacking_over_time.StackingOverTime.config(
          right_context=self.stack_ratio - 1,
          stride=self.stack_ratio,
          padding_reduce_option='reduce_max',
        ),
      )
    dims, groups = self.projection_dim, self.num_groups
    inputs = self.latent_dim * self.stack_ratio
    self._create('random_proj', [inputs, dims], None)
    self._create('random_bias', [dims], WeightInit.Constant(0.0))
    shape = [self.num_latent_classes, groups, dims // groups]
    split = self.weight_split_dims_mapping.vgh
    if self._is_flat:
      del shape[1]
      split = split and [split[0], split[2]]
    self._create('random_codebook', shape, self.codebook_init, split)

  @property
  def _is_flat(self) -> bool:
    return self.low_rank_codebook and self.num_groups == 1

  def _create(self, name: str, shape, init, split=None):
    weight = WeightHParams(
      shape,
      init,
      dtype=jnp.float32,
      tensor_split_dims_mapping=split,
      collections=[SKIP_LP_REGULARIZATION],
    )
    self.create_variable(name, weight)

  def _codebook(self) -> jax.Array:
    codebook = self.theta.random_codebook
    codebook = codebook[:, None] if self._is_flat else codebook
    return _normalized(codebook) if self.normalize_codebook else codebook

  def __call__(self, z: jax.Array, paddings: jax.Array) -> NestedMap:
    """Quantizes a sequence.

    Args:
      z: [B, T, latent_dim].
      paddings: [B, T], 1 where a position is padding.

    Returns:
      `z_q` [B, U, D], `z_codes` [B, U, G], `z_onehot` [B, U, G, V] and
      `paddings` [B, U] of the U = T / stack_ratio stacked steps; and the
      scalars `codebook_coverage`, `codebook_num_covered_codes`, `pplx` and
      `entropy`.
    """
    if self.stack_ratio > 1:
      z, paddings = self.stack(z, paddings[..., None])
      paddings = paddings[..., 0]
    projected = jnp.einsum('btd,dh->bth', z, self.theta.random_proj)
    projected = _in_groups(self, projected + self.theta.random_bias)
    projected = self.shard(projected, self.activation_split_dims_mapping.blgh)
    codebook = self._codebook()
    if self.plot_codebook:
      image = jnp.tile(codebook.swapaxes(0, 1)[..., None], [1, 1, 1, 3])
      self.add_summary('codebook', image, base_layer.SummaryType.IMAGE)
    vectors, codes, one_hot = quantize_vector(projected, codebook)
    output = _statistics(codes, self.num_latent_classes, paddings)
    output.codebook_num_covered_codes = (
      output.codebook_coverage * self.num_latent_classes
    )
    output.z_q = vectors.reshape(*vectors.shape[:2], -1)
    output.z_codes, output.z_onehot = codes, one_hot
    output.paddings = paddings
    return jax.tree.map(jax.lax.stop_gradient, output)

  def look_up(self, z_codes: jax.Array) -> jax.Array:
    """Returns the vectors [B, T, D] of codes [B, T, G]."""
    return jax.lax.stop_gradient(_look_up(self._codebook(), z_codes))


class VectorQuantizer(base_layer.BaseLayer):
  """The quantizer of VQ-VAE, https://arxiv.org/abs/1711.00937.

  Attributes:
    num_latent_classes: V.
    latent_dim: D.
    beta: factor of the commitment loss.
    num_groups: G.
    normalize_latent_vector: whether the inputs' vectors have length 1.
    normalize_codebook: whether vectors of the codebook have length 1.
    normalize_latent_per_group: whether that length is one of a group.
  """

  num_latent_classes: int = REQUIRED
  latent_dim: int = REQUIRED
  beta: float = REQUIRED
  num_groups: int = 1
  normalize_latent_vector: bool = True
  normalize_codebook: bool = True
  normalize_latent_per_group: bool = True
  params_init: WeightInit = WeightInit.UniformSqrtDim()

  def setup(self):
    _check_groups(
      'VectorQuantizer.latent_dim', self.latent_dim, self.num_groups
    )
    dims = self.latent_dim // self.num_groups
    shape = [self.num_latent_classes, self.num_groups, dims]
    self.create_variable('w', WeightHParams(shape, dtype=jnp.float32))

  def _codebook(self) -> jax.Array:
    return (
      _normalized(self.theta.w) if self.normalize_codebook else self.theta.w
    )

  def __call__(self, z: jax.Array, paddings: jax.Array) -> NestedMap:
    """Quantizes a sequence. Gradients of `z_q` are those of `z`.

    Args:
      z: [B, T, D].
      paddings: [B, T], 1 where a position is padding, whose codes are 0.

    Returns:
      `z_q` [B, T, D], `z_codes` [B, T, G], `z_onehot` [B, T, G, V], and the
      scalars `loss`, `codebook_coverage`, `codebook_num_covered_words`, `pplx`
      and `entropy`.
    """
    mask = 1.0 - paddings
    z = z * mask[..., None].astype(z.dtype)
    if self.normalize_latent_vector and not self.normalize_latent_per_group:
      z = _normalized(z)
    vectors, codes, one_hot = quantize_vector(
      _in_groups(self, z), self._codebook()
    )
    vectors = vectors.reshape(z.shape) * mask[..., None]
    codes = codes * mask[..., None].astype(codes.dtype)
    steps = 1e-7 + jnp.sum(mask)

    def mean_square(x, y):
      return jnp.sum(jnp.mean((x - jax.lax.stop_gradient(y)) ** 2, -1)) / steps

    output = _statistics(codes, self.num_latent_classes, paddings)
    output.codebook_num_covered_words = (
      output.codebook_coverage * self.num_latent_classes**self.num_groups
    )
    output.loss = mean_square(vectors, z) + self.beta * mean_square(z, vectors)
    output.z_q = z + jax.lax.stop_gradient(vectors - z)
    output.z_codes = codes
    output.z_onehot = one_hot * mask[..., None, None]
    return output

  def look_up(self, z_codes: jax.Array) -> jax.Array:
    """Returns the vectors [B, T, D] of codes [B, T, G]."""
    return _look_up(self._codebook(), z_codes)
