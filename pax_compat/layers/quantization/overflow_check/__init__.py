"""Layers that warn of outputs beyond the range of a small float type."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.config import Config, instance_field
from pax_compat.layers import linears, transformers
from pax_compat.layers.attentions import attention_projections
from pax_compat.layers.quantization import utils


@dataclasses.dataclass
class OverflowLimits:
  """The range that outputs should be in; its default is that of float16.

  Attributes:
    max_val: the largest value.
    min_val: the smallest.
  """

  max_val: float = float(jnp.finfo(jnp.float16).max)
  min_val: float = float(jnp.finfo(jnp.float16).min)


class OverflowMethods:
  """Mixin of layers that have the field `overflow_limits`.

  It is not a layer, since its fields would override those of the layer that
  follows it; `OverflowChecker` is.
  """

  def check_overflow(self, inputs: jax.Array, class_name: str, name: str):
    """Logs a warning if values are outside of the limits, or not finite.

    Args:
      inputs: the values.
      class_name: name of the layer's class, for the message.
      name: name of the layer, likewise.
    """
    limits = self.overflow_limits
    values = jax.lax.stop_gradient(inputs)

    def warn(low, high):
      # Where layers are vectorized, both branches run for each of them.
      if not limits.min_val <= low <= high <= limits.max_val:
        logging.warning(
          f'Overflow in: {class_name}, {name}: values from {low} to {high},'
          f' beyond {limits.min_val} to {limits.max_val}'
        )

    low, high = values.min(), values.max()
    jax.lax.cond(
      (limits.min_val <= low) & (high <= limits.max_val),
      lambda *_: None,
      lambda *ends: jax.debug.callback(warn, *ends),
      low,
      high,
    )


class OverflowChecker(OverflowMethods, base_layer.BaseLayer):
  """Base class of layers that call `check_overflow`.

  Attributes:
    overflow_limits: the limits.
  """

  overflow_limits: OverflowLimits = instance_field(OverflowLimits)


class _CheckedOutputs(OverflowMethods):
  """Mixin of layers with one array of outputs, which is checked.

  Attributes:
    CLASS_NAME: name of the layer's class in messages.
  """

  CLASS_NAME: ClassVar[str]

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` as the layer without checks does."""
    outputs = super().__call__(inputs)
    self.check_overflow(outputs, self.CLASS_NAME, self.name)
    return outputs


class FeedForwardOverflowCheck(_CheckedOutputs, linears.FeedForward):
  """A feed-forward layer whose outputs are checked.

  Attributes:
    overflow_limits: the limits.
  """

  CLASS_NAME = 'FeedForward'

  overflow_limits: OverflowLimits = instance_field(OverflowLimits)


class AttentionProjectionOverflowCheck(
  _CheckedOutputs, attention_projections.AttentionProjection
):
  """A projection whose outputs are checked.

  Attributes:
    overflow_limits: the limits.
  """

  CLASS_NAME = 'AttentionProjection'

  overflow_limits: OverflowLimits = instance_field(OverflowLimits)


class OneHeadedAttentionProjectionOverflowCheck(
  _CheckedOutputs, attention_projections.OneHeadedAttentionProjection
):
  """A projection into one head whose outputs are checked.

  Attributes:
    overflow_limits: the limits.
  """

  CLASS_NAME = 'OneHeadedAttentionProjection'

  overflow_limits: OverflowLimits = instance_field(OverflowLimits)


class CombinedQKVProjectionLayerOverflowCheck(
  OverflowMethods, attention_projections.CombinedQKVProjectionLayer
):
  """Projections whose outputs are checked.

  Attributes:
    overflow_limits: the limits.
  """

  overflow_limits: OverflowLimits = instance_field(OverflowLimits)

  def __call__(
    self, inputs: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Maps `inputs` as `CombinedQKVProjectionLayer` does."""
    outputs = super().__call__(inputs)
    for kind, x in zip('qkv', outputs, strict=True):
      self.check_overflow(x, f'CombinedQKVProjection {kind}', self.name)
    return outputs


_PROJECTIONS = {
  'proj_tpl': AttentionProjectionOverflowCheck,
  'combined_qkv_proj_tpl': CombinedQKVProjectionLayerOverflowCheck,
  'headless_proj_tpl': OneHeadedAttentionProjectionOverflowCheck,
}


def add_overflow_checks(
  task_p: Config,
  max_val: float = OverflowLimits.max_val,
  min_val: float = OverflowLimits.min_val,
) -> Config:
  """Returns a task whose Transformers check the outputs of their products.

  Args:
    task_p: the config of the task, or of a model. It is not changed.
    max_val: see `OverflowLimits`.
    min_val: likewise.

  Raises:
    UserError: a layer cannot be checked: it is quantized, or another one.
  """
  limits = OverflowLimits(max_val, min_val)
  task_p = task_p.clone()
  for tpl in utils.find_target_tpl(task_p, transformers.Transformer):
    feed_forward = tpl.tr_fflayer_tpl
    if feed_forward is not None:
      _check(feed_forward, 'fflayer_tpl', FeedForwardOverflowCheck, limits)
    for attention in (tpl.tr_atten_tpl, tpl.cross_atten_tpl):
      for name, cls in _PROJECTIONS.items():
        if getattr(attention, name, None) is not None:
          _check(attention, name, cls, limits)
  return task_p


def _check(owner: Config, name: str, cls: type, limits: OverflowLimits):
  """Replaces a template by that of a layer that is checked, in place."""
  tpl = getattr(owner, name, None)
  if tpl is None or not issubclass(cls, tpl.cls):
    found = None if tpl is None else config_lib.class_name(tpl)
    raise errors.UserError(
      f'{config_lib.class_name(owner)}.{name} is {found}, whose outputs cannot'
      f' be checked; expected {cls.__bases__[-1].__name__}'
    )
  fields = config_lib.set_fields(tpl)
  setattr(owner, name, cls.config(**fields, overflow_limits=limits))
