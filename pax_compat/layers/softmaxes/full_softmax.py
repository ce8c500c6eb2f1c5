"""Softmax over classes, such as a vocabulary, and its cross-entropy.

  >>> softmax = FullSoftmax.config(input_dims=4, num_classes=3).Instantiate()
  >>> inputs, weights = jnp.ones([2, 5, 4]), jnp.ones([2, 5])
  >>> labels = jnp.zeros([2, 5], int)
  >>> output, variables = softmax.init_with_output(
  ...   jax.random.key(0), inputs, class_weights=weights, class_ids=labels
  ... )
  >>> output.logits.shape, output.per_example_xent.shape
  ((2, 5, 3), (2, 5))
  >>> [name for name in sorted(output) if output[name].ndim == 0]
  ['accuracy', 'avg_xent', 'total_weight', 'total_xent']

Shapes: D input dims, V classes, "..." positions, such as [B, T].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layers import linears
from pax_compat.layers.softmaxes import vocabulary_loss
from pax_compat.layers.softmaxes.vocabulary_loss import CrossEntropy, Target
from pax_compat.layers.template_fields import agreed, split
from pax_compat.nested_map import NestedMap

# Minimum denominator of an average: a batch may be all padding.
SMALL = 1e-6


def soft_cap(logits: jax.Array, cap: float | None) -> jax.Array:
  """Returns logits soft-capped to (-cap, cap), or as they are if no cap."""
  return cap * jnp.tanh(logits / cap) if cap else logits


def of_positions(name: str, x: jax.Array, inputs: jax.Array) -> jax.Array:
  """Returns an array with one value for each position as [...].

  Args:
    name: name of the array, for error messages.
    x: [...] or [..., 1].
    inputs: [..., D].

  Raises:
    UserError: `x` has a different shape.
  """
  if x.shape == (*inputs.shape[:-1], 1):
    return x[..., 0]
  if x.shape != inputs.shape[:-1]:
    raise errors.UserError(
      f'{name} have the shape {list(x.shape)}; inputs of shape'
      f' {list(inputs.shape)} expect {list(inputs.shape[:-1])}, or a dimension'
      ' of 1 after these'
    )
  return x


class BaseSoftmax(base_layer.BaseLayer):
  """Base class of softmax layers; subclasses define `get_logits`.

  Attributes:
    input_dims: D.
    num_classes: V.
    soft_cap_logits: if positive, logits are soft-capped to (-cap, cap).
    logits_abs_max: if positive, logits are clipped to [-max, max].
    label_smoothing_prob: probability that label smoothing takes from the label
      and distributes equally to the other classes.
    label_smoothing_apply_for_eval: whether to smooth labels at evaluation too.
    z_loss_weight: if positive, this times the mean square of the logits'
      logsumexp is added to the loss, to keep the logits near normalised.
    z_loss_is_aux: whether that is an auxiliary loss, as in Pax; else the caller
      adds it.
    chunk_size: number of positions on the time axis (the last but one of the
      inputs) whose logits are computed at a time; see `vocabulary_loss`. The
      output then has no `logits` and `log_probs`. 0 does not split. None uses
      chunks where they are faster, and computes the logits separately if they
      are used. Has no effect with `class_probabilities`, which are as large as
      the logits.
  """

  input_dims: int = REQUIRED
  num_classes: int = REQUIRED
  soft_cap_logits: float | None = 0.0
  logits_abs_max: float | None = None
  label_smoothing_prob: float = 0.0
  label_smoothing_apply_for_eval: bool = True
  z_loss_weight: float = 0.0
  z_loss_is_aux: bool = True
  chunk_size: int | None = None

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., D] to logits [..., V]."""
    raise NotImplementedError(type(self).__name__)

  def logits_to_logp(self, logits: jax.Array) -> jax.Array:
    """Maps `logits` [..., V] to log probabilities, float32."""
    return jax.nn.log_softmax(logits.astype(jnp.float32))

  def __call__(
    self,
    inputs: jax.Array,
    class_weights: jax.Array,
    class_ids: jax.Array | None = None,
    class_probabilities: jax.Array | None = None,
  ) -> NestedMap:
    """Computes the cross-entropy.

    Args:
      inputs: [..., D].
      class_weights: [...] or [..., 1], weights of the positions.
      class_ids: [...] or [..., 1], int, the labels.
      class_probabilities: [..., V], target distributions, instead of
        `class_ids`.

    Returns:
      `logits` and `log_probs`, [..., V], unless `chunk_size` is positive;
      `per_example_xent` in nats and `per_example_argmax`, [...]; the scalars
      `total_xent` (weighted sum), `total_weight` and `avg_xent`; with
      `class_ids` the scalar `accuracy`; with `z_loss_weight` the scalar
      `z_loss`; with label smoothing `per_example_nll` [...], the cross-entropy
      without smoothing. All but `logits` are float32.

    Raises:
      UserError: shapes do not match, or both `class_ids` and
        `class_probabilities` are missing.
    """
    class_weights = of_positions('class_weights', class_weights, inputs)
    class_weights = class_weights.astype(jnp.float32)
    if class_ids is not None:
      class_ids = of_positions('class_ids', class_ids, inputs)
    result, logits = self._cross_entropy(
      inputs, class_weights, class_ids, class_probabilities
    )
    total_weight = jnp.sum(class_weights)
    denominator = self.loss_denominator(class_weights)
    output = NestedMap(
      per_example_argmax=result.argmax,
      per_example_xent=result.xent,
      total_xent=result.total,
      total_weight=total_weight,
      avg_xent=result.total / denominator,
    )
    if logits is not None:
      output.logits = logits
      output.log_probs = self.logits_to_logp(logits)
    if class_ids is not None:
      right = (result.argmax == class_ids) * class_weights
      output.accuracy = jnp.sum(right) / jnp.maximum(total_weight, SMALL)
    if self.z_loss_weight:
      squares = jnp.sum(jnp.square(result.log_z) * class_weights)
      output.z_loss = self.z_loss_weight * squares / denominator
      self.add_summary('aux_z_loss', output.z_loss)
      if self.z_loss_is_aux:
        self.add_aux_loss('aux_z_loss', output.z_loss)
    if result.nll is not None and self._target() != Target():
      output.per_example_nll = result.nll
    return output

  def loss_denominator(self, class_weights: jax.Array) -> jax.Array:
    """Returns the denominator of the average loss of positions [...]."""
    return jnp.maximum(jnp.sum(class_weights, dtype=jnp.float32), SMALL)

  def smoothed_target(self, prob: float) -> Target:
    """Returns the target distribution of smoothed labels."""
    return Target(on=1 - prob, off=prob / (self.num_classes - 1))

  def _target(self) -> Target:
    prob = self.label_smoothing_prob
    if not prob or (self.do_eval and not self.label_smoothing_apply_for_eval):
      return Target()
    if not 0 < prob < 1 or self.num_classes < 2:
      raise errors.UserError(
        f'{type(self).__name__}.label_smoothing_prob is {prob} with'
        f' {self.num_classes} classes; expected a probability below 1, and two'
        ' classes or more'
      )
    return self.smoothed_target(prob)

  def _cross_entropy(
    self, inputs, class_weights, class_ids, class_probabilities
  ) -> tuple[CrossEntropy, jax.Array | None]:
    """Returns the cross-entropy, and the logits unless `chunk_size` is set."""
    if class_probabilities is not None:
      logits = self.get_logits(inputs)
      if class_probabilities.shape != logits.shape:
        raise errors.UserError(
          f'{type(self).__name__}: class_probabilities have the shape'
          f' {list(class_probabilities.shape)}, logits {list(logits.shape)}'
        )
      return (
        vocabulary_loss.soft_cross_entropy(
          logits.astype(jnp.float32), class_probabilities, class_weights
        ),
        logits,
      )
    if class_ids is None:
      raise errors.UserError(
        f'{type(self).__name__}: expected class_ids or class_probabilities'
      )
    chunk_size = self._chunk_size(inputs)
    # At least for one chunk, so that weights and children exist before the
    # chunks are traced.
    logits = self.get_logits(
      inputs[..., : self.chunk_size, :] if self.chunk_size else inputs
    )
    if not chunk_size:
      result = vocabulary_loss.cross_entropy(
        logits.astype(jnp.float32), class_ids, class_weights, self._target()
      )
      return result, logits
    result = vocabulary_loss.chunked_cross_entropy(
      self.get_logits,
      inputs,
      class_ids,
      class_weights,
      chunk_size=chunk_size,
      target=self._target(),
      gradient_in_forward=not self.z_loss_weight,
    )
    return result, None if self.chunk_size else logits

  def _chunk_size(self, inputs: jax.Array) -> int:
    if self.chunk_size is not None:
      return self.chunk_size
    if ghost_norms.is_active():
      return 0
    mesh = jax.sharding.get_abstract_mesh()
    return vocabulary_loss.best_chunk_size(
      (*inputs.shape[:-1], self.num_classes), 1 if mesh.empty else mesh.size
    )

  def cap(self, logits: jax.Array) -> jax.Array:
    """Returns `logits` [..., V], clipped and soft-capped."""
    if self.logits_abs_max:
      logits = jnp.clip(logits, -self.logits_abs_max, self.logits_abs_max)
    return soft_cap(logits, self.soft_cap_logits)


