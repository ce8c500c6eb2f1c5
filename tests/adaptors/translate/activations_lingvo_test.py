"""Activations against Lingvo's, run for real."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import VariableMap
from pax_compat.layers import activations
from tests.adaptors.translate.parity import check_pair

# From -5 to 5, the kinks of the functions left out.
X = np.linspace(-5, 5, 40).reshape(4, 10).astype(np.float32)

OURS = {
  'NONE': activations.Identity.config(),
  'RELU': activations.ReLU.config(),
  'RELU6': activations.ReLU6.config(),
  'LEAKY_RELU': activations.LeakyReLU.config(negative_slope=0.2),
  'SQUARED_RELU': activations.SquaredReLU.config(),
  'SIGMOID': activations.Sigmoid.config(),
  'TANH': activations.Tanh.config(),
  'GELU': activations.GELU.config(approximate=False),
  'GELU_APPROXIMATE': activations.GELU.config(approximate=True),
  'GELU_RAW': activations.GELU.config(approximate=True),
  'SWISH': activations.Swish.config(),
  'SILU': activations.SiLU.config(),
  'SOFTPLUS': activations.Softplus.config(),
}


@pytest.fixture(scope='module')
def lingvo():
  return lingvo_runtime.module('lingvo.core.activations')


@pytest.mark.parametrize('name', OURS)
def test_activation(lingvo, name):
  check_pair(
    lingvo.ActivationLayer.Params().Set(name='act', activation=name),
    OURS[name],
    VariableMap([]),
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )


def test_every_activation_of_lingvo_is_compared(lingvo):
  """But for the gated ones, which here are gates of feed-forward layers."""
  single = {name for name in lingvo._ACTIVATIONS if not name.endswith('GLU')}
  assert single == set(OURS)
