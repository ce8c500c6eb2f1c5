"""The attention block of Conformers.

Shapes: B batch, T time, D model dims. Masks broadcast to [B, N, T, T].
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.attentions.relative_attentions import (
  DotProductAttentionXL,
)
from pax_compat.layers.normalizations import norm_layers

# Policy -> names of the norms before and after the attention, and at the end.
_NORMS = {
  'pre': ('norm', None, None),
  'post': (None, 'norm', None),
  'post_skip': (None, None, 'norm'),
  'primer_hybrid': ('pre_norm', 'post_norm', None),
}


def _within_window(
  inputs: AttentionInputs,
  left: int | None,
  right: int | None,
  time_step: jax.Array | int | None,
) -> AttentionInputs:
  """Returns inputs whose mask hides sources outside a window.

  Args:
    inputs: of an attention.
    left: positions up to the target, inclusive; None for all.
    right: positions after the target; None for all.
    time_step: index of the first target among the sources; None for 0.
  """
  if left is None and right is None:
    return inputs
  targets = (time_step or 0) + jnp.arange(inputs.query.shape[1])
  distance = targets[:, None] - jnp.arange(inputs.key.shape[1])
  visible = jnp.ones(distance.shape, bool)
  if left is not None:
    visible &= distance < left
  if right is not None:
    visible &= distance >= -right
  mask = attention_masks.combine_masks(inputs.mask, visible[None, None])
  return inputs._replace(mask=mask)


class DotProductAttentionWithContext(DotProductAttention):
  """A `DotProductAttention` to a window around each position.

  All logits are computed; `LocalSelfAttention` computes the window only.

  Attributes:
    left_context: positions up to the target, inclusive; None for all.
    right_context: positions after the target; None for all.
  """

  left_context: int | None = None
  right_context: int | None = None

  def _encode(self, inputs, time_step=None):
    window = self.left_context, self.right_context
    return super()._encode(
      _within_window(inputs, *window, time_step), time_step
    )


class DotProductAttentionWithContextXL(
  DotProductAttentionWithContext, DotProductAttentionXL
):
  """A `DotProductAttentionXL` to a window around each position.

  All logits are computed; `LocalSelfAttentionXL` computes the window only.
  """


class SelfAttentionWithNormAndResidual(base_layer.BaseLayer):
  """Self-attention with a normalisation and a residual connection.

  The result is input_weight * inputs + residual_weight * attention.

  Attributes:
    residual_weight: factor of the attention's output.
    input_weight: factor of the inputs.
    self_atten_tpl: the attention.
    norm_tpl: the normalisation, copied if there are two.
    pre_layer_norm: True is the policy 'pre', False 'post_skip'; None leaves it
      to `norm_policy`.
    residual_dropout_prob: dropout probability of the attention's output.
    residual_dropout_tpl: this dropout.
    norm_policy: what is normalised: 'pre', the attention's input; 'post', its
      output; 'primer_hybrid', both; 'post_skip', the sum. Needs a
      `pre_layer_norm` of None.
  """

  residual_weight: float = 1.0
  input_weight: float = 1.0
  self_atten_tpl: Config = sub_config_field(DotProductAttentionWithContext)
  norm_tpl: Config = sub_config_field(norm_layers.LayerNorm)
  pre_layer_norm: bool | None = True
  residual_dropout_prob: float = 0.0
  residual_dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  norm_policy: str | None = None

  def setup(self):
    self._check_policy()
    for name in filter(None, _NORMS.get(self.unified_norm_policy(), ())):
      self.create_child(name, self.norm_tpl.clone())
    self.create_child('self_atten', self.self_atten_tpl)
    self.create_child(
      'residual_dropout',
      self.residual_dropout_tpl.clone(),
      keep_prob=1.0 - self.residual_dropout_prob,
    )

  def _check_policy(self):
    if self.pre_layer_norm is not None and self.norm_policy is not None:
      raise errors.UserError(
        'SelfAttentionWithNormAndResidual.norm_policy is'
        f' {self.norm_policy!r} and pre_layer_norm {self.pre_layer_norm};'
        ' expected pre_layer_norm=None'
      )
    errors.check_choice(self, 'norm_policy', (None, *_NORMS))

  def unified_norm_policy(self) -> str | None:
    """Returns the policy of `pre_layer_norm` and `norm_policy`."""
    if self.pre_layer_norm is None:
      return self.norm_policy
    return 'pre' if self.pre_layer_norm else 'post_skip'

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    atten_mask: attention_masks.Mask = None,
  ) -> jax.Array:
    """Returns the sum of inputs and attention, [B, T, D].

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; it is not attended to.
      atten_mask: an additional mask; None hides nothing. See
        `AttentionMask.of`.
    """
    before, after, at_end = (
      name and getattr(self, name)
      for name in _NORMS.get(self.unified_norm_policy(), (None,) * 3)
    )
    x = before(inputs) if before else inputs
    mask = attention_masks.AttentionMask.of(
      atten_mask, where='SelfAttentionWithNormAndResidual'
    ).restricted(self._padding_mask(paddings))
    length = x.shape[1]
    mask = attention_masks.fit(self.self_atten, mask, length, length)
    x, _ = self.self_atten(x, x, x, mask)
    x = after(x) if after else x
    outputs = (
      self.residual_dropout(x) * self.residual_weight
      + inputs * self.input_weight
    )
    outputs = at_end(outputs) if at_end else outputs
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def _padding_mask(self, paddings: jax.Array) -> jax.Array:
    """Returns the mask that hides padding, as boolean array."""
    sources = attention_masks.padding_mask(paddings)
    attention = self.self_atten_tpl
    windows = DotProductAttentionWithContext, DotProductAttentionWithContextXL
    if not issubclass(attention.cls, windows):
      return sources
    if attention.left_context is None and attention.right_context is None:
      return sources
    return sources & jnp.swapaxes(sources, 2, 3)
