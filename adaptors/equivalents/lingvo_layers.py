"""Layers with the arguments and outputs of Lingvo's, for translated graphs."""

from collections.abc import Callable
from typing import Any

import jax

from pax_compat import base_layer
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.graph import containers, wrappers


class Activation(base_layer.BaseLayer):
  """An activation function that passes paddings through.

  Attributes:
    fn: the function.
  """

  fn: Callable[[jax.Array], jax.Array] = REQUIRED

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> Any:
    """Returns the function of `inputs` [...], and `paddings` if given."""
    outputs = self.fn(inputs)
    return outputs if paddings is None else (outputs, paddings)


class ParallelRepeat(wrappers.ParallelRepeat):
  """As `wrappers.ParallelRepeat`, with Lingvo's outputs.

  With one argument it returns the first output only; with several a tuple, even
  of one output.
  """

  def __call__(self, *args) -> Any:
    """Returns the stacked outputs for stacked arguments [x_times, ...]."""
    outputs = containers.as_tuple(super().__call__(*args))
    return outputs[0] if len(args) == 1 else outputs


class MultiHeadedAttention(base_layer.BaseLayer):
  """Attention with the arguments and outputs of Lingvo's batch-major one.

  Shapes: B batch, T targets, S sources, D dims.

  Attributes:
    atten_tpl: the attention.
    packed_input: whether a segment mask replaces the paddings.
  """

  atten_tpl: Config = REQUIRED
  packed_input: bool = False

  def setup(self):
    self.create_child('atten', self.atten_tpl)

  def __call__(
    self,
    query_vec: jax.Array,
    key_vec: jax.Array,
    value_vec: jax.Array,
    paddings: jax.Array,
    segment_mask: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Computes the attention.

    Args:
      query_vec: [B, T, D].
      key_vec: [B, S, D].
      value_vec: [B, S, D].
      paddings: [B, S].
      segment_mask: [B, 1, T, S], 0 where a target attends to a source, else a
        large negative number.

    Returns:
      [B, T, D], and the attention weights, or None; see `DotProductAttention`.
    """
    if self.packed_input and segment_mask is not None:
      mask = segment_mask == 0
    else:
      mask = (paddings == 0)[:, None, None, :]
    return self.atten(query_vec, key_vec, value_vec, mask)


class TimeMajorStack(base_layer.BaseLayer):
  """A stack of Transformer layers, with the arguments of a time-major one.

  Shapes: T time, B batch, D dims.

  Attributes:
    stack_tpl: a `StackedTransformer`.
  """

  stack_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('stack', self.stack_tpl)

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array, None]:
    """Applies all layers.

    Args:
      inputs: [T, B, D].
      paddings: [T, B].

    Returns:
      [T, B, D], the paddings, and None in place of segment ids.
    """
    outputs = self.stack(inputs.swapaxes(0, 1), paddings.swapaxes(0, 1))
    return outputs.swapaxes(0, 1), paddings, None
