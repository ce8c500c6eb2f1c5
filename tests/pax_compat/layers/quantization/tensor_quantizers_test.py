"""Rounding of arrays as a layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers.quantization import quantization_hparams as hparams
from pax_compat.layers.quantization.tensor_quantizers import (
  TensorQuantizer,
  create_tensor_quantizer,
)

_X = jax.random.normal(jax.random.key(0), [4, 128])


def _error(**fields):
  quantizer = TensorQuantizer.config(precision=4, **fields).Instantiate()
  quantizer = quantizer.bind({})
  values, scale, zero = quantizer.quantize(_X, [1], squeeze_scale=False)
  rounded = quantizer.dequantize(values, scale, [1], zero)
  assert np.all(np.asarray(values) == np.round(values))
  return float(np.abs(rounded - _X).sum())


def test_clipping_and_zero_points_lower_the_error():
  tries = dict(min_clipping=0.6, num_optimize_clipping=8)
  plain = _error()
  assert _error(use_symmetric=False) < plain
  per_array = _error(**tries)
  assert per_array < plain
  assert _error(**tries, optimize_clipping_per_channel=True) < per_array
  assert _error(**tries, use_symmetric=False) < plain
  assert _error(clipping_coeff=0.7) != plain


def test_values_of_a_hand_computed_example():
  x = jnp.array([[0.0, 1.0, 2.0, 4.0], [-7.0, 3.0, -1.0, 5.0]])
  quantizer = TensorQuantizer.config(precision=3, add_scale_eps=False)
  values, scale, zero = quantizer.Instantiate().apply(
    {}, x, [1], True, jnp.int8, method='quantize'
  )
  assert values.tolist() == [[0, 1, 2, 3], [-3, 1, 0, 2]]
  assert values.dtype == jnp.int8 and zero is None
  np.testing.assert_allclose(scale, [4 / 3, 7 / 3], rtol=1e-6)
  quantizer.set(precision=8, use_symmetric=False)
  values, scale, zero = quantizer.Instantiate().apply(
    {}, x, [1], method='quantize'
  )
  assert values[0, [0, 1, 3]].tolist() == [-128, -64, 127]
  np.testing.assert_allclose(
    values * scale[:, None] - zero[:, None], x, atol=0.03
  )


def test_losses_of_training():
  config = TensorQuantizer.config(
    precision=2, quant_loss_weight=2.0, kurt_loss_weight=0.5
  )

  def losses(dtype):
    _, state = config.Instantiate().apply(
      {}, _X, None, False, dtype, method='quantize', mutable=True
    )
    return state.get(base_layer.AUX_LOSS, {})

  found = losses(None)
  assert set(found) == {'quant_loss', 'kurt_loss'}
  # The kurtosis of normal numbers is 3.
  assert abs(found['kurt_loss'].value - 0.5 * 1.2**2) < 0.2
  assert found['quant_loss'].value > 0
  assert not losses(jnp.int8)
  with base_layer.eval_mode(True):
    assert not losses(None)


def test_gradients_ignore_the_rounding():
  quantizer = TensorQuantizer.config(precision=3, stop_scale_gradient=True)

  def loss(x):
    values, scale, zero = quantizer.Instantiate().apply(
      {}, x, None, False, method='quantize'
    )
    assert zero is None
    return jnp.sum(values * scale * _X)

  grads = jax.grad(loss)(_X)
  np.testing.assert_allclose(grads, _X, rtol=1e-5)


def test_settings_of_inputs_and_weights():
  class Own(TensorQuantizer):
    """Another quantizer."""

  act = hparams.ActQuantizationParams(precision=5, override_quantizer_cls=Own)
  tpl = create_tensor_quantizer('x', act)
  assert (tpl.cls, tpl.precision, tpl.name) == (Own, 5, 'x')
  weights = hparams.WeightQuantizationParams(kurt=2.0, clipping_coeff=0.9)
  tpl = create_tensor_quantizer('x', weights)
  assert (tpl.cls, tpl.kurt) == (TensorQuantizer, 2.0)
  assert tpl.clipping_coeff == 0.9
  assert create_tensor_quantizer('x', None).precision is None


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(precision=24), 'precision is 24; expected 1 to 23'),
    (dict(min_clipping=0.5), 'expected both or neither'),
    (dict(optimize_clipping_per_channel=True), 'needs min_clipping'),
    (dict(clipping_coeff=2.0), 'clipping_coeff is 2.0; expected 0 to 1'),
    (
      dict(min_clipping=1.5, num_optimize_clipping=2),
      'expected a number between 0',
    ),
  ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
  with pytest.raises(errors.UserError, match=message):
    TensorQuantizer.config(**fields).Instantiate().init(jax.random.key(0))
