"""Multi-headed dot-product attention.

Shapes: B batch, T target time, S source time, D model dims, N heads, H dims of
a head. Masks are boolean, True where a target may see a source, and broadcast
to [B, N, T, S].
"""

from collections.abc import Callable

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
    drops = self.atten_dropout_prob > 0 and not self.do_eval
    if self.atten_logit_cap > 0 or drops or jax.default_backend() == 'cpu':
      encoded = attend(
        *heads,
        mask=mask,
        causal=causal,
        logit_cap=self.atten_logit_cap,
        dropout=self.atten_dropout if drops else None,
      )
    else:
      encoded = jax.nn.dot_product_attention(
        *heads, mask=mask, is_causal=causal, scale=1.0
      )
    return self.post(encoded)


# Targets of a block, at least, and blocks, at most, of causal attention.
_BLOCK_SIZE = 64
_MAX_BLOCKS = 8


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  mask: jax.Array | None = None,
  causal: bool = False,
  logit_cap: float = 0.0,
  dropout: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
  """Attends in plain matrix products: for CPUs, and what fused kernels lack.

  Causal attention goes by blocks of targets, each of which is multiplied with
  the sources up to its end only. The sum of a softmax divides the small result
  instead of the large array of weights.

  A target that sees nothing at all gets the mean of the values (of its block's
  sources), not NaN.

  Args:
    query: [B, T, N, H], scaled.
    key: [B, S, N, H].
    value: [B, S, N, H].
    mask: broadcasts to [B, N, T, S]; None hides nothing.
    causal: whether sources after the target are hidden too.
    logit_cap: if positive, logits are capped softly to (-cap, cap).
    dropout: drops attention weights [B, N, T, S].

  Returns:
    [B, T, N, H].
  """
  targets, sources = query.shape[1], key.shape[1]
  size = max(_BLOCK_SIZE, -(-targets // _MAX_BLOCKS)) if causal else targets
  blocks = []
  for start in range(0, targets, size):
    stop = min(start + size, targets)
    seen = min(stop, sources) if causal else sources
    visible = None
    if mask is not None:
      rows = slice(start, stop) if mask.shape[2] > 1 else slice(None)
      visible = mask[:, :, rows, : seen if mask.shape[3] > 1 else None]
    if causal:
      past = jnp.arange(start, stop)[:, None] >= jnp.arange(seen)[None]
      visible = past[None, None] if visible is None else visible & past
    weights, total = _weights(
      query[:, start:stop], key[:, :seen], visible, logit_cap
    )
    if dropout is not None:
      weights = dropout(weights)
    encoded = jnp.einsum(
      'bnts,bsnh->btnh', weights.astype(value.dtype), value[:, :seen]
    )
    total = jnp.swapaxes(total, 1, 2)[..., None]
    blocks.append((encoded / total).astype(value.dtype))
  return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=1)


def _weights(query, key, mask, logit_cap) -> tuple[jax.Array, jax.Array]:
  """Returns a softmax's exponentials [B, N, T, S] and their sums [B, N, T]."""
  logits = jnp.einsum('btnh,bsnh->bnts', query, key).astype(jnp.float32)
  if logit_cap > 0:
    logits = logit_cap * jnp.tanh(logits / logit_cap)
  if mask is not None:
    # The value that Lingvo and jax.nn use, too: finite, so that a target which
    # sees nothing has a softmax.
    logits = jnp.where(mask, logits, -0.7 * jnp.finfo(logits.dtype).max)
  largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  exponentials = jnp.exp(logits - largest)
  return exponentials, jnp.sum(exponentials, axis=-1)
