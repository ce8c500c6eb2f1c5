"""Layers that warn of large outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.layers import activations, quantization
from pax_compat.layers.quantization import overflow_check

_KEY = jax.random.key(0)


def _warnings(caplog, layer, variables, *inputs):
  caplog.clear()
  outputs = jax.jit(layer.apply)(variables, *inputs)
  jax.effects_barrier()
  return outputs, [
    record.getMessage()
    for record in caplog.records
    if record.getMessage().startswith('Overflow in')
  ]


@pytest.mark.parametrize('repeats', [0, 2])
def test_large_outputs_and_those_that_are_not_finite(caplog, repeats):
  config = quantization.FeedForwardOverflowCheck.config(
    name='ffn', input_dims=4, output_dims=4
  )
  if repeats:
    config = layers.Repeat.config(x_times=repeats, sub_tpl=config)
  layer = config.Instantiate()
  x = jnp.ones([2, 4])
  variables = layer.init(_KEY, x)
  assert not _warnings(caplog, layer, variables, x)[1]
  # Large in the first layer only: its outputs are 0 in the second.
  weights = jax.tree.map(jnp.ones_like, variables)
  if repeats:
    weights = jax.tree.map(lambda w: w.at[1].set(0), weights)
  [found] = _warnings(caplog, layer, weights, 20_000 * x)[1]
  assert found.startswith('Overflow in: FeedForward, ')
  assert ': values from 80001.0 to 80001.0, beyond -65504.0 to 65504' in found
  lost = jnp.full([2, 4], np.nan)
  assert 'nan' in _warnings(caplog, layer, variables, lost)[1][0]


def test_each_layer_of_a_vectorized_one_is_checked(caplog):
  layer = quantization.FeedForwardOverflowCheck.config(
    input_dims=4, output_dims=4
  ).Instantiate()
  variables = jax.tree.map(jnp.ones_like, layer.init(_KEY, jnp.ones([2, 4])))
  inputs = jnp.stack([jnp.ones([2, 4]), jnp.full([2, 4], 20_000.0)])
  with caplog.at_level('WARNING'):
    jax.vmap(lambda x: layer.apply(variables, x))(inputs)
    jax.effects_barrier()
  found = [r for r in caplog.records if 'Overflow in' in r.getMessage()]
  assert len(found) == 1


def _stack(**attention):
  config = layers.StackedTransformer.config(
    num_layers=2,
    model_dims=8,
    hidden_dims=16,
    num_heads=2,
    mask_self_attention=True,
  )
  block = config.transformer_layer_params_tpl
  block.tr_atten_tpl.set(**attention)
  block.tr_fflayer_tpl.activation_tpl = activations.GELU.config()
  return config


@pytest.mark.parametrize('combine_qkv', [False, True])
def test_checks_are_added_to_transformers(caplog, combine_qkv):
  config = _stack(combine_qkv=combine_qkv)
  before = str(config)
  checked = overflow_check.add_overflow_checks(config, -1.0, 1.0)
  assert str(config) == before
  batch = jnp.ones([2, 3, 8]), jnp.zeros([2, 3])
  plain, layer = config.Instantiate(), checked.Instantiate()
  variables = base_layer.unbox(plain.init(_KEY, *batch))
  outputs, found = _warnings(caplog, layer, variables, *batch)
  # Queries, keys, values, outputs and two feed-forward layers.
  assert len(found) == 2 * 6
  np.testing.assert_allclose(
    outputs, plain.apply(variables, *batch), rtol=1e-5, atol=1e-6
  )
  shapes = jax.eval_shape(lambda: base_layer.unbox(layer.init(_KEY, *batch)))
  assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, variables)


def test_layers_that_cannot_be_checked_are_refused():
  config = _stack()
  block = config.transformer_layer_params_tpl
  block.tr_atten_tpl.proj_tpl = quantization.AttentionProjection.config()
  with pytest.raises(errors.UserError, match='proj_tpl is .*AttentionProj.*'):
    overflow_check.add_overflow_checks(config)
