"""Conformers; their numbers are held against Pax's in tests/pax."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from tests.pax import layer_cases

X = layer_cases.normal(2, 9, 8)
PADDINGS = layer_cases.paddings(9, 9, 5)


def _config(**fields):
  given = dict(input_dims=8, model_dims=8, kernel_size=3, atten_num_heads=2)
  return layers.Conformer.config(**(given | fields))


def test_padding_has_no_influence():
  layer = _config().Instantiate()
  variables = base_layer.unbox(layer.init(jax.random.key(0), X, PADDINGS))
  garbage = np.where(PADDINGS[..., None] > 0, 1e3, X).astype(np.float32)
  with base_layer.eval_mode():
    one, other = (
      layer.apply(variables, x, PADDINGS)[PADDINGS == 0] for x in (X, garbage)
    )
  np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_window_hides_what_is_outside():
  attention = layers.DotProductAttentionWithContext.config(
    input_dim=8, hidden_dim=8, num_heads=2, left_context=2, right_context=1
  )
  layer = layers.SelfAttentionWithNormAndResidual.config(
    self_atten_tpl=attention, norm_tpl=layers.LayerNorm.config(dim=8)
  ).Instantiate()
  variables = base_layer.unbox(layer.init(jax.random.key(0), X, 0 * PADDINGS))

  def target(x):
    return layer.apply(variables, x, 0 * PADDINGS)[:, 4].sum()

  seen = np.abs(jax.grad(target)(X)).max((0, 2)) > 0
  np.testing.assert_array_equal(np.flatnonzero(seen), [3, 4, 5])


def test_dropout_changes_training_only():
  layer = _config(dropout_prob=0.5).Instantiate()
  keys = {'params': jax.random.key(0), 'random': jax.random.key(1)}
  variables = base_layer.unbox(layer.init(keys, X, PADDINGS))
  trained, _ = layer.apply(
    variables, X, PADDINGS, rngs=keys, mutable=['non_trainable']
  )
  with base_layer.eval_mode():
    one, other = (layer.apply(variables, X, PADDINGS) for _ in range(2))
  np.testing.assert_array_equal(one, other)
  assert np.abs(trained - one).max() > 0.1


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'layer_order': 'conv_mhsa'}, "layer_order is 'conv_mhsa'"),
    ({'input_dims': 4}, 'output_dims is 8 and input_dims 4'),
    (
      {'input_dims': 4, 'fflayer_start_tpl': None},
      'input_dims is 4 and model_dims 8',
    ),
    ({'dropout_prob': 0.1, 'atten_dropout': 0.2}, 'atten_dropout is 0.2'),
    ({'lconv_tpl': None}, 'lconv_tpl is None'),
    (
      {'fflayer_weight_sharing': True, 'fflayer_start_tpl': None},
      'fflayer_start_tpl is None',
    ),
    (
      {
        'trans_atten_tpl': layers.SelfAttentionWithNormAndResidual.config(
          norm_policy='pre'
        )
      },
      'expected pre_layer_norm=None',
    ),
  ],
)
def test_fields_that_do_not_fit(fields, message):
  layer = _config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), X, PADDINGS)
