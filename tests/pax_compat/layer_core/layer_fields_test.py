"""Defaults of fields that are mutable dataclasses."""

import dataclasses

from pax_compat import base_layer


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
