"""Layers that draw random numbers while the model trains.

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
  """Sets elements to zero at random and scales up the others.

  Does nothing at evaluation, and draws nothing where nothing is dropped.

  Attributes:
    keep_prob: the probability that an element stays.
    noise_shape: of what is drawn, with the rank of the inputs: along a
      dimension of size 1 elements stay or go together; None draws for each
      element.
    noise_shape_broadcast_dims: dimensions along which elements stay or go
      together; -1 is the last one.
    dropout_at_eval: whether elements are dropped at evaluation too.
    transpose_qk: whether for inputs [B, N, T, S] with T = S what is drawn is
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
      UserError: the shape of what is drawn does not fit that of the inputs.
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
    """Returns the shape of what is drawn for inputs of the given shape."""
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
  """Adds a residual branch, which at random is left out for whole examples.

  https://arxiv.org/abs/1603.09382, except that what stays is scaled up while
  the model trains, so that at evaluation the branch is added as it is.

  Attributes:
    residual_weight: by what the branch is multiplied.
    survival_prob: the probability that the branch of an example stays.
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
