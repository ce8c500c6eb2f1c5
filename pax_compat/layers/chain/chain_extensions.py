"""Configs of chains, and small layers for them.

>>> from pax_compat.layers import chain
>>> mlp = chain.chain(
...   chain.feed_forward(4, 8),
...   chain.add_residual(chain.copy_n_times(2, chain.feed_forward(8, 8))),
... )
>>> [tpl.name for tpl in mlp.layers]
['feedforward', 'add_residual']
"""

import collections
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import base_layer, errors
from pax_compat.config import Config
from pax_compat.layers import activations, linears, paddings, repeats
from pax_compat.layers.chain.chain import Chain, as_stack


def chain(*layers_tpl: Config | None, **kwargs) -> Config:
  """Returns the config of a `Chain`, whose layers get different names."""
  return Chain.config(
    layers=_named(layers_tpl), **kwargs_with_name('chain', **kwargs)
  )


def copy_n_times(
  num_times: int, *layers_tpl: Config | None, **kwargs
) -> Config:
  """Returns the config of a chain of copies, each with separate weights."""
  copies = [copy.deepcopy(tpl) for tpl in layers_tpl * num_times]
  return chain(*copies, **kwargs_with_name('chain_copy_n_times', **kwargs))


def repeat(x_times: int, *layers_tpl: Config | None, **kwargs) -> Config:
  """Returns the config of a `Repeat` of a chain.

  The chain maps its arguments to as many outputs, of their shapes, which the
  next repeat takes. The output is a tuple, also of one array.
  """
  return repeats.Repeat.config(
    x_times=x_times,
    sub_tpl=chain(*layers_tpl),
    positional_args_as_scan_carry=True,
    **kwargs_with_name('chain_repeat', **kwargs),
  )


def _named(layers_tpl: Sequence[Config | None]) -> list[Config]:
  """Returns copies of templates; names that several have get a number."""
  tpls = [copy.deepcopy(tpl) for tpl in layers_tpl if tpl is not None]
  names = [tpl.name or 'layers' for tpl in tpls]
  seen = collections.Counter()
  for tpl, name in zip(tpls, names, strict=True):
    tpl.name = f'{name}{seen[name]}' if names.count(name) > 1 else name
    seen[name] += 1
  return tpls


def kwargs_with_name(default_name: str, **kwargs) -> dict[str, Any]:
  """Returns keyword arguments, of which `name` has a default."""
  return {'name': default_name, **kwargs}


class ApplyPadding(base_layer.BaseLayer):
  """Sets padded positions to 0.

  Attributes:
    axis: must be 0: paddings have the first dimensions of the inputs.
  """

  axis: int = 0

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Returns `inputs` [B, T, ...] for `paddings` [B, T] or [B, T, 1]."""
    if self.axis:
      raise errors.UserError(f'ApplyPadding.axis is {self.axis}; expected 0')
    return _apply_paddings(inputs, paddings)


_apply_paddings = paddings.apply_paddings


def apply_padding(**kwargs) -> Config:
  """Returns the config of an `ApplyPadding`."""
  return ApplyPadding.config(**kwargs_with_name('pad', **kwargs))


class AddResidual(Chain):
  """A chain to whose first output the first argument is added."""

  def __call__(self, *args, **kwargs) -> Any:
    first, *rest = as_stack(super().__call__(*args, **kwargs))
    return (first + args[0], *rest) if rest else first + args[0]


def add_residual(*layers: Config | None, **kwargs) -> Config:
  """Returns the config of an `AddResidual`."""
  return AddResidual.config(
    layers=_named(layers), **kwargs_with_name('add_residual', **kwargs)
  )


class DictToArgs(base_layer.BaseLayer):
  """Takes arrays from a dictionary.

  Attributes:
    keys: their names.
  """

  keys: Sequence[str] = ()

  def __call__(self, input_batch: Mapping[str, jax.Array]) -> Any:
    """Returns the arrays: a tuple, or the only one."""
    missing = [key for key in self.keys if input_batch.get(key) is None]
    if missing:
      raise errors.UserError(
        f'DictToArgs: the batch has no {missing[0]!r}'
        + errors.did_you_mean(missing[0], list(input_batch))
      )
    found = tuple(input_batch[key] for key in self.keys)
    return found[0] if len(found) == 1 else found


def dict_to_args(*keys: str, **kwargs) -> Config:
  """Returns the config of a `DictToArgs`."""
  return DictToArgs.config(
    keys=keys, **kwargs_with_name('dict_to_args', **kwargs)
  )


class LogArgs(base_layer.BaseLayer):
  """Logs its arguments when it is traced, and returns nothing.

  Attributes:
    message: text before them; None for none.
    log_values: whether arrays are logged, and not only their shapes.
  """

  message: str | None = None
  log_values: bool = False

  def __call__(self, *args, **kwargs) -> None:
    named = {**{str(i): x for i, x in enumerate(args)}, **kwargs}
    for name, value in named.items():
      shape = getattr(value, 'shape', None)
      text = str(value) if self.log_values or shape is None else str(shape)
      logging.info('%s %s: %s', self.message or 'LogArgs', name, text)


def log_args(
  message: str | None = None, log_values: bool = False, **kwargs
) -> Config:
  """Returns the config of a `LogArgs`."""
  return LogArgs.config(
    message=message or '',
    log_values=log_values,
    **kwargs_with_name('log_args', **kwargs),
  )


class FullLike(base_layer.BaseLayer):
  """An array of the inputs' shape with one value.

  Attributes:
    fill_value: the value.
  """

  fill_value: float = 1.0

  def __call__(self, inputs: jax.Array) -> jax.Array:
    return jnp.full_like(inputs, self.fill_value)


def full_like(fill_value: float, **kwargs) -> Config:
  """Returns the config of a `FullLike`."""
  return FullLike.config(
    fill_value=fill_value, **kwargs_with_name('full_like', **kwargs)
  )


def feed_forward(
  input_dims: int,
  output_dims: int,
  activation_tpl: Config | None = None,
  **kwargs,
) -> Config:
  """Returns the config of a `FeedForward`, by default without activation."""
  return linears.FeedForward.config(
    input_dims=input_dims,
    output_dims=output_dims,
    activation_tpl=activation_tpl or activations.Identity.config(),
    **kwargs_with_name('feedforward', **kwargs),
  )
