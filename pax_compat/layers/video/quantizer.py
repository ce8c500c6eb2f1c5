"""Quantizers without a codebook: the values of each dim are fixed.

Shapes: D dims of an embedding, G groups of dims.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.layers.input_checks import check_last_dim
from pax_compat.layers.video import code_entropy
from pax_compat.nested_map import NestedMap

# Bits of an index.
_MAX_BITS = 32
# An index of `ScalarQuantizer` is signed.
_MAX_CODES = 2**31


def _straight_through(values: jax.Array, inputs: jax.Array) -> jax.Array:
  """Returns `values`, with the gradients of `inputs`."""
  return inputs + jax.lax.stop_gradient(values - inputs)


class ScalarQuantizer(base_layer.BaseLayer):
  """Rounds each dim to a number of values, https://arxiv.org/abs/2309.15505.

  Attributes:
    embedding_dim: no effect, as in Pax; D is the number of `dim_widths`.
    dim_widths: number of values of each dim.
    bound_method: what bounds the inputs, 'sine' or 'tanh'.
    eps: share of the range that is not reached, so that no value is rounded
      beyond it. Values beyond it, with 0, are clipped in evaluations only, as
      in Pax.
  """

  embedding_dim: int = 8
  dim_widths: Sequence[int] = (8, 8, 4, 4, 4, 4, 4, 4)
  bound_method: str = 'sine'
  eps: float = 1e-3

  def setup(self):
    errors.check_choice(self, 'bound_method', ('sine', 'tanh'))
    widths = self.dim_widths
    if min(widths, default=0) < 1 or math.prod(widths) > _MAX_CODES:
      raise errors.wrong_field(
        self, 'dim_widths', f'numbers of at least 1, of product <= {_MAX_CODES}'
      )

  @property
  def _widths(self) -> np.ndarray:
    return np.array(self.dim_widths, np.int32)

  @property
  def _middle(self) -> np.ndarray:
    """What is subtracted from the integers of each dim to center them."""
    return np.where(self._widths % 2, 0.0, -0.5).astype(np.float32)

  def __call__(self, inputs: jax.Array) -> tuple[jax.Array, NestedMap]:
    """Quantizes embeddings. Gradients are those of the bounded inputs.

    Args:
      inputs: [..., D].

    Returns:
      The values [..., D], float32, which are symmetric around 0, of distance
      1; and `raw`, the values before they are rounded, `quantized`, the values,
      `encoding_indices` [...] in 0..product(dim_widths)-1, and a
      `quantizer_loss` of 0.
    """
    if inputs.shape[-1:] != self._widths.shape:
      raise errors.UserError(
        f'ScalarQuantizer: inputs of shape {list(inputs.shape)}; expected a'
        f' last dimension of {len(self.dim_widths)}, as dim_widths has'
      )
    bound = jnp.sin if self.bound_method == 'sine' else jnp.tanh
    half = self._widths * np.float32((1.0 - self.eps) / 2.0)
    raw = bound(inputs) * half + self._middle
    lowest = -(self._widths // 2)
    values = _straight_through(jnp.round(raw), raw)
    clipped = jnp.clip(values, lowest, lowest + self._widths - 1)
    indices = jnp.zeros(inputs.shape[:-1], jnp.int32)
    for i, width in enumerate(self.dim_widths):
      own = jnp.round(clipped[..., i]).astype(jnp.int32) - lowest[i]
      indices = indices * width + own
    values = clipped if self.do_eval else values
    values = self.shard(
      values - self._middle, self.activation_split_dims_mapping.out
    )
    return values, NestedMap(
      raw=raw - self._middle,
      quantized=values,
      encoding_indices=indices,
      quantizer_loss=jnp.float32(0.0),
    )

  def decode_ids(self, ids: jax.Array) -> jax.Array:
    """Returns the values [..., D] of indices [...]."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
      ids = jnp.round(ids)
    ids = ids.astype(jnp.int32)
    found = []
    for width in reversed(self.dim_widths):
      found.append(ids % width)
      ids = ids // width
    values = jnp.stack(found[::-1], axis=-1) - self._widths // 2
    return values - self._middle


