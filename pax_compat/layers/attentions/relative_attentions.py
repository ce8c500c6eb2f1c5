"""Attention with relative positions: logits depend on target-source distance.

Shapes: B batch, T target time, S source time, N heads, H dims of a head, R
dims of the position embeddings.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.attentions.attention_masks import Mask, takes_structure
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.attentions.relative_bias import by_source
from pax_compat.layers.embeddings.positional_embeddings import (
  PositionalEmbedding,
)
from pax_compat.layers.template_fields import split


class SelfAttention(DotProductAttention):
  """Base class of attention layers without cross attention."""

  @takes_structure
  def __call__(
    self,
    query_vec: jax.Array,
    key_vec: jax.Array,
    value_vec: jax.Array,
    atten_mask: Mask = None,
    query_segment_pos: jax.Array | None = None,
    key_segment_pos: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Attends; see `DotProductAttention`.

    Raises:
      UserError: the numbers of sources and targets differ.
    """
    if query_vec.shape[1] != key_vec.shape[1]:
      self._check_cross()
    return super().__call__(
      query_vec,
      key_vec,
      value_vec,
      atten_mask,
      query_segment_pos,
      key_segment_pos,
    )

  def _check_cross(self):
    raise errors.UserError(
      f'{type(self).__name__} is for self attention; it does not support cross'
      ' attention'
    )


