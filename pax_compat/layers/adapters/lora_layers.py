"""Projections with a low-rank update (LoRA), https://arxiv.org/abs/2106.09685.

The weight is `w` plus the product of `lora_a` and `lora_b`, which is 0 at
first. To train the update only, set the learner's `bprop_variable_inclusion` to
`[r'^.*lora.*$']`.

Shapes: I input dims, O output dims, R rank, D model dims, N heads, H dims of a
head.
"""

from collections.abc import Sequence

import jax
from fiddle import daglish

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config
from pax_compat.layers import linears, transformers
from pax_compat.layers.attentions import attention_projections

# What of a model's weights is trained.
TRAINED = r'^.*lora.*$'


class _Lora:
  """Mixin: the update of the weight `w`."""

  def _create_update(self, leading: Sequence[int], inputs: int, outputs: int):
    init = self.lora_init or getattr(self, 'weight_init', None)
    for name, size, own in (
      ('lora_a', inputs, init),
      ('lora_b', outputs, WeightInit.Constant(0.0)),
    ):
      shape = [*leading, size, self.rank]
      self.create_variable(name, WeightHParams(shape, own))

  def get_theta(self, name: str) -> jax.Array:
    """Returns a weight; `w` with its update."""
    value = super().get_theta(name)
    # `w` is created, and returned, before its update.
    if name != 'w' or not self.has_variable(base_layer.PARAMS, 'lora_b'):
      return value
    update = self.einsum(
      '...dr,...nr->...dn', self.theta.lora_a, self.theta.lora_b
    )
    return value + update.reshape(value.shape)


class LoraLinear(_Lora, linears.Linear):
  """A `Linear` with a low-rank update.

  Attributes:
    rank: R.
    lora_init: initializer of `lora_a` [I, R]; None takes `weight_init`.
  """

  rank: int = REQUIRED
  lora_init: WeightInit | None = None

  def setup(self):
    super().setup()
    self._create_update([], self.input_dims, self.output_dims)


class LoraAttentionProjection(_Lora, attention_projections.AttentionProjection):
  """An `AttentionProjection` with a low-rank update.

  Attributes:
    rank: R.
    lora_init: initializer of `lora_a` [D, R]; None takes `params_init`.
  """

  rank: int = REQUIRED
  lora_init: WeightInit | None = None

  def setup(self):
    super().setup()
    heads = self.num_heads * self.dim_per_head
    self._create_update([], self.input_dim, heads)


class LoraCombinedQKVProjection(
  _Lora, attention_projections.CombinedQKVProjectionLayer
):
  """A `CombinedQKVProjectionLayer` with a low-rank update of each projection.

  Attributes:
    rank: R.
    lora_init: initializer of `lora_a` [3, D, R]; None takes `params_init`.
  """

  rank: int = REQUIRED
  lora_init: WeightInit | None = None

  def setup(self):
    super().setup()
    heads = self.num_heads * self.dim_per_head
    self._create_update([3], self.input_dim, heads)


_ATTENTION = {
  'proj_tpl': LoraAttentionProjection,
  'combined_qkv_proj_tpl': LoraCombinedQKVProjection,
}
_TARGETS = ('all', 'attention', 'mlp')


def set_lora(config: Config, rank: int = 8, target_layers: str = 'all'):
  """Gives the projections of all Transformer layers in a config an update.

  Args:
    config: config of a model, a task or a layer; it is changed in place.
    rank: R.
    target_layers: 'attention', 'mlp' (the feed-forward layers) or 'all'.

  Raises:
    UserError: the target is unknown.
  """
  errors.check_known('target_layers', target_layers, _TARGETS)
  found = {id(x): x for x, _ in daglish.iterate(config) if _is_layer(x)}
  for tpl in found.values():
    if target_layers != 'attention':
      feed_forward = tpl.tr_fflayer_tpl.fflayer_tpl
      linear = feed_forward.linear_tpl
      feed_forward.linear_tpl = _as(linear, LoraLinear, rank)
    if target_layers != 'mlp':
      for name, cls in _ATTENTION.items():
        old = getattr(tpl.tr_atten_tpl, name, None)
        if old is not None:
          setattr(tpl.tr_atten_tpl, name, _as(old, cls, rank))


def _is_layer(value) -> bool:
  return (
    isinstance(value, Config)
    and isinstance(value.cls, type)
    and issubclass(value.cls, transformers.Transformer)
  )


def _as(tpl: Config, cls: type[base_layer.BaseLayer], rank: int) -> Config:
  """Returns a template of `cls` with the fields of `tpl`."""
  if not issubclass(cls, tpl.cls):
    raise errors.UserError(
      f'{config_lib.class_name(tpl)} cannot become a {cls.__name__}, which is'
      ' not its subclass'
    )
  return cls.config(**{**config_lib.set_fields(tpl.clone()), 'rank': rank})
