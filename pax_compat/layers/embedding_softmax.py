"""Embeddings of tokens and positions, and the softmax over a vocabulary.

Shapes: B batch, T time, D model dims, V vocabulary (or number of classes).
"""

import math

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations, linears
from pax_compat.layers.row_gradients import lookup_with_row_facts, no_facts
from pax_compat.nested_map import NestedMap


class Embedding(base_layer.BaseLayer):
  """A table of vectors, one for each token.

  Attributes:
    num_classes: V.
    input_dims: D.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
    sparse_gradients: whether the learner treats the table's gradient as
      TensorFlow treats a sparse one; see `row_gradients`.
  """

  num_classes: int = REQUIRED
  input_dims: int = REQUIRED
  scale_sqrt_depth: bool = False
  sparse_gradients: bool = False

  def setup(self):
    self.create_variable(
      'emb_var',
      WeightHParams(
        [self.num_classes, self.input_dims],
        tensor_split_dims_mapping=self.weight_split_dims_mapping,
      ),
    )
    if self.sparse_gradients and self.is_initializing():
      self.variable(
        base_layer.ROW_PROBES, 'emb_var', no_facts, self.num_classes
      )

  def __call__(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    if self.has_variable(base_layer.ROW_PROBES, 'emb_var'):
      probe = self.get_variable(base_layer.ROW_PROBES, 'emb_var')
      vectors = lookup_with_row_facts(self.theta.emb_var, ids, probe)
    else:
      vectors = self.theta.emb_var[ids]
    if self.scale_sqrt_depth:
      vectors = vectors * math.sqrt(self.input_dims)
    return vectors


class PositionalEmbedding(base_layer.BaseLayer):
  """Sinusoidal positions of 'Attention is all you need'.

  Attributes:
    embedding_dims: D, an even number.
    min_timescale: multiplies all frequencies. Where it is 1, the shortest
      period is 2 pi.
    max_timescale: where min_timescale is 1, the longest period is 2 pi times
      this.
  """

  embedding_dims: int = REQUIRED
  min_timescale: int = 1
  max_timescale: int = 10_000

  def __call__(self, seq_length: int) -> jax.Array:
    """Returns the vectors [1, seq_length, D] of positions 0, 1, ..."""
    if self.embedding_dims % 2:
      raise errors.UserError(
        f'PositionalEmbedding.embedding_dims is {self.embedding_dims};'
        ' expected an even number'
      )
    num_timescales = self.embedding_dims // 2
    increment = math.log(self.max_timescale / self.min_timescale) / max(
      1, num_timescales - 1
    )
    position = jnp.arange(seq_length, dtype=jnp.float32)
    inverse = self.min_timescale * jnp.exp(
      jnp.arange(num_timescales, dtype=jnp.float32) * -increment
    )
    angles = position[:, None] * inverse[None, :]
    signal = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return signal[None].astype(self.compute_dtype)


class FullSoftmax(base_layer.BaseLayer):
  """A projection onto V classes and its cross-entropy.

  Attributes:
    input_dims: D.
    num_classes: V.
    use_bias: whether the projection has a bias.
    bias_init: the bias's first value.
    soft_cap_logits: if positive, logits are capped softly to (-cap, cap).
    logits_abs_max: if set, logits are clipped to [-max, max].
    feed_forward_tpl: the projection.
  """

  input_dims: int = REQUIRED
  num_classes: int = REQUIRED
  use_bias: bool = True
  bias_init: float = 0.0
  soft_cap_logits: float = 0.0
  logits_abs_max: float | None = None
  feed_forward_tpl: Config = sub_config_field(linears.FeedForward)

  def setup(self):
    tpl = self.feed_forward_tpl.clone().set(
      input_dims=self.input_dims,
      output_dims=self.num_classes,
      has_bias=self.use_bias,
      bias_init=self.bias_init,
      activation_tpl=activations.Identity.config(),
      weight_split_dims_mapping=self.weight_split_dims_mapping,
    )
    tpl.linear_tpl.set(params_init=self.params_init)
    self.create_child('logits_ffn', tpl)

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., D] to logits [..., V]."""
    logits = self.logits_ffn(inputs)
    if self.logits_abs_max is not None:
      logits = jnp.clip(logits, -self.logits_abs_max, self.logits_abs_max)
    if self.soft_cap_logits > 0:
      cap = self.soft_cap_logits
      logits = cap * jnp.tanh(logits / cap)
    return logits

  def __call__(
    self, inputs: jax.Array, class_weights: jax.Array, class_ids: jax.Array
  ) -> NestedMap:
    """Computes the cross-entropy.

    Args:
      inputs: [..., D].
      class_weights: [...], how much each position counts.
      class_ids: [...], int, the classes that are right.

    Returns:
      `logits` [..., V]; `per_example_xent` in nats and `per_example_argmax`,
      both [...]; and the scalars `total_xent` (weighted sum), `total_weight`
      and `avg_xent`.
    """
    logits = self.get_logits(inputs).astype(jnp.float32)
    class_weights = class_weights.astype(jnp.float32)
    right = jnp.take_along_axis(logits, class_ids[..., None], axis=-1)[..., 0]
    xent = jax.nn.logsumexp(logits, axis=-1) - right
    total_xent = jnp.sum(xent * class_weights)
    total_weight = jnp.sum(class_weights)
    return NestedMap(
      logits=logits,
      per_example_argmax=jax.lax.stop_gradient(jnp.argmax(logits, axis=-1)),
      per_example_xent=xent,
      total_xent=total_xent,
      total_weight=total_weight,
      avg_xent=total_xent / jnp.maximum(total_weight, 1e-6),
    )
