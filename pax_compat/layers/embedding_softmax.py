"""Softmax layers whose matrix is an embedding of tokens as well.

Shapes: D model dims, V vocabulary, "..." positions, such as [B, T].
"""

import math

import jax
import jax.numpy as jnp

from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import activations, linears
from pax_compat.layers.embeddings import embedding_tables
from pax_compat.layers.embeddings.embedding_tables import (  # noqa: F401 (Pax)
  Embedding,
)
from pax_compat.layers.embeddings.positional_embeddings import (  # noqa: F401
  PositionalEmbedding,
  PositionalEmbedding2D,
  TrainablePositionalEmbedding,
)
from pax_compat.layers.embeddings.rotary_embedding import (  # noqa: F401
  RotaryPositionalEmbedding,
)
from pax_compat.layers.embeddings.token_counter import (  # noqa: F401
  TokenCounter,
)
from pax_compat.layers.input_checks import check_integers
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.softmaxes.sigmoid_cross_entropy import (  # noqa: F401
  SigmoidCrossEntropy,
)
from pax_compat.layers.softmaxes.vocabulary_loss import Target
from pax_compat.nested_map import NestedMap


class EmbeddingSoftmaxSharding(linears.OutputSharding):
  """How vectors and logits are split over the mesh.

  Attributes:
    emb_out_split_dims_mapping: of the vectors that are looked up; None leaves
      it to the compiler.
  """

  emb_out_split_dims_mapping: SplitDimsMapping = None


class _Lookup:
  """What the layers in this file have of an embedding."""

  def _embed(self, table: jax.Array, ids: jax.Array, scale=1.0) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...] in `table` [V, D], scaled."""
    check_integers(self, ids)
    vectors = scale * embedding_tables.lookup(table, ids, self.lookup_style)
    mapping = self.activation_split_dims_mapping.emb_out_split_dims_mapping
    return self.shard(vectors, mapping)

  def _depth_scale(self) -> float:
    return math.sqrt(self.input_dims) if self.scale_sqrt_depth else 1.0

  def extend_step(self, ids: jax.Array, *, time_step: jax.Array) -> jax.Array:
    """Returns the vectors of a decoding step; they do not depend on it."""
    del time_step
    return self.emb_lookup(ids)


class SharedEmbeddingSoftmax(_Lookup, FullSoftmax):
  """A `FullSoftmax` whose matrix [D, V] is an embedding as well.

  Attributes:
    lookup_style: 'index' or 'matmul'; see `embedding_tables.lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
  """

  ActivationSharding = EmbeddingSoftmaxSharding

  lookup_style: str = 'index'
  scale_sqrt_depth: bool = False

  def emb_lookup(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    return self._embed(
      self.logits_ffn.linear.theta.w.T, ids, self._depth_scale()
    )


class NClassMajorSharedEmbeddingSoftmax(_Lookup, full_softmax.BaseSoftmax):
  """A softmax and an embedding with one matrix, which is [V, D].

  Attributes:
    use_bias: whether the logits have a bias.
    bias_init: the bias's first value.
    activation_tpl: of the logits, before they are limited.
    lookup_style: 'index' or 'matmul'; see `embedding_tables.lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
    scale_before_logits: whether the inputs are multiplied by 1 / sqrt(D).
  """

  ActivationSharding = EmbeddingSoftmaxSharding

  use_bias: bool = True
  bias_init: float = 0.0
  activation_tpl: Config = sub_config_field(activations.Identity)
  lookup_style: str = 'index'
  scale_sqrt_depth: bool = False
  scale_before_logits: bool = False

  def setup(self):
    # Given for [D, V], as for the other softmax layers.
    mapping = self.weight_split_dims_mapping.wt
    self.create_variable(
      'w',
      WeightHParams(
        [self.num_classes, self.input_dims],
        tensor_split_dims_mapping=mapping and mapping[::-1],
      ),
    )
    if self.use_bias:
      self.create_child(
        'bias',
        linears.Bias.config(),
        dims=self.num_classes,
        bias_init=self.bias_init,
        weight_split_dims_mapping=linears.Bias.WeightSharding.config(
          wt=mapping and mapping[-1:]
        ),
      )
    self.create_child('activation', self.activation_tpl)

  def emb_lookup(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    return self._embed(self.theta.w, ids, self._depth_scale())

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., D] to logits [..., V]."""
    if self.scale_before_logits:
      inputs = inputs * self.input_dims**-0.5
    logits = jnp.einsum('...d,vd->...v', inputs, self.theta.w)
    logits = self.shard(
      logits,
      linears.output_mapping(self.activation_split_dims_mapping, logits.ndim),
    )
    if self.use_bias:
      logits = self.bias(logits)
    return self.cap(self.activation(logits))


