"""Lingvo's activations by name, as JAX functions and as layers."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from adaptors.translate import tensorflow_functions as tf_functions
from adaptors.translate.functions import translates_fn
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.layers import activations


class Activation(NamedTuple):
  """One activation.

  Attributes:
    fn: the function.
    layer: returns the config of the layer that computes it; None if there is
      no such layer.
  """

  fn: Callable[[jax.Array], jax.Array]
  layer: Callable[[], Config] | None = None


def squared_relu(x):
  """Lingvo's `SQUARED_RELU`."""
  return jnp.square(jax.nn.relu(x))


def raw_gelu(x):
  """Lingvo's `GELU_RAW`."""
  inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
  return 0.5 * x * (1 + jnp.tanh(inner))


def gated(x, activation):
  """Returns half of the last dimension, times a function of the other half."""
  first, second = jnp.split(x, 2, axis=-1)
  return first * activation(second)


def _gate(activation) -> Activation:
  return Activation(functools.partial(gated, activation=activation))


def _gelu(fn, approximate: bool) -> Activation:
  layer = functools.partial(activations.GELU.config, approximate=approximate)
  return Activation(fn, layer)


# By the names in `lingvo.core.activations`.
ACTIVATIONS = {
  'NONE': Activation(tf_functions.identity, activations.Identity.config),
  'RELU': Activation(jax.nn.relu, activations.ReLU.config),
  'RELU6': Activation(jax.nn.relu6),
  'LEAKY_RELU': Activation(tf_functions.leaky_relu),
  'SIGMOID': Activation(jax.nn.sigmoid, activations.Sigmoid.config),
  'TANH': Activation(jnp.tanh, activations.Tanh.config),
  'GELU': _gelu(tf_functions.gelu, approximate=False),
  'GELU_APPROXIMATE': _gelu(
    functools.partial(tf_functions.gelu, approximate=True), approximate=True
  ),
  'GELU_RAW': Activation(raw_gelu),
  'SWISH': Activation(jax.nn.silu, activations.SiLU.config),
  'SILU': Activation(jax.nn.silu, activations.SiLU.config),
  'SOFTPLUS': Activation(jax.nn.softplus),
  'SQUARED_RELU': Activation(squared_relu, activations.SquaredReLU.config),
  'GLU': _gate(jax.nn.sigmoid),
  'BILINEAR_GLU': _gate(tf_functions.identity),
  'RELU_GLU': _gate(jax.nn.relu),
  'GELU_GLU': _gate(tf_functions.gelu),
  'SWISH_GLU': _gate(jax.nn.silu),
}
for _name, _activation in ACTIVATIONS.items():
  translates_fn(f'lingvo.core.activations._ACTIVATIONS.{_name}')(_activation.fn)

LAYERS = {name: a.layer for name, a in ACTIVATIONS.items() if a.layer}
# By the names in `lingvo.core.gshard_builder`.
GSHARD_LAYERS = {
  'relu': LAYERS['RELU'],
  'gelu': LAYERS['GELU_APPROXIMATE'],
  'silu': LAYERS['SILU'],
  'sqr_relu': LAYERS['SQUARED_RELU'],
}


def layer(view: ParamsView, field: str) -> Config:
  """Returns the config of the activation layer that a field names."""
  name = view.get(field)
  if name not in LAYERS:
    known = ', '.join(sorted(LAYERS))
    view.issue(field, f'{name!r} is not translated, only {known}')
    name = 'NONE'
  return LAYERS[name]()