class FullSoftmax(BaseSoftmax):
  """A projection onto V classes and its cross-entropy.

  Logits are clipped before they are soft-capped.

  Attributes:
    use_bias: whether the projection has a bias; None leaves it to
      `feed_forward_tpl`, whose default is True.
    bias_init: initial value of the bias; None leaves it to `feed_forward_tpl`,
      whose default is 0.
    scale_before_logits: whether the inputs are multiplied by 1 / sqrt(D).
    feed_forward_tpl: the projection; its activation is removed. None if the
      inputs are already logits.
  """

  ActivationSharding = linears.OutputSharding

  use_bias: bool | None = None
  bias_init: float | None = None
  scale_before_logits: bool = False
  feed_forward_tpl: Config | None = sub_config_field(linears.FeedForward)

  def setup(self):
    create_projection(self, has_bias=self.use_bias)

  def get_logits(self, inputs: jax.Array) -> jax.Array:
    if self.scale_before_logits:
      inputs = inputs * self.input_dims**-0.5
    if self.feed_forward_tpl is not None:
      inputs = self.logits_ffn(inputs)
    return self.cap(inputs)


def create_class_major_weight(layer: BaseSoftmax):
  """Creates the weight `w` [V, D]. Its split mapping is that of [D, V]."""
  mapping = layer.weight_split_dims_mapping.wt
  layer.create_variable(
    'w',
    WeightHParams(
      [layer.num_classes, layer.input_dims],
      tensor_split_dims_mapping=mapping and mapping[::-1],
    ),
  )


