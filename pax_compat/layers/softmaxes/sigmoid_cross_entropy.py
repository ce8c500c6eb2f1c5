"""Multi-label classification: sigmoid cross-entropy of independent classes.

Shapes: D input dims, V classes, "..." examples, such as [B].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import linears
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.nested_map import NestedMap


class SigmoidCrossEntropy(base_layer.BaseLayer):
  """A projection onto V independent binary logits, and their cross-entropy.

  Methods and fields are those of `FullSoftmax`.

  Attributes:
    input_dims: D.
    num_classes: V.
    soft_cap_logits: if positive, logits are soft-capped to (-cap, cap).
    bias_init: initial value of the bias; None leaves it to `feed_forward_tpl`.
    feed_forward_tpl: the projection; None if the inputs are already logits.
  """

  ActivationSharding = linears.OutputSharding

  input_dims: int = REQUIRED
  num_classes: int = REQUIRED
  soft_cap_logits: float | None = 0.0
  bias_init: float | None = None
  feed_forward_tpl: Config | None = sub_config_field(linears.FeedForward)

  def setup(self):
    full_softmax.create_projection(self)

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    """See `BaseSoftmax`."""
    if self.feed_forward_tpl is not None:
      inputs = self.logits_ffn(inputs)
    return full_softmax.soft_cap(inputs, self.soft_cap_logits)

  def logits_to_logp(self, logits: jax.Array) -> jax.Array:
    """See `BaseSoftmax`."""
    return jax.nn.log_sigmoid(logits.astype(jnp.float32))

  def __call__(
    self,
    inputs: jax.Array,
    class_weights: jax.Array,
    class_ids: jax.Array | None = None,
    class_probabilities: jax.Array | None = None,
  ) -> NestedMap:
    """Computes the cross-entropy; see `BaseSoftmax` for other arguments.

    Args:
      inputs: [..., D].
      class_weights: [...] or [..., 1], weights of the examples; or [..., V] if
        V is not 1, weights of the classes of each example.
      class_ids: [...] or [..., 1], int, the only positive class.
      class_probabilities: [..., V], probability of each class, instead of
        `class_ids`.

    Returns:
      As `BaseSoftmax`, without `accuracy`. `per_example_xent` is summed over
      classes, with their weights if given; `total_weight` is the sum of
      `class_weights`.

    Raises:
      UserError: see `BaseSoftmax`.
    """
    logits = self.get_logits(inputs)
    target = self._target(inputs, class_ids, class_probabilities)
    of_class = of_example = jnp.ones([])
    class_weights = class_weights.astype(jnp.float32)
    if self.num_classes > 1 and class_weights.shape == logits.shape:
      of_class = class_weights
    else:
      of_example = full_softmax.of_positions(
        'class_weights', class_weights, inputs
      )
    # log_sigmoid(-x) is a more precise log(1 - sigmoid(x)).
    log_right = self.logits_to_logp(logits)
    log_wrong = self.logits_to_logp(-logits)
    xent = -(target * log_right + (1 - target) * log_wrong)
    per_example = jnp.sum(xent * of_class, axis=-1)
    total_xent = jnp.sum(per_example * of_example)
    total_weight = jnp.sum(class_weights)
    return NestedMap(
      logits=logits,
      log_probs=log_right,
      per_example_argmax=jax.lax.stop_gradient(jnp.argmax(logits, axis=-1)),
      per_example_xent=per_example,
      total_xent=total_xent,
      total_weight=total_weight,
      avg_xent=total_xent / jnp.maximum(total_weight, full_softmax.SMALL),
    )

  def _target(self, inputs, class_ids, class_probabilities) -> jax.Array:
    """Returns the target probability of each class, [..., V]."""
    shape = (*inputs.shape[:-1], self.num_classes)
    if class_probabilities is not None:
      if class_probabilities.shape != shape:
        raise errors.UserError(
          'SigmoidCrossEntropy: class_probabilities have the shape'
          f' {list(class_probabilities.shape)}; expected {list(shape)}'
        )
      return class_probabilities.astype(jnp.float32)
    if class_ids is None:
      raise errors.UserError(
        'SigmoidCrossEntropy: expected class_ids or class_probabilities'
      )
    if self.num_classes == 1:
      raise errors.UserError(
        'SigmoidCrossEntropy: with one class, expected class_probabilities:'
        ' class_ids cannot mark it as negative'
      )
    ids = full_softmax.of_positions('class_ids', class_ids, inputs)
    return jax.nn.one_hot(ids, self.num_classes)
