"""Softmax layers that share their matrix with the token embedding.

Shapes: D model dims, V vocabulary, "..." positions, such as [B, T].
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat.base_layer import WeightInit
from pax_compat.config import Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import activations, base_ops, linears, products
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
  """Sharding of embedding vectors and logits over the mesh.

  Attributes:
    emb_out_split_dims_mapping: mapping of the embedding vectors; None leaves it
      to the compiler.
  """

  emb_out_split_dims_mapping: SplitDimsMapping = None


# Fields that a config's text omits unless set.
_SILENT = (
  *full_softmax.BaseSoftmax.SILENT_UNLESS_SET,
  'array_lookup_tpl',
  'einsum_tpl',
)


class _Lookup:
  """Mixin: the embedding of a softmax layer.

  The layer defines `_table`, and has the fields `lookup_style` ('index' or
  'matmul'; see `embedding_tables.lookup`) and `scale_sqrt_depth` (whether the
  vectors are multiplied by sqrt(D)).
  """

  def _table(self) -> jax.Array:
    """Returns the embedding matrix [V, D]."""
    raise NotImplementedError(type(self).__name__)

  def emb_lookup(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    check_integers(self, ids)
    scale = math.sqrt(self.input_dims) if self.scale_sqrt_depth else 1.0
    vectors = self._vectors(ids)
    mapping = self.activation_split_dims_mapping.emb_out_split_dims_mapping
    return self.shard(scale * vectors, mapping)

  def _vectors(self, ids: jax.Array) -> jax.Array:
    """Returns the rows [..., D] of the matrix."""
    return embedding_tables.lookup(self._table(), ids, self.lookup_style)

  def extend_step(self, ids: jax.Array, *, time_step: jax.Array) -> jax.Array:
    """Returns the vectors of a decoding step; they do not depend on it."""
    del time_step
    return self.emb_lookup(ids)


class _ClassMajorSoftmax(_Lookup, full_softmax.BaseSoftmax):
  """Base class of softmax layers with one matrix [V, D], which is `_table`.

  A subclass has the fields `use_bias` (whether there is a child `bias`) and
  `scale_before_logits` (whether the inputs are multiplied by 1 / sqrt(D)).
  """

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    if self.scale_before_logits:
      inputs = inputs * self.input_dims**-0.5
    logits = self.product('...d,vd->...v', inputs, self._table())
    logits = self.shard(
      logits,
      linears.output_mapping(self.activation_split_dims_mapping, logits.ndim),
    )
    if self.use_bias:
      logits = self.bias(logits)
    return self.cap(logits)

  def product(self, equation: str, inputs, weight) -> jax.Array:
    """Returns the product with the weight."""
    return products.einsum(equation, inputs, weight)


class SharedEmbeddingSoftmax(_Lookup, FullSoftmax):
  """A `FullSoftmax` that shares its matrix [D, V] with the embedding.

  Attributes:
    lookup_style: 'index' or 'matmul'; see `embedding_tables.lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
    array_lookup_tpl: the lookup by 'index'; see `base_ops`.
    einsum_tpl: the product of a lookup by 'matmul'.
  """

  ActivationSharding = EmbeddingSoftmaxSharding
  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = _SILENT

  lookup_style: str = 'index'
  scale_sqrt_depth: bool = False
  array_lookup_tpl: Config = sub_config_field(base_ops.ArrayLookup)
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    super().setup()
    self.create_child('array_lookup', self.array_lookup_tpl.clone())
    self.create_child('einsum', self.einsum_tpl.clone())

  def _vectors(self, ids: jax.Array) -> jax.Array:
    return embedding_tables.replaceable_lookup(self, self._table(), ids)

  def _table(self) -> jax.Array:
    return self.logits_ffn.linear.theta.w.T


class NClassMajorSharedEmbeddingSoftmax(_ClassMajorSoftmax):
  """A softmax and an embedding that share one matrix [V, D].

  Attributes:
    use_bias: whether the logits have a bias.
    bias_init: initial value of the bias.
    activation_tpl: activation of the logits, before they are capped.
    lookup_style: as in `SharedEmbeddingSoftmax`.
    scale_sqrt_depth: likewise.
    scale_before_logits: whether the inputs are multiplied by 1 / sqrt(D).
    einsum_tpl: the product of the logits; see `base_ops`.
  """

  ActivationSharding = EmbeddingSoftmaxSharding
  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = _SILENT

  use_bias: bool = True
  bias_init: float = 0.0
  activation_tpl: Config = sub_config_field(activations.Identity)
  lookup_style: str = 'index'
  scale_sqrt_depth: bool = False
  scale_before_logits: bool = False
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('einsum', self.einsum_tpl.clone())
    full_softmax.create_class_major_weight(self)
    if self.use_bias:
      mapping = self.weight_split_dims_mapping.wt
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

  def _table(self) -> jax.Array:
    return self.theta.w

  def product(self, equation: str, inputs, weight) -> jax.Array:
    return self.einsum(equation, inputs, weight)

  def cap(self, logits: jax.Array) -> jax.Array:
    return super().cap(self.activation(logits))


class GShardSharedEmbeddingSoftmax(_ClassMajorSoftmax):
  """GShard's softmax and embedding, which share one matrix [V, D].

  The initializer of the matrix is a Gaussian of deviation 1. Logits are
  soft-capped before they are clipped. Labels are smoothed in training only, and
  the probability `label_smoothing_prob` is spread over all classes, including
  the label.

  Attributes:
    use_tgt_labels_size_as_loss_denominator: whether the average loss is over
      all positions, padding included, instead of the sum of the weights.
    fixed_loss_denominator: if set, the average loss is the sum over this.
    use_bias: whether the logits have a bias, initialised to 0.
    lookup_style: as in `SharedEmbeddingSoftmax`.
    scale_sqrt_depth: likewise.
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

  def _table(self) -> jax.Array:
    return self.embedding.theta.w

  def cap(self, logits: jax.Array) -> jax.Array:
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
      In addition the scalar `avg_xent_weight`, the denominator of `avg_xent`.
    """
    output = super().__call__(
      inputs, class_weights, class_ids, class_probabilities
    )
    output.avg_xent_weight = self.loss_denominator(class_weights)
    return output

  def loss_denominator(self, class_weights: jax.Array) -> jax.Array:
    if self.fixed_loss_denominator is not None:
      return jnp.float32(self.fixed_loss_denominator)
    if self.use_tgt_labels_size_as_loss_denominator:
      return jnp.asarray(class_weights.size, jnp.float32)
    return super().loss_denominator(class_weights)

  def smoothed_target(self, prob: float) -> Target:
    off = prob / self.num_classes
    return Target(on=1 - prob + off, off=off)
