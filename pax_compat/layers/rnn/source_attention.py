"""Attention of a recurrent layer to a source, a query at a time.

Shapes: B batch, S source time, D source dims, Q query dims, N heads, H dims of
a head, C dims of a context.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layers.rnn.rnn_cells import Product
from pax_compat.nested_map import NestedMap

# Hidden logits are this times the largest float. It is finite, so that a query
# without visible sources attends to all sources equally.
_HIDDEN = -0.7


class AdditiveSourceAttention(base_layer.BaseLayer):
  """Additive attention with several heads, https://arxiv.org/abs/1409.0473.

  Sources and queries are projected and split into heads, which share the
  weights of the additive attention: `source_var` [H, H], `query_var` [H, H] and
  `hidden_var` [H]. The weights of the projections are `source_proj` [D, N H],
  `query_proj` [Q, N H], `ctx_proj` [D, N H] and `ctx_post_proj` [N H, C], and
  their biases have `_b` after the name. Without projections D and Q are N H.

  Attributes:
    source_dim: D.
    query_dim: Q.
    hidden_dim: N H; or H if there are no projections, and one head.
    num_heads: N.
    project_source: whether sources are projected.
    project_query: whether queries are projected.
    project_context: whether the values are another projection of the sources.
    values_are_keys: whether the values are the projected sources; else they are
      the sources, or their projection.
    output_dim: C, of a projection of the contexts; 0 for no projection.
    use_bias: whether projections have biases.
    inner_init: initializer of the additive attention's weights.
    bias_init: initializer of biases.
    atten_dropout_prob: probability of dropping an attention weight.
  """

  source_dim: int = REQUIRED
  query_dim: int = REQUIRED
  hidden_dim: int = REQUIRED
  num_heads: int = 1
  project_source: bool = False
  project_query: bool = False
  project_context: bool = False
  values_are_keys: bool = False
  output_dim: int = 0
  use_bias: bool = True
  inner_init: WeightInit | None = None
  bias_init: WeightInit = WeightInit.Constant(0.0)
  atten_dropout_prob: float = 0.0

  @property
  def context_dim(self) -> int:
    """C."""
    if self.output_dim:
      return self.output_dim
    projected = self.values_are_keys or self.project_context
    return self.hidden_dim if projected else self.source_dim

  def setup(self):
    if self.hidden_dim % self.num_heads:
      raise errors.UserError(
        f'{type(self).__name__}.num_heads is {self.num_heads}, which does not'
        f' divide hidden_dim, {self.hidden_dim}'
      )
    hidden = self.hidden_dim
    for name, exists, shape in (
      ('source_proj', self.project_source, [self.source_dim, hidden]),
      ('query_proj', self.project_query, [self.query_dim, hidden]),
      ('ctx_proj', self.project_context, [self.source_dim, hidden]),
      ('ctx_post_proj', self.output_dim, [hidden, self.output_dim]),
    ):
      if exists:
        self.create_variable(name, WeightHParams(shape))
        if self.use_bias:
          bias = WeightHParams(shape[-1:], self.bias_init)
          self.create_variable(f'{name}_b', bias)
    size = hidden // self.num_heads
    rows = {
      'source_var': [self._head_size('source'), size],
      'query_var': [self._head_size('query'), size],
      'hidden_var': [size],
    }
    for name, shape in rows.items():
      self.create_variable(name, WeightHParams(shape, self.inner_init))

  def _head_size(self, side: str) -> int:
    """Returns the dims of a head of sources or queries."""
    if getattr(self, f'project_{side}'):
      return self.hidden_dim // self.num_heads
    return getattr(self, f'{side}_dim') // self.num_heads

  def pack(self, source: jax.Array) -> NestedMap:
    """Returns the arrays that each query needs.

    Args:
      source: [B, S, D].
    """
    keys = self._projected('source_proj', self.project_source, source)
    if self.values_are_keys:
      values = keys
    else:
      values = self._projected('ctx_proj', self.project_context, source)
    packed = NestedMap(
      keys=self._heads(keys) @ self.theta.source_var,
      values=self._heads(values),
      hidden_var=self.theta.hidden_var,
    )
    if self.use_bias:
      for name, exists in (
        ('query_proj', self.project_query),
        ('ctx_post_proj', self.output_dim),
      ):
        if exists:
          packed[f'{name}_b'] = self.get_var(f'{name}_b')
    return packed

  def _projected(self, name: str, exists: bool, x: jax.Array) -> jax.Array:
    if not exists:
      return x
    x = x @ self.get_var(name)
    return x + self.get_var(f'{name}_b') if self.use_bias else x

  def _heads(self, x: jax.Array) -> jax.Array:
    """Splits the last dimension: [..., N, H]."""
    return x.reshape([*x.shape[:-1], self.num_heads, -1])

  def weights(self) -> dict[str, jax.Array]:
    """Returns the matrices that `attend` multiplies by, by name."""
    names = ['query_var']
    if self.project_query:
      names.append('query_proj')
    if self.output_dim:
      names.append('ctx_post_proj')
    return {name: self.get_var(name) for name in names}

  def dropout_factors(self, shape: tuple[int, ...]) -> jax.Array | None:
    """Returns factors of attention weights; None if none is dropped.

    Args:
      shape: [..., B, S].
    """
    if not self.atten_dropout_prob or self.do_eval:
      return None
    keep = 1.0 - self.atten_dropout_prob
    kept = jax.random.bernoulli(
      self.next_prng_key(), keep, (*shape[:-1], self.num_heads, shape[-1])
    )
    return kept / keep

  def attend(
    self,
    product: Product,
    packed: NestedMap,
    query: jax.Array,
    visible: jax.Array,
    factors: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Attends to sources.

    Args:
      product: multiplies by one of `weights`, by its name.
      packed: from `pack`.
      query: [B, Q].
      visible: [B, S], bool, the sources that a query sees.
      factors: [B, N, S], from `dropout_factors`, or None.

    Returns:
      The contexts [B, C] of the queries, and the mean over the heads of the
      attention probabilities, [B, S].
    """
    if self.project_query:
      query = product('query_proj', query)
      query = query + packed.query_proj_b if self.use_bias else query
    query = product('query_var', self._heads(query))
    hidden = jnp.tanh(packed['keys'] + query[:, None])
    logits = jnp.einsum('bsnh,h->bns', hidden, packed.hidden_var)
    least = _HIDDEN * jnp.finfo(logits.dtype).max
    logits = jnp.where(visible[:, None], logits, least)
    probs = jax.nn.softmax(logits.astype(jnp.float32)).astype(logits.dtype)
    if factors is not None:
      probs = probs * factors
    context = jnp.einsum('bns,bsnh->bnh', probs, packed['values'])
    context = context.reshape([len(context), -1])
    if self.output_dim:
      context = product('ctx_post_proj', context)
      context = context + packed.ctx_post_proj_b if self.use_bias else context
    return context, jnp.mean(probs, axis=1)
