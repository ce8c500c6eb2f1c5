"""Questions about configs of layers."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from pax_compat import errors
from pax_compat.config import Config, field_names, is_set
from pax_compat.layer_core import child_layers


def is_sublayer_template_or_instance(val: Any) -> bool:
  """Whether `val` is a layer, its config, or a list or dict of these."""
  if isinstance(val, Config):
    return isinstance(val.cls, type) and issubclass(val.cls, nn.Module)
  if isinstance(val, nn.Module):
    return True
  if isinstance(val, Mapping):
    val = list(val.values()) if all(isinstance(k, str) for k in val) else []
  if isinstance(val, list | tuple):
    layers = [is_sublayer_template_or_instance(v) for v in val if v is not None]
    return bool(layers) and all(layers)
  return False


def compatible_hparams(hparams1: Config, hparams2: Config) -> bool:
  """Whether two configs are equal but for their names."""
  one, other = hparams1.clone(), hparams2.clone()
  one.name = other.name = ''
  return one == other


def get_template_fields(template: Config) -> list[str]:
  """Returns the names of the fields of a config.

  Raises:
    UserError: it is not a config.
  """
  if not isinstance(template, Config):
    raise errors.UserError(
      f'get_template_fields: expected a config, got {template!r}'
    )
  return field_names(template)


def assert_has_shape(t: jax.Array, shape: Sequence[int]):
  """Raises a UserError unless `t` has a shape, in which -1 is any size."""
  fits = t.ndim == len(shape) and all(
    want in (-1, size) for size, want in zip(t.shape, shape, strict=True)
  )
  if not fits:
    raise errors.UserError(
      f'an array has the shape {tuple(t.shape)}; expected {tuple(shape)}'
    )


def copy_base_hparams(source: Any, target: Any):
  """Sets the fields that children inherit, unless `target` sets them.

  Args:
    source: a layer, or a config, of which the fields that it sets are copied.
    target: a layer, not yet in use, or its config; it is modified.
  """
  for field in child_layers.INHERITED:
    if isinstance(source, Config) and not is_set(source, field):
      continue
    if isinstance(target, Config):
      if not is_set(target, field) or getattr(target, field) is None:
        setattr(target, field, copy.deepcopy(getattr(source, field)))
    elif _is_default(target, field):
      object.__setattr__(target, field, getattr(source, field))


def _is_default(layer: nn.Module, field: str) -> bool:
  value = getattr(layer, field)
  if field == 'fprop_dtype':  # A layer computes in its `dtype` by default.
    return value in (None, type(layer).dtype)
  return value == getattr(type(layer), field)


def config_of(layer: nn.Module) -> Config:
  """Returns a config with the fields of a layer; of layers in them, too."""
  config = Config(type(layer))
  for name in field_names(config):
    value = getattr(layer, name)
    is_layer = isinstance(value, nn.Module)
    setattr(config, name, config_of(value) if is_layer else value)
  return config