class GShardSharedEmbeddingSoftmax(_Lookup, full_softmax.BaseSoftmax):
  """The softmax and embedding of GShard, with one matrix [V, D].

  The matrix starts as a Gaussian of deviation 1. Logits are capped softly
  before they are clipped. Labels are smoothed in training only; the other
  classes' equal parts go to all classes, the right one included.

  Attributes:
    use_tgt_labels_size_as_loss_denominator: whether the average loss is over
      all positions, padding included, and not over the weights' sum.
    fixed_loss_denominator: if set, the average loss is the sum over this.
    use_bias: whether the logits have a bias, which starts at 0.
    lookup_style: 'index' or 'matmul'; see `embedding_tables.lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
    scale_before_logits: whether the inputs are multiplied by 1 / sqrt(D).
    label_smoothing_apply_for_eval: whether labels are smoothed at evaluation.
  """

  ActivationSharding = EmbeddingSoftmaxSharding

  use_tgt_labels_size_as_loss_denominator: bool = True
  fixed_loss_denominator: float | None = None
  use_bias: bool = False
  lookup_style: str = 'matmul'
  scale_sqrt_depth: bool = False
  scale_before_logits: bool = True
  label_smoothing_apply_for_eval: bool = False

  def setup(self):
    self.create_child(
      'embedding',
      linears.Linear.config(),
      input_dims=self.num_classes,
      output_dims=self.input_dims,
      weight_init=WeightInit.Gaussian(),
      weight_split_dims_mapping=linears.Linear.WeightSharding.config(
        wt=self.weight_split_dims_mapping.wt
      ),
    )
    if self.use_bias:
      mapping = self.weight_split_dims_mapping.wt
      self.create_child(
        'bias',
        linears.Bias.config(),
        dims=self.num_classes,
        weight_split_dims_mapping=linears.Bias.WeightSharding.config(
          wt=mapping and mapping[:1]
        ),
      )

  def emb_lookup(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    return self._embed(self.embedding.theta.w, ids, self._depth_scale())

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., D] to logits [..., V]."""
    if self.scale_before_logits:
      inputs = inputs * self.input_dims**-0.5
    logits = jnp.einsum('...d,vd->...v', inputs, self.embedding.theta.w)
    logits = self.shard(
      logits,
      linears.output_mapping(self.activation_split_dims_mapping, logits.ndim),
    )
    if self.use_bias:
      logits = self.bias(logits)
    return self.cap(logits)

  def cap(self, logits: jax.Array) -> jax.Array:
    """Returns `logits` [..., V] within the limits that they are to keep."""
    logits = full_softmax.soft_cap(logits, self.soft_cap_logits)
    if self.logits_abs_max:
      logits = jnp.clip(logits, -self.logits_abs_max, self.logits_abs_max)
    return logits

  def __call__(
    self,
    inputs: jax.Array,
    class_weights: jax.Array,
    class_ids: jax.Array | None = None,
    class_probabilities: jax.Array | None = None,
  ) -> NestedMap:
    """Computes the cross-entropy; see `BaseSoftmax`.

    Returns:
      The scalar `avg_xent_weight`, too: what `avg_xent` is an average over.
    """
    output = super().__call__(
      inputs, class_weights, class_ids, class_probabilities
    )
    output.avg_xent_weight = self.loss_denominator(class_weights)
    return output

  def loss_denominator(self, class_weights: jax.Array) -> jax.Array:
    """Returns what the summed loss of positions [...] is divided by."""
    if self.fixed_loss_denominator is not None:
      return jnp.float32(self.fixed_loss_denominator)
    if self.use_tgt_labels_size_as_loss_denominator:
      return jnp.asarray(class_weights.size, jnp.float32)
    return super().loss_denominator(class_weights)

  def smoothed_target(self, prob: float) -> Target:
    """Returns the target when `prob` goes to all classes in equal parts."""
    off = prob / self.num_classes
    return Target(on=1 - prob + off, off=off)
