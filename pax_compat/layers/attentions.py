"""Multi-headed dot-product attention.

Shapes: B batch, T target time, S source time, D model dims, N heads, H dims of
a head. Masks are boolean, True where a target may see a source, and broadcast
to [B, N, T, S].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import stochastics


def padding_mask(paddings: jax.Array) -> jax.Array:
  """Returns the mask [B, 1, 1, S] that hides padded sources.

  Args:
    paddings: [B, S], 1 where a position is padding.
  """
  return (paddings == 0)[:, None, None, :]


def causal_mask(target_length: int, source_length: int) -> jax.Array:
  """Returns the mask [1, 1, T, S] that hides sources after the target."""
  return jnp.tril(jnp.ones([target_length, source_length], bool))[None, None]


class PerDimScale(base_layer.BaseLayer):
  """Scales each dim of a query by a learned factor, 1/sqrt(H) at first.

  Attributes:
    dim: H.
  """

  dim: int = REQUIRED

  def setup(self):
    self.create_variable(
      'per_dim_scale', WeightHParams([self.dim], WeightInit.Constant(0.0))
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [..., H] scaled."""
    # softplus(0) = log(2), so the factor is 1/sqrt(H) where the weight is 0.
    scale = jax.nn.softplus(self.theta.per_dim_scale) / jnp.log(2.0)
    return inputs * (scale * self.dim**-0.5).astype(inputs.dtype)


class AttentionProjection(base_layer.BaseLayer):
  """A projection into heads, or out of them.

  Attributes:
    input_dim: D.
    num_heads: N.
    dim_per_head: H.
    is_output_projection: whether it maps [..., N, H] to [..., D] rather than
      [..., D] to [..., N, H]. The weight is [D, N, H] either way.
    use_bias: whether there is a bias.
    bias_init: how the bias starts.
  """

  input_dim: int = REQUIRED
  num_heads: int = REQUIRED
  dim_per_head: int = REQUIRED
  is_output_projection: bool = False
  use_bias: bool = True
  bias_init: WeightInit = WeightInit.Constant(0.0)

  def setup(self):
    heads = [self.num_heads, self.dim_per_head]
    self.create_variable(
      'w',
      WeightHParams(
        [self.input_dim, *heads],
        tensor_split_dims_mapping=self.weight_split_dims_mapping,
      ),
    )
    if self.use_bias:
      shape = [self.input_dim] if self.is_output_projection else heads
      self.create_variable('b', WeightHParams(shape, self.bias_init))

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps [..., D] to [..., N, H], or back."""
    equation = (
      '...nh,dnh->...d' if self.is_output_projection else ('...d,dnh->...nh')
    )
    projected = jnp.einsum(equation, inputs, self.theta.w)
    return projected + self.theta.b if self.use_bias else projected


class DotProductAttention(base_layer.BaseLayer):
  """Attention with several heads, https://arxiv.org/abs/1706.03762.

  Attributes:
    input_dim: D.
    hidden_dim: N * H.
    num_heads: N.
    use_bias: whether the projections have biases.
    internal_enable_per_dim_scale: whether each dim of the queries is scaled by
      a learned factor; else all by 1/sqrt(H).
    atten_dropout_prob: probability of dropping an attention weight.
    atten_logit_cap: if positive, logits are capped softly to (-cap, cap).
    proj_tpl: the projections of queries, keys and values.
    post_proj_tpl: the projection of the result.
    dropout_tpl: dropout of the attention weights.
  """

  input_dim: int = REQUIRED
  hidden_dim: int = REQUIRED
  num_heads: int = REQUIRED
  use_bias: bool = True
  internal_enable_per_dim_scale: bool = True
  atten_dropout_prob: float = 0.0
  atten_logit_cap: float = 0.0
  proj_tpl: Config = sub_config_field(AttentionProjection)
  post_proj_tpl: Config = sub_config_field(AttentionProjection)
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)

  def setup(self):
    dim_per_head, rest = divmod(self.hidden_dim, self.num_heads)
    if rest:
      raise errors.UserError(
        f'DotProductAttention.hidden_dim is {self.hidden_dim}; expected a'
        f' multiple of num_heads, {self.num_heads}'
      )
    shape = dict(
      input_dim=self.input_dim,
      num_heads=self.num_heads,
      dim_per_head=dim_per_head,
      use_bias=self.use_bias,
    )
    for name in ('query', 'key', 'value'):
      self.create_child(name, self.proj_tpl.clone().set(**shape))
    self.create_child(
      'post',
      self.post_proj_tpl.clone().set(is_output_projection=True, **shape),
    )
    if self.internal_enable_per_dim_scale:
      self.create_child('per_dim_scale', PerDimScale.config(dim=dim_per_head))
    self.create_child(
      'atten_dropout',
      self.dropout_tpl.clone().set(keep_prob=1.0 - self.atten_dropout_prob),
    )

  def __call__(
    self,
    query_vec: jax.Array,
    key_vec: jax.Array,
    value_vec: jax.Array,
    *,
    mask: jax.Array | None = None,
    causal: bool = False,
  ) -> jax.Array:
    """Attends.

    Args:
      query_vec: [B, T, D].
      key_vec: [B, S, D].
      value_vec: [B, S, D].
      mask: broadcasts to [B, N, T, S]; None hides nothing.
      causal: whether sources after the target are hidden too.

    Returns:
      [B, T, D].
    """
    query = self.query(query_vec)
    if self.internal_enable_per_dim_scale:
      query = self.per_dim_scale(query)
    else:
      query = query * query.shape[-1] ** -0.5
    heads = (query, self.key(key_vec), self.value(value_vec))
    if self.atten_logit_cap > 0 or (
      self.atten_dropout_prob > 0 and not self.do_eval
    ):
      encoded = self._attend_by_parts(*heads, mask=mask, causal=causal)
    else:
      encoded = jax.nn.dot_product_attention(
        *heads, mask=mask, is_causal=causal, scale=1.0
      )
    return self.post(encoded)

  def _attend_by_parts(self, query, key, value, *, mask, causal):
    """Attention with what `jax.nn.dot_product_attention` has not."""
    logits = jnp.einsum('btnh,bsnh->bnts', query, key).astype(jnp.float32)
    if self.atten_logit_cap > 0:
      cap = self.atten_logit_cap
      logits = cap * jnp.tanh(logits / cap)
    if causal:
      causal_only = causal_mask(*logits.shape[-2:])
      mask = causal_only if mask is None else mask & causal_only
    if mask is not None:
      # The value that Lingvo and jax.nn use: a row that sees nothing comes out
      # as the mean of all values, not as NaN.
      logits = jnp.where(mask, logits, -0.7 * jnp.finfo(logits.dtype).max)
    probs = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
    return jnp.einsum('bnts,bsnh->btnh', self.atten_dropout(probs), value)
