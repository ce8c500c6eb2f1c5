"""A softmax that looks at a sample of the classes in training.

Shapes: D input dims, V classes, S sampled classes, "..." positions, such as
[B, T].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layers.embeddings.row_gradients import (
  lookup_with_row_facts,
  no_facts,
)
from pax_compat.layers.softmaxes import candidate_sampling, vocabulary_loss
from pax_compat.layers.softmaxes.candidate_sampling import Sample
from pax_compat.layers.softmaxes.full_softmax import BaseSoftmax
from pax_compat.layers.softmaxes.vocabulary_loss import CrossEntropy

# What the logit of a sampled class that is the right one is lowered by.
_HIDDEN = float(jnp.finfo(jnp.float32).max)


class SampledSoftmax(BaseSoftmax):
  """A projection onto V classes, of which training looks at a sample.

  In training the cross-entropy is that of the right class among itself and
  `num_sampled` other ones, which all positions share: `log_uniform_sample`
  draws them, so classes are to be numbered by how frequent they are. The
  logarithm of the probability of being in the sample is taken from each logit,
  and where a sampled class is the right one, it does not count as another one.
  https://arxiv.org/abs/1412.2007, section 3. Such logits are not limited by
  `soft_cap_logits` and `logits_abs_max`.

  The result of training has no `logits` and `log_probs`, and
  `per_example_argmax` says that the right class is the most likely one. At
  evaluation, and where `class_probabilities` are given, the softmax is over all
  classes.

  Weights: `w` [V, D] and `b` [V].

  Attributes:
    num_sampled: S.
    use_bias: whether there is a bias `b`.
    bias_init: its first value.
    sparse_gradients: whether the learner treats the weights' gradients as
      TensorFlow treats sparse ones, in training; see `row_gradients`.
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
          f'{type(self).__name__}.{field} is {getattr(self, field)}; a sample'
          ' of classes does not have it, so that expected 0'
        )
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
      self.create_variable(
        'b',
        WeightHParams(
          [self.num_classes],
          init=WeightInit.Constant(self.bias_init),
          tensor_split_dims_mapping=mapping and mapping[-1:],
        ),
      )
    if self.sparse_gradients and self.is_initializing():
      for name in ('w', 'b') if self.use_bias else ('w',):
        self.variable(base_layer.ROW_PROBES, name, no_facts, self.num_classes)

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., D] to logits [..., V]."""
    logits = jnp.einsum('...d,vd->...v', inputs, self.theta.w)
    if self.use_bias:
      logits = logits + self.theta.b
    return self.cap(self.shard(logits, self.activation_split_dims_mapping.out))

  def draw_sample(self) -> Sample:
    """Returns the classes that a step of training looks at."""
    return candidate_sampling.log_uniform_sample(
      self.next_prng_key(), self.num_sampled, self.num_classes
    )

  def sampled_logits(
    self, inputs: jax.Array, class_ids: jax.Array, sample: Sample
  ) -> jax.Array:
    """Returns logits [..., 1 + S], the first one of the class that is right.

    Args:
      inputs: [..., D].
      class_ids: [...], int, the classes that are right.
      sample: the other ones.
    """
    shape = class_ids.shape
    inputs = inputs.reshape([-1, inputs.shape[-1]])
    class_ids = class_ids.reshape([-1])
    # One lookup for all: so it is of one gradient.
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
    """Returns rows of a weight; the learner may be told of its gradient."""
    if not self.has_variable(base_layer.ROW_PROBES, name):
      return table[ids]
    probe = self.get_variable(base_layer.ROW_PROBES, name)
    return lookup_with_row_facts(table, ids, probe)

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
