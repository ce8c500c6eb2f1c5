"""Token predictions and losses of sequence models.

Shapes: B batch, T time, D model dims, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.nested_map import NestedMap


def predictions(logits: jax.Array) -> NestedMap:
  """Returns `logits` [..., V], and `probs` and `log_probs` in their dtype."""
  wide = logits.astype(jnp.float32)
  return NestedMap(
    logits=logits,
    log_probs=jax.nn.log_softmax(wide).astype(logits.dtype),
    probs=jax.nn.softmax(wide).astype(logits.dtype),
  )


def xent(
  softmax: Callable[..., NestedMap], inputs: jax.Array, labels: NestedMap
) -> NestedMap:
  """Computes the loss of tokens.

  Args:
    softmax: a softmax layer.
    inputs: [B, T, D].
    labels: `class_weights` [B, T], and `class_ids` [B, T] int or
      `class_probabilities` [B, T, V].

  Returns:
    The output of the softmax, and `per_token_xent` [B, T] (weighted), its sum
    over time `per_sequence_xent` [B], and the average `total_loss` [], without
    auxiliary losses of layers.
  """
  output = softmax(
    inputs,
    class_weights=labels.class_weights,
    class_ids=labels.get('class_ids'),
    class_probabilities=labels.get('class_probabilities'),
  )
  weights = labels.class_weights.astype(jnp.float32)
  output.per_token_xent = output.per_example_xent * weights
  output.per_sequence_xent = jnp.sum(output.per_token_xent, axis=-1)
  output.total_loss = output.avg_xent
  return output


def negative_entropy(output: NestedMap, weights: jax.Array) -> jax.Array:
  """Returns the mean over tokens of the predictions' negative entropy, [].

  Args:
    output: output of a softmax.
    weights: [B, T], weights of the tokens.

  Raises:
    UserError: the softmax returned no logits.
  """
  if 'logits' not in output:
    raise errors.UserError(
      'entropy_loss_weight needs logits, which a softmax with a chunk_size does'
      ' not return; expected chunk_size=0'
    )
  log_probs = jax.nn.log_softmax(output.logits.astype(jnp.float32))
  each = jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
  total = jnp.sum(weights)
  return jnp.sum(each * weights) / jnp.maximum(total, 1e-6)


def loss_or_predictions(
  softmax: Callable[..., NestedMap],
  inputs: jax.Array,
  labels: NestedMap | None,
) -> NestedMap:
  """Returns `xent` with labels, else `predictions`.

  Args:
    softmax: a softmax layer.
    inputs: [B, T, D].
    labels: see `xent`; or None.
  """
  if labels is None:
    return predictions(softmax.get_logits(inputs))
  return xent(softmax, inputs, labels)
