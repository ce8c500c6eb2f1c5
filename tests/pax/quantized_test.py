"""Quantized layers against Pax's: the same integers, scales and outputs."""

import functools

import numpy as np
import pytest

from pax_compat.layers import quantization
from pax_compat.layers.quantization import quantization_hparams
from tests.pax import cases, quantized

_recorded = functools.cache(cases.read)


def _layer(layer, mode, settings, act, fields):
  return (
    getattr(quantization, layer)
    .config(
      quantization=quantized.quantization(
        quantization_hparams, mode, settings, act
      ),
      **fields,
    )
    .Instantiate()
  )


_ours = functools.cache(lambda: quantized.computed(_layer))


@pytest.mark.parametrize('case', sorted(_recorded(quantized.GROUP)))
def test_quantized_layers_are_paxs(case):
  recorded, ours = _recorded(quantized.GROUP)[case], _ours()[case]
  assert set(ours) == set(recorded)
  for name, expected in recorded.items():
    found = np.asarray(ours[name], np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