class LookupFreeQuantizer(base_layer.BaseLayer):
  """The signs of an embedding, https://arxiv.org/abs/2310.05737.

  Attributes:
    embedding_dim: D.
    num_token_groups: G. An index is that of the signs of a group, of D / G
      dims, rounded up, at most 32. The last groups may have fewer dims, or none
      and then no index.
    entropy_loss_ratio: factor of the entropy loss; 0 leaves it out.
    commitment_cost: factor of the squared distance to the signs.
    entropy_loss_groups: number of groups of dims for the entropy of all codes.
      With 1 it is exact and takes 2^D numbers for each vector; set about D / 8
      for more than 18 dims. Pax has a rule for that, too, which is evaluated
      for the default D only, so that its default is 1 for every D.
    entropy_loss_type: 'softmax', or with 1 group 'argmax'; see `code_entropy`.
    entropy_temperature: of the probabilities of codes.
    entropy_loss_balance: factor of the entropy of all codes.
  """

  embedding_dim: int = 8
  num_token_groups: int = 1
  entropy_loss_ratio: float = 0.1
  commitment_cost: float = 0.25
  entropy_loss_groups: int = 1
  entropy_loss_type: str = 'softmax'
  entropy_temperature: float = 0.01
  entropy_loss_balance: float = 1.0

  def setup(self):
    errors.check_least(
      self, 1, 'embedding_dim', 'num_token_groups', 'entropy_loss_groups'
    )
    errors.check_choice(self, 'entropy_loss_type', code_entropy.TYPES)
    if self._group_size > _MAX_BITS:
      raise errors.wrong_field(
        self,
        'num_token_groups',
        f'groups of at most {_MAX_BITS} of {self.embedding_dim} dims',
      )
    groups, dims = self.entropy_loss_groups, self.embedding_dim
    if groups > dims or dims % (dims // groups):
      raise errors.wrong_field(
        self, 'entropy_loss_groups', f'groups of equal size of {dims} dims'
      )
    if groups > 1 and self.entropy_loss_type != 'softmax':
      raise errors.wrong_field(
        self, 'entropy_loss_type', "'softmax' with entropy_loss_groups > 1"
      )

  @property
  def _group_size(self) -> int:
    return math.ceil(self.embedding_dim / self.num_token_groups)

  @property
  def _places(self) -> np.ndarray:
    """The bit [D] of its group's index that is each dim's."""
    return (np.arange(self.embedding_dim) % self._group_size).astype(np.uint32)

  @property
  def _is_single(self) -> bool:
    """Whether there is one group, so that indices have no dimension of them."""
    return self._group_size == self.embedding_dim

  def __call__(self, inputs: jax.Array) -> tuple[jax.Array, NestedMap]:
    """Quantizes embeddings.

    Args:
      inputs: [..., D].

    Returns:
      1 or -1 for each dim, [..., D], in training with the gradients of the
      inputs; and `encodings`, the same, `raw`, the inputs, and
      `encoding_indices`, uint32 [...] with one group, else [..., G]. The first
      dim of a group is its lowest bit. In training, there is `quantizer_loss`
      [], too, the sum of `e_latent_loss` and `entropy_loss`, all float32.
    """
    check_last_dim(self, 'embedding_dim', inputs)
    is_positive = inputs >= 0
    signs = jnp.where(is_positive, 1.0, -1.0).astype(inputs.dtype)
    output = NestedMap(raw=inputs, encoding_indices=self._indices(is_positive))
    if not self.do_eval:
      x = inputs.astype(jnp.float32)
      distance = jnp.mean((jax.lax.stop_gradient(signs) - x) ** 2)
      output.e_latent_loss = distance * self.commitment_cost
      output.entropy_loss = self._entropy_loss(x)
      output.quantizer_loss = output.e_latent_loss + output.entropy_loss
      signs = _straight_through(signs, inputs)
    signs = self.shard(signs, self.activation_split_dims_mapping.out)
    output.encodings = signs
    return signs, output

  def _indices(self, is_positive: jax.Array) -> jax.Array:
    bits = is_positive.astype(jnp.uint32) << self._places
    missing = -self.embedding_dim % self._group_size
    bits = jnp.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
    bits = bits.reshape(*bits.shape[:-1], -1, self._group_size)
    indices = jnp.sum(bits, axis=-1, dtype=jnp.uint32)
    return indices[..., 0] if self._is_single else indices

  def _entropy_loss(self, inputs: jax.Array) -> jax.Array:
    if self.entropy_loss_ratio == 0:
      return jnp.float32(0.0)
    dims = self.embedding_dim
    x = inputs.reshape(-1, dims)
    settings = self.entropy_temperature, self.entropy_loss_balance
    if self.entropy_loss_groups > 1:
      loss = code_entropy.factorized_entropy_loss(
        2 * jnp.stack([x, -x], axis=-1),
        dims // self.entropy_loss_groups,
        *settings,
      )
    else:
      bits = np.arange(2**dims)[:, None] >> np.arange(dims) & 1
      codes = jnp.asarray(2 * bits - 1, jnp.float32)
      loss = code_entropy.entropy_loss(
        2 * x @ codes.T, self.entropy_loss_type, *settings
      )
    return loss * self.entropy_loss_ratio

  def decode_ids(self, inputs: jax.Array) -> jax.Array:
    """Returns 1 or -1 for each dim, [..., D].

    Args:
      inputs: indices, [...] with one group, else [..., G].
    """
    ids = inputs[..., None] if self._is_single else inputs
    ids = jnp.repeat(ids.astype(jnp.uint32), self._group_size, axis=-1)
    ids = ids[..., : self.embedding_dim]
    return jnp.where(ids >> self._places & 1, 1.0, -1.0)
