"""Layers that draw random numbers in training: dropout, stochastic depth.

Shapes: B batch, T length of queries, S length of keys, N heads.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors


def _check_probability(layer: base_layer.BaseLayer, field: str):
  value = getattr(layer, field)
  if not 0 < value <= 1:
    raise errors.UserError(
      f'{type(layer).__name__}.{field} is {value}; expected more than 0 and at'
      ' most 1'
    )


class Dropout(base_layer.BaseLayer):
  """Dropout: sets elements to zero at random and scales up the others.

  Returns its inputs at evaluation. Draws no random numbers if `keep_prob` is 1.

  Attributes:
    keep_prob: probability that an element is kept.
    noise_shape: shape of the mask, with the rank of the inputs; a dimension of
      size 1 broadcasts. None takes the shape of the inputs.
    noise_shape_broadcast_dims: dimensions of the mask to broadcast; -1 is the
      last one.
    dropout_at_eval: whether elements are dropped at evaluation too.
    transpose_qk: whether for inputs [B, N, T, S] with T = S the mask is
      transposed to [B, N, S, T].
  """

  keep_prob: float = 1.0
  noise_shape: Sequence[int] | None = None
  noise_shape_broadcast_dims: Sequence[int] | None = None
  dropout_at_eval: bool = False
  transpose_qk: bool = False

  def setup(self):
    _check_probability(self, 'keep_prob')

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [...] with dropout.

    Raises:
      UserError: the shape of the mask does not broadcast to the inputs'.
    """
    if self.keep_prob < 1 and (self.dropout_at_eval or not self.do_eval):
      inputs = self._drop(inputs)
    return self.shard(inputs, self.activation_split_dims_mapping.out)

  def _drop(self, inputs: jax.Array) -> jax.Array:
    shape = self._noise_shape(inputs.shape)
    keep = jax.random.bernoulli(self.next_prng_key(), self.keep_prob, shape)
    if self.transpose_qk and len(shape) == 4 and shape[2] == shape[3]:
      keep = jnp.swapaxes(keep, 2, 3)
    return jnp.where(keep, inputs / self.keep_prob, 0).astype(inputs.dtype)

  def _noise_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the mask for inputs of the given shape."""
    noise = list(self.noise_shape or shape)
    for dim in self.noise_shape_broadcast_dims or ():
      if not -len(noise) <= dim < len(noise):
        raise errors.UserError(
          f'Dropout.noise_shape_broadcast_dims names dimension {dim} of'
          f' {len(noise)}'
        )
      noise[dim] = 1
    fits = len(noise) == len(shape) and all(
      size in (1, whole) for size, whole in zip(noise, shape, strict=True)
    )
    if not fits:
      raise errors.UserError(
        f'Dropout.noise_shape is {noise} for inputs of shape {list(shape)};'
        ' expected 1 or their size in each dimension'
      )
    return tuple(noise)


class StochasticResidual(base_layer.BaseLayer):
  """Stochastic depth: adds a residual branch, dropped for random examples.

  https://arxiv.org/abs/1603.09382, except that branches that are kept are
  scaled up in training, so that evaluation needs no scaling.

  Attributes:
    residual_weight: factor on the branch.
    survival_prob: probability that the branch of an example is kept.
  """

  residual_weight: float = 1.0
  survival_prob: float = 1.0

  def setup(self):
    _check_probability(self, 'survival_prob')

  def __call__(self, inputs: jax.Array, residual: jax.Array) -> jax.Array:
    """Returns `inputs` [B, ...] plus the branch `residual` [B, ...]."""
    if self.survival_prob < 1 and not self.do_eval:
      shape = [residual.shape[0], *[1] * (residual.ndim - 1)]
      key = self.next_prng_key()
      keep = jax.random.bernoulli(key, self.survival_prob, shape)
      residual = jnp.where(keep, residual / self.survival_prob, 0)
    outputs = (inputs + self.residual_weight * residual).astype(inputs.dtype)
    return self.shard(outputs, self.activation_split_dims_mapping.out)