def create_projection(layer: base_layer.BaseLayer, **fields):
  """Creates the child `logits_ffn` of a layer with a `feed_forward_tpl`.

  Args:
    layer: a layer in its `setup`. A template of None creates no child.
    **fields: fields of the projection in addition to its dims and `bias_init`.

  Raises:
    UserError: the template has an activation; or it is None, and D is not V.
  """
  tpl = layer.feed_forward_tpl
  where = f'{type(layer).__name__}.feed_forward_tpl'
  if tpl is None:
    if layer.input_dims != layer.num_classes:
      raise errors.UserError(
        f'{where} is None, so the inputs are the logits, but input_dims is'
        f' {layer.input_dims} and num_classes {layer.num_classes}'
      )
    return
  outputs = layer.activation_split_dims_mapping
  layer.create_child(
    'logits_ffn',
    tpl,
    **linears.no_activation(where, tpl),
    **agreed(
      where,
      tpl,
      input_dims=layer.input_dims,
      output_dims=layer.num_classes,
      bias_init=layer.bias_init,
      **fields,
    ),
    **split(
      tpl,
      'weight_split_dims_mapping',
      wt=layer.weight_split_dims_mapping.wt,
    ),
    **split(
      tpl,
      'activation_split_dims_mapping',
      out=outputs.out,
      extend_step_out=outputs.extend_step_out,
    ),
  )
