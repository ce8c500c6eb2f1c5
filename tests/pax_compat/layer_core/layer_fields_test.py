"""Fields of layers: mutable defaults, `theta`, `HParams` of older code."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.layers import linears


@dataclasses.dataclass
class Precision:
  """An object without a hash."""

  bits: int = 8


def test_each_object_has_a_default_of_its_own():
  class Quantized(base_layer.BaseLayer):
    precision: Precision = Precision(bits=4)

  assert Quantized.config().precision == Precision(bits=4)
  first, second = (Quantized.config().Instantiate() for _ in range(2))
  assert first.precision == second.precision == Precision(bits=4)
  assert first.precision is not second.precision


def test_a_theta_of_ones_own():
  class Doubled(base_layer.Theta):
    def __init__(self, module):
      self.module = module

    def __getattr__(self, name):
      return 2 * super().__getattr__(name)

  class Descriptor:
    def __get__(self, obj, objtype=None):
      return Doubled(obj)

  class Own(linears.Linear):
    theta = Descriptor()

  x = jnp.ones([1, 3])
  fields = {'input_dims': 3, 'output_dims': 2}
  plain = linears.Linear.config(**fields).Instantiate()
  variables = plain.init(jax.random.key(0), x)
  own = Own.config(**fields).Instantiate()
  np.testing.assert_array_equal(
    own.apply(variables, x), 2 * plain.apply(variables, x)
  )


def test_hparams_that_derive_from_those_of_the_base_class():
  class Scale(base_layer.BaseLayer):
    class HParams(base_layer.BaseLayer.HParams):
      dims: int = 3

  assert Scale.HParams(dims=4).Instantiate().dims == 4
  assert Scale.HParams().dims == 3
