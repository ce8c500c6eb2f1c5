"""Additive attention: logits computed by a small network.

Shapes: B batch, T target time, S source time, H hidden dims. Masks are boolean,
True where a target may see a source, and broadcast to [B, 1, T, S].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.template_fields import agreed, keep_prob

# Masked logits are this times the largest float. It is finite, so that a target
# without visible sources attends to all sources equally.
_HIDDEN = -0.7


class AdditiveAttention(base_layer.BaseLayer):
  """Attention with one head, https://arxiv.org/abs/1409.0473.

  A logit is the product of a weight with the tanh of a projected source plus a
  projected query. Values (one context vector for each source) are not
  projected. Weights: `source_var` [source_dim, H], `query_var` [query_dim, H],
  `hidden_var` [H].

  Attributes:
    source_dim: dims of a source.
    query_dim: dims of a query.
    hidden_dim: H.
    atten_dropout_prob: probability of dropping an attention weight.
    dropout_tpl: dropout of the attention weights.
  """

  source_dim: int = REQUIRED
  query_dim: int = REQUIRED
  hidden_dim: int = REQUIRED
  atten_dropout_prob: float = 0.0
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)

  def setup(self):
    for name, shape in (
      ('source_var', [self.source_dim, self.hidden_dim]),
      ('query_var', [self.query_dim, self.hidden_dim]),
      ('hidden_var', [self.hidden_dim]),
    ):
      self.create_variable(name, WeightHParams(shape))
    self.create_child(
      'atten_dropout',
      self.dropout_tpl,
      **agreed(
        'AdditiveAttention.dropout_tpl',
        self.dropout_tpl,
        keep_prob=keep_prob(self.atten_dropout_prob),
      ),
    )

  def __call__(
    self,
    query_vec: jax.Array,
    source_vec: jax.Array,
    context_vec: jax.Array,
    *,
    mask: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Attends.

    Args:
      query_vec: [B, T, query_dim].
      source_vec: [B, S, source_dim].
      context_vec: [B, S, D].
      mask: None hides nothing.

    Returns:
      The contexts of the queries, [B, T, D], and the attention weights,
      [B, T, S].

    Raises:
      UserError: the mask is not boolean, or has the wrong shape.
    """
    source = source_vec @ self.theta.source_var
    query = query_vec @ self.theta.query_var
    hidden = jnp.tanh(source[:, None] + query[:, :, None])
    logits = hidden @ self.theta.hidden_var
    if mask is not None:
      if mask.dtype != jnp.bool_ or mask.ndim != 4 or mask.shape[1] != 1:
        raise errors.UserError(
          f'AdditiveAttention: the mask is {mask.dtype}{list(mask.shape)};'
          ' expected booleans, True where a target may see a source, that'
          ' broadcast to [B, 1, T, S]'
        )
      logits = jnp.where(
        mask[:, 0], logits, _HIDDEN * jnp.finfo(logits.dtype).max
      )
    probs = self.atten_dropout(jax.nn.softmax(logits, axis=-1))
    return probs @ context_vec, probs
