"""Sampled softmax: training uses a sample of the classes.

Shapes: D input dims, V classes, S sampled classes, "..." positions, such as
[B, T].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layer_core.row_gradients import (
  lookup_with_row_statistics,
  no_statistics,
)
from pax_compat.layers.softmaxes import (
  candidate_sampling,
  full_softmax,
  vocabulary_loss,
)
from pax_compat.layers.softmaxes.candidate_sampling import Sample
from pax_compat.layers.softmaxes.full_softmax import BaseSoftmax
from pax_compat.layers.softmaxes.vocabulary_loss import CrossEntropy

# Subtracted from the logit of a sampled class that is the label.
_HIDDEN = float(jnp.finfo(jnp.float32).max)


class SampledSoftmax(BaseSoftmax):
  """A projection onto V classes; training uses a sample of the classes.

  In training the softmax is over the label and `num_sampled` other classes,
  which all positions share. They are drawn by `log_uniform_sample`, so classes
  must be numbered by descending frequency. The log probability of being in the
  sample is subtracted from each logit, and a sampled class that is the label is
  masked (https://arxiv.org/abs/1412.2007, section 3). `soft_cap_logits` and
  `logits_abs_max` do not apply to these logits.

  In training the output has no `logits` and `log_probs`, and
  `per_example_argmax` is the label. At evaluation, and with
  `class_probabilities`, the softmax is over all classes.

  Weights: `w` [V, D] and `b` [V].

  Attributes:
    num_sampled: S.
    use_bias: whether there is a bias `b`.
    bias_init: initial value of the bias.
    sparse_gradients: whether the learner treats the weights' gradients in
      training like sparse gradients of TensorFlow; see `row_gradients`.
  """

  num_sampled: int = REQUIRED
  use_bias: bool = True
  bias_init: float = 0.0
  sparse_gradients: bool = False

  def setup(self):
    if not 0 < self.num_sampled <= self.num_classes:
      raise errors.UserError(
        f'{type(self).__name__}.num_sampled is {self.num_sampled}; expected 1'
        f' or more, and at most num_classes, {self.num_classes}'
      )
    for field in ('z_loss_weight', 'label_smoothing_prob'):
      if getattr(self, field):
        raise errors.UserError(
          f'{type(self).__name__}.{field} is {getattr(self, field)}; a sampled'
          ' softmax does not support it, expected 0'
        )
    full_softmax.create_class_major_weight(self)
    if self.use_bias:
      mapping = self.weight_split_dims_mapping.wt
      self.create_variable(
        'b',
        WeightHParams(
          [self.num_classes],
          init=WeightInit.Constant(self.bias_init),
          tensor_split_dims_mapping=mapping and mapping[-1:],
        ),
      )
    makes_probes = self.is_mutable_collection(base_layer.ROW_PROBES)
    if self.sparse_gradients and self.is_initializing() and makes_probes:
      for name in ('w', 'b') if self.use_bias else ('w',):
        self.variable(
          base_layer.ROW_PROBES, name, no_statistics, self.num_classes
        )

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    logits = jnp.einsum('...d,vd->...v', inputs, self.theta.w)
    if self.use_bias:
      logits = logits + self.theta.b
    return self.cap(self.shard(logits, self.activation_split_dims_mapping.out))

  def draw_sample(self) -> Sample:
    """Returns the sampled classes of a training step."""
    return candidate_sampling.log_uniform_sample(
      self.next_prng_key(), self.num_sampled, self.num_classes
    )

  def sampled_logits(
    self, inputs: jax.Array, class_ids: jax.Array, sample: Sample
  ) -> jax.Array:
    """Returns logits [..., 1 + S] of the label and of the sampled classes.

    Args:
      inputs: [..., D].
      class_ids: [...], int, the labels.
      sample: the sampled classes.
    """
    shape = class_ids.shape
    inputs = inputs.reshape([-1, inputs.shape[-1]])
    class_ids = class_ids.reshape([-1])
    # A single lookup, as the statistics of its gradient are for one lookup.
    all_ids = jnp.concatenate([class_ids, sample.classes])
    rows = self._rows('w', self.theta.w, all_ids).astype(inputs.dtype)
    right, others = jnp.split(rows, [class_ids.size])
    of_right = jnp.sum(inputs * right, axis=-1, keepdims=True)
    of_others = inputs @ others.T
    logits = jnp.concatenate([of_right, of_others], axis=-1)
    logits = logits.astype(jnp.float32)
    counts = candidate_sampling.expected_count(
      all_ids, sample, self.num_classes
    )
    shift = -jnp.log(counts)
    if self.use_bias:
      bias = self._rows('b', self.theta.b, all_ids)
      shift += bias.astype(jnp.float32)
    right, others = jnp.split(shift, [class_ids.size])
    hits = class_ids[:, None] == sample.classes
    others = jnp.where(hits, others - _HIDDEN, others)
    logits += jnp.concatenate([right[:, None], others], axis=-1)
    return logits.reshape([*shape, -1])

  def _rows(self, name: str, table: jax.Array, ids: jax.Array) -> jax.Array:
    """Looks up rows of a weight, with the probe for sparse gradients if any."""
    if not self.has_variable(base_layer.ROW_PROBES, name):
      return table[ids]
    probe = self.get_variable(base_layer.ROW_PROBES, name)
    return lookup_with_row_statistics(table, ids, probe)

  def _cross_entropy(
    self, inputs, class_weights, class_ids, class_probabilities
  ) -> tuple[CrossEntropy, jax.Array | None]:
    if self.do_eval or class_ids is None or class_probabilities is not None:
      return super()._cross_entropy(
        inputs, class_weights, class_ids, class_probabilities
      )
    logits = self.sampled_logits(inputs, class_ids, self.draw_sample())
    result = vocabulary_loss.cross_entropy(
      logits, jnp.zeros_like(class_ids), class_weights
    )
    return result._replace(argmax=class_ids), None
