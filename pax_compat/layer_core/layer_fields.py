"""What each layer has: its weights by name, and how arrays are split."""

import copy
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import config as config_lib
from pax_compat.layer_core.sharding import SplitDimsMapping


class Theta:
  """A layer's own weights, cast to its compute dtype.

  A subclass may return others: a layer class has it as `theta`, by a descriptor
  whose `__get__` makes it.

  Attributes:
    module: the layer.
  """

  def __init__(self, module: Any):
    self.module = module

  def __getattr__(self, name: str) -> jax.Array:
    return self.module.get_theta(name)

  def __getitem__(self, name: str) -> jax.Array:
    return self.module.get_theta(name)


class WeightSharding(config_lib.Configurable):
  """Sharding of a layer's weights over the mesh.

  A layer with several weights declares a subclass `WeightSharding` with a field
  for each of them.

  Attributes:
    wt: mapping of the main weight: for each dimension a mesh axis, a tuple of
      mesh axes, or None (not split). None for the whole mapping replicates.
  """

  wt: SplitDimsMapping = None


class ActivationSharding(config_lib.Configurable):
  """Sharding of a layer's activations over the mesh.

  Attributes:
    out: mapping of the output, as in `WeightSharding`; None leaves it to the
      compiler.
  """

  out: SplitDimsMapping = None


def share_no_defaults(cls: type):
  """Gives each object a copy of a default that is a mutable dataclass.

  Python refuses such a default of a dataclass's field since 3.11. Call it
  before the class becomes one.
  """
  for name in cls.__dict__.get('__annotations__', {}):
    value = cls.__dict__.get(name)
    if (
      dataclasses.is_dataclass(value)
      and not isinstance(value, type)
      and type(value).__hash__ is None
    ):
      make = functools.partial(copy.deepcopy, value)
      setattr(cls, name, dataclasses.field(default_factory=make))


def check_dtype(layer: Any):
  """Raises a TypeError if the first field of a layer, `dtype`, is not a dtype.

  That is so if a config is called with as an argument of the class.
  """
  try:
    if isinstance(layer.dtype, config_lib.Config):
      raise TypeError
    jnp.dtype(layer.dtype)
  except TypeError:
    raise TypeError(
      f'{type(layer).__name__}: expected a dtype as the first argument, got'
      f' {layer.dtype!r}. Please use `layer_p.Instantiate()` instead of'
      ' `Layer(layer_p)`.'
    ) from None
