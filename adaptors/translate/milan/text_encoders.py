"""What milan's encoders of texts are made of: functions in a graph of layers.

Shapes: B batch, T time, D dims.
"""

import jax
import jax.numpy as jnp

from adaptors.equivalents import lingvo_layers
from adaptors.translate.builder.builder_parts import translates_part
from adaptors.translate.functions import translates_fn
from adaptors.translate.mt import transformer
from adaptors.translate.registry import Translated
from adaptors.translate.view import ParamsView

_IN_STACK = (
  'lingvo.tasks.milan.transformers.GetTransformerStackWithEmbeddingInput'
  '.<locals>'
)


@translates_part('lingvo.tasks.mt.layers.TransformerStack')
def stack(view: ParamsView) -> Translated | None:
  """Returns a time-major stack, as a layer of a graph."""
  view.require('packed_input', False)
  translated = transformer.stack(view)
  if translated is None:
    return None
  return Translated(
    lingvo_layers.TimeMajorStack.config(stack_tpl=translated.config),
    translated.variables.under('', 'stack'),
  )


@translates_fn(f'{_IN_STACK}.ConvertInputs')
def time_major(
  features: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns features [T, B, D], and paddings [T, B].

  Args:
    features: [B, T, D].
    lengths: [B], the number of positions that are not padding.
  """
  positions = jnp.arange(features.shape[1])[:, None]
  paddings = (positions >= lengths[None, :]).astype(features.dtype)
  return jnp.swapaxes(features, 0, 1), paddings


@translates_fn(f'{_IN_STACK}.<lambda>')
def first_position(t: jax.Array) -> jax.Array:
  """Returns the first position [B, D] of `t` [T, B, D]."""
  return t[0]
