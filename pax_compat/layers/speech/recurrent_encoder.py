"""An encoder of speech by convolutions and recurrent layers.

Shapes: B batch, S time of the input, F frequency bins, C channels, T time of
the output, D its dims.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.paddings import apply_paddings
from pax_compat.nested_map import NestedMap


class RecurrentSpeechEncoder(base_layer.BaseLayer):
  """Convolutions over time and frequency, then recurrent layers.

  As in Listen, Attend and Spell, https://arxiv.org/abs/1508.01211, with
  convolutions that shorten the time, https://arxiv.org/abs/1610.03022.

  Attributes:
    pad_steps: number of zeros that are added at the end of the time, so that
      the convolutions see the end of the longest example as that of others.
    conv_tpls: the convolutions, such as `ConvBNActWithPadding`.
    rnn_input_dims: dims of the first recurrent layer's input: those of the
      convolutions' output, and zeros behind them.
    rnn_tpls: the recurrent layers, such as `BidirectionalFrnn`.
    residual_start: the number, from 1 on, of the first recurrent layer whose
      input is added to an output; 0 for no residuals.
    residual_stride: number of layers per residual.
    proj_tpls: a projection after each recurrent layer but perhaps the last,
      such as `PaddedProjection`.
  """

  pad_steps: int = 0
  conv_tpls: Sequence[Config] = REQUIRED
  rnn_input_dims: int = REQUIRED
  rnn_tpls: Sequence[Config] = REQUIRED
  residual_start: int = 0
  residual_stride: int = 1
  proj_tpls: Sequence[Config] = ()

  def setup(self):
    if len(self.proj_tpls) > len(self.rnn_tpls):
      raise errors.UserError(
        f'{type(self).__name__} has {len(self.proj_tpls)} proj_tpls and'
        f' {len(self.rnn_tpls)} rnn_tpls; expected at most as many'
      )
    for kind in ('conv', 'rnn', 'proj'):
      for i, tpl in enumerate(getattr(self, f'{kind}_tpls')):
        self.create_child(f'{kind}_{i}', tpl)

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Encodes.

    Args:
      inputs: [B, S, F, C], a spectrogram.
      paddings: [B, S], 1 where a frame is padding; examples are padded at their
        end.

    Returns:
      The encoded speech [B, T, D], which is 0 at padding, and its paddings
      [B, T].
    """
    end = [(0, 0), (0, self.pad_steps)]
    hidden = jnp.pad(inputs, [*end, (0, 0), (0, 0)])
    paddings = jnp.pad(paddings, end, constant_values=1)
    for i in range(len(self.conv_tpls)):
      hidden, paddings = getattr(self, f'conv_{i}')(hidden, paddings)
    hidden = self._rnn_inputs(hidden)
    source = hidden
    for i in range(len(self.rnn_tpls)):
      steps = NestedMap(
        act=hidden, padding=paddings[..., None].astype(hidden.dtype)
      )
      outputs, _ = getattr(self, f'rnn_{i}')(steps)
      place = i + 1 - self.residual_start
      if self.residual_start > 0 and place >= 0:
        if place % self.residual_stride == 0:
          source = hidden
        if place % self.residual_stride == self.residual_stride - 1:
          outputs = outputs + source
      if i < len(self.proj_tpls):
        outputs = getattr(self, f'proj_{i}')(outputs, paddings)
      hidden = outputs
    return apply_paddings(hidden, paddings), paddings

  def _rnn_inputs(self, hidden: jax.Array) -> jax.Array:
    """Joins frequencies and channels, and adds zeros: [B, T, dims].

    Raises:
      UserError: there are more than `rnn_input_dims`.
    """
    hidden = hidden.reshape([*hidden.shape[:2], -1])
    missing = self.rnn_input_dims - hidden.shape[-1]
    if missing < 0:
      raise errors.UserError(
        f'{type(self).__name__}.rnn_input_dims is {self.rnn_input_dims}; the'
        f' output of the convolutions has {hidden.shape[-1]} dims'
      )
    return jnp.pad(hidden, [(0, 0), (0, 0), (0, missing)])