class DotProductAttentionXL(SelfAttention):
  """Transformer-XL's attention, https://arxiv.org/abs/1901.02860, section 3.3.

  The logit of a target and a source is (q + u) k + (q + v) r: q is the scaled
  query, k the key, r the projected sinusoidal embedding of their distance, and
  u and v are weights [N, H], initialised to 0.

  Attributes:
    rel_pos_emb_dim: R.
    skip_term_b: whether to omit q r.
    use_relative_bias: whether there are u and v; None takes `use_bias`.
    pos_emb_tpl: the embedding of distances.
  """

  rel_pos_emb_dim: int = 0
  skip_term_b: bool = False
  use_relative_bias: bool | None = None
  pos_emb_tpl: Config = sub_config_field(PositionalEmbedding)

  def setup(self):
    super().setup()
    where = type(self).__name__
    errors.check_least(self, 1, 'rel_pos_emb_dim')
    if self.skip_term_b and not self._has_biases():
      raise errors.UserError(
        f'{where}.skip_term_b leaves only the relative bias of the distances,'
        ' but use_relative_bias is off'
      )
    self._create(
      'pos_emb',
      'pos_emb_tpl',
      self.pos_emb_tpl,
      embedding_dims=self.rel_pos_emb_dim,
    )
    create_position_projection(self, 'pos_proj', self.rel_pos_emb_dim)
    if self._has_biases():
      shape = [self.num_heads, self._head_dims()]
      for name in ('u', 'v'):
        self.create_variable(
          name, WeightHParams(shape, WeightInit.Constant(0.0))
        )

  def _has_biases(self) -> bool:
    own = self.use_relative_bias
    return self.use_bias if own is None else own

  def _encode(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> jax.Array:
    query = content = by_position = inputs.query
    if self._has_biases():
      content = query + self.theta.u
      by_position = query + self.theta.v
    if self.skip_term_b:
      by_position = self.theta.v[None, None]
      by_position = jnp.broadcast_to(by_position, (1, *query.shape[1:]))
    first = 0 if time_step is None else time_step
    logits = self._position_logits(by_position, inputs.key.shape[1], first)
    inputs = _with_bias(inputs._replace(query=content), logits)
    return super()._encode(inputs, time_step)

  def _position_logits(
    self, query: jax.Array, sources: int, first: jax.Array | int
  ) -> jax.Array:
    """Returns the logits of the distances, [B, N, T, S].

    Args:
      query: [B, T, N, H].
      sources: S.
      first: [], index of the first target among the sources.
    """
    distances = _distances(first, query.shape[1], sources)
    embedded = self.pos_proj(self.pos_emb(position=distances[None]))[0]
    return _distance_logits(query, embedded, sources)


class ClippedDistanceEmbedding(base_layer.BaseLayer):
  """A vector for each distance, initialised to 0.

  Attributes:
    radius: distances are clipped to -radius, ..., radius.
    embedding_dims: R.
  """

  radius: int = REQUIRED
  embedding_dims: int = REQUIRED

  def setup(self):
    errors.check_least(self, 1, 'radius')
    shape = [2 * self.radius + 1, self.embedding_dims]
    self.create_variable('w', WeightHParams(shape, WeightInit.Constant(0.0)))

  def __call__(self, distance: jax.Array) -> jax.Array:
    """Returns the vectors [..., R] of distances [...]."""
    return self.theta.w[self.index(distance)]

  def index(self, distance: jax.Array) -> jax.Array:
    """Returns the row of each distance."""
    return jnp.clip(distance, -self.radius, self.radius) + self.radius


class DotProductAttentionRPE(SelfAttention):
  """Attention with learned distances, https://arxiv.org/abs/1803.02155.

  The vector of the distance target - source is added to a key, that of
  source - target to a value. Time and memory are those of all attention
  weights, and of their product with a matrix of the same size.

  Attributes:
    rel_pos_radius: distances are clipped to -radius, ..., radius.
    rel_pos_emb_dim: R; None takes N * H. Vectors of other dims are projected.
    skip_value_emb: whether to leave values unchanged.
  """

  rel_pos_radius: int = REQUIRED
  rel_pos_emb_dim: int | None = None
  skip_value_emb: bool = False

  def _check_fields(self):
    super()._check_fields()
    if self.return_atten_probs:
      raise errors.UserError(
        'DotProductAttentionRPE.return_atten_probs is not supported; expected'
        ' False'
      )

  def _returns_probs(self) -> bool:
    return False

  def setup(self):
    super().setup()
    heads = self.num_heads * self._head_dims()
    dims = self.rel_pos_emb_dim or heads
    for name in ('key', 'value'):
      if name == 'value' and self.skip_value_emb:
        continue
      self.create_child(
        f'{name}_emb',
        ClippedDistanceEmbedding.config(
          radius=self.rel_pos_radius, embedding_dims=dims
        ),
      )
      if dims != heads:
        create_position_projection(self, f'{name}_pos_proj', dims)

  def _vectors(self, name: str, distance: jax.Array) -> jax.Array:
    """Returns the vectors [L, N, H] of distances [L], for keys or values."""
    vectors = getattr(self, f'{name}_emb')(distance)
    if hasattr(self, f'{name}_pos_proj'):
      return getattr(self, f'{name}_pos_proj')(vectors)
    return vectors.reshape(len(distance), self.num_heads, -1)

  def _encode(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> jax.Array:
    query, value = inputs.query, inputs.value
    targets, sources = query.shape[1], inputs.key.shape[1]
    first = 0 if time_step is None else time_step
    vectors = self._vectors('key', _distances(first, targets, sources))
    inputs = _with_bias(inputs, _distance_logits(query, vectors, sources))
    if self.skip_value_emb:
      return super()._encode(inputs, time_step)
    # With unit vectors as values, the contexts are the weights [B, T, N, S].
    units = jnp.eye(sources, dtype=value.dtype)[None, :, None]
    units = jnp.broadcast_to(units, (*value.shape[:3], sources))
    weights = super()._encode(inputs._replace(value=units), time_step)
    radius = self.rel_pos_radius
    vectors = self._vectors('value', jnp.arange(-radius, radius + 1))
    after = jnp.arange(sources) - (first + jnp.arange(targets))[:, None]
    rows = jax.nn.one_hot(
      self.value_emb.index(after), len(vectors), dtype=weights.dtype
    )
    by_distance = jnp.einsum('btns,tsr->btnr', weights, rows)
    return jnp.einsum('btns,bsnh->btnh', weights, value) + jnp.einsum(
      'btnr,rnh->btnh', by_distance, vectors.astype(weights.dtype)
    )


def _distances(first: jax.Array | int, targets: int, sources: int) -> jax.Array:
  """Returns all distances [T + S - 1] of targets to sources, largest first."""
  return first + targets - 1 - jnp.arange(targets + sources - 1)


def _distance_logits(
  query: jax.Array, vectors: jax.Array, sources: int
) -> jax.Array:
  """Returns products of queries and vectors of distances, [B, N, T, S].

  Args:
    query: [B, T, N, H].
    vectors: [T + S - 1, N, H], of `_distances`.
    sources: S.
  """
  logits = jnp.einsum(
    'btnh,lnh->bntl',
    query,
    vectors.astype(query.dtype),
    preferred_element_type=jnp.float32,
  )
  logits = jnp.pad(logits, [(0, 0), (0, 0), (0, 0), (0, 1)])
  return by_source(logits, sources)


def _with_bias(inputs: AttentionInputs, bias: jax.Array) -> AttentionInputs:
  """Returns inputs with a further bias."""
  if inputs.bias is not None:
    bias = bias + inputs.bias
  return inputs._replace(bias=bias)


def create_position_projection(
  layer: DotProductAttention, name: str, dims: int
):
  """Creates the projection of distance embeddings into heads, without bias."""
  tpl = layer.proj_tpl.clone().set(
    input_dim=dims,
    use_bias=False,
    num_heads=layer.num_heads,
    dim_per_head=layer._head_dims(),
  )
  mapping = layer._query_weight_mapping()
  tpl.set(**split(tpl, 'weight_split_dims_mapping', wt=mapping))
  layer.create_child(name, tpl)
