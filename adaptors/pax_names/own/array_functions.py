"""Functions of arrays that Pax's layers and models call."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.normalizations.moments import compute_moments
from pax_compat.nested_map import NestedMap


def project_last_dim(inputs: jax.Array, weight: jax.Array) -> jax.Array:
  """Returns the product [..., E] of inputs [..., D] and a weight [D, E]."""
  if inputs.ndim < 2 or weight.ndim != 2 or inputs.shape[-1] != len(weight):
    raise errors.UserError(
      f'project_last_dim: inputs {list(inputs.shape)} and weight'
      f' {list(weight.shape)}; expected [..., D] and [D, E]'
    )
  return jnp.einsum('...d,de->...e', inputs, weight)


def compute_stats(
  inputs: jax.Array, padding: jax.Array | None = None
) -> NestedMap:
  """Returns statistics of the values that are not padded.

  Args:
    inputs: any shape.
    padding: as many dimensions, 1 where a position is padding; None for none.

  Returns:
    float32 scalars: `mean_v`, `std_v`, and `max_v` of the absolute values.
  """
  inputs = inputs.astype(jnp.float32)
  if padding is None:
    padding = jnp.zeros_like(inputs)
  if padding.ndim != inputs.ndim:
    raise errors.UserError(
      f'compute_stats: inputs {list(inputs.shape)} and padding'
      f' {list(padding.shape)}; expected as many dimensions'
    )
  mean, variance = compute_moments(inputs, padding, range(inputs.ndim))
  return NestedMap(
    mean_v=mean,
    std_v=jnp.sqrt(variance),
    max_v=jnp.max(jnp.abs(inputs * (1.0 - padding))),
  )


def top_k_accuracy(
  top_k: int,
  logits: jax.Array,
  label_ids: jax.Array | None = None,
  label_probs: jax.Array | None = None,
  weights: jax.Array | None = None,
) -> jax.Array:
  """Returns the share [] of labels that are among the best `top_k` classes.

  Args:
    top_k: number of classes.
    logits: [..., C].
    label_ids: [...], the labels.
    label_probs: [..., C], if there are no `label_ids`: the most likely class
      is the label.
    weights: [...], of the examples; None for 1.

  Raises:
    UserError: there are no labels.
  """
  if label_ids is None:
    if label_probs is None:
      raise errors.UserError(
        'top_k_accuracy: expected label_ids or label_probs'
      )
    label_ids = jnp.argmax(label_probs, axis=-1)
  if weights is None:
    weights = jnp.ones(logits.shape[:-1])
  least = jax.lax.top_k(logits, top_k)[0][..., -1]
  of_label = jnp.take_along_axis(logits, label_ids[..., None], axis=-1)
  is_correct = of_label[..., 0] >= least
  return jnp.sum(is_correct * weights) / jnp.maximum(1.0, jnp.sum(weights))


def scan_function(
  fn: Callable[..., Any], in_axis: int = 0
) -> Callable[..., Any]:
  """Returns a function that calls `fn` for each index of an axis in turn.

  Less memory is needed at a time. The layers of videos do not use it.

  Args:
    fn: maps arrays, or trees of them, of size 1 in the axis to arrays of any
      size in it, which are concatenated.
    in_axis: the axis, of all arrays.
  """

  def check(x: jax.Array):
    if x.ndim <= in_axis:
      raise errors.UserError(
        f'scan_function: in_axis is {in_axis}, and an array has the shape'
        f' {list(x.shape)}; expected a higher rank'
      )

  def split(x: jax.Array) -> jax.Array:
    check(x)
    return jnp.expand_dims(jnp.moveaxis(x, in_axis, 0), in_axis + 1)

  def join(x: jax.Array) -> jax.Array:
    check(x[0])
    x = jnp.moveaxis(x, 0, in_axis)
    return x.reshape(*x.shape[:in_axis], -1, *x.shape[in_axis + 2 :])

  def scanned(*args: Any) -> Any:
    slices = jax.tree.map(split, args)
    return jax.tree.map(join, jax.lax.map(lambda one: fn(*one), slices))

  return scanned
