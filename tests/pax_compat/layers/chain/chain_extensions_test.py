"""Chains get names for their layers; numbers are held against Pax's."""

import jax
import jax.numpy as jnp
import pytest

from pax_compat import errors, layers
from pax_compat.layers import chain

_X = jnp.ones([2, 3, 4])


def test_a_layer_may_be_without_a_name():
  linear = layers.Linear.config(input_dims=4, output_dims=4)
  config = chain.add_residual(linear, chain.full_like(2.0))
  assert [tpl.name for tpl in config.layers] == ['layers', 'full_like']
  layer = config.Instantiate()
  variables = layer.init(jax.random.key(0), _X)
  assert set(variables['params']) == {'layers_0'}
  assert (layer.apply(variables, _X) == 3).all()


def test_a_name_has_a_default():
  assert chain.kwargs_with_name('pad', axis=1) == {'name': 'pad', 'axis': 1}
  assert chain.kwargs_with_name('pad', name='own') == {'name': 'own'}


def test_a_layer_without_enough_arguments_is_named():
  layer = chain.chain(chain.apply_padding()).Instantiate()
  with pytest.raises(errors.UserError, match='pad requires 2 arguments'):
    layer.init(jax.random.key(0), _X)


def test_all_outputs_of_a_chain_are_repeated():
  scale = chain.feed_forward(4, 4, layers.Identity.config())
  layer = chain.repeat(3, scale, chain.apply_padding()).Instantiate()
  paddings = jnp.zeros([2, 3]).at[1, 2].set(1)
  variables = layer.init(jax.random.key(0), _X, paddings)
  found, after = layer.apply(variables, _X, paddings)
  expected = _X
  (ff,) = variables['params']['sub'].values()
  for w, b in zip(ff['linear']['w'], ff['bias']['b'], strict=True):
    expected = (expected @ w + b) * (1 - paddings)[..., None]
  assert jnp.allclose(found, expected, rtol=1e-5) and (after == paddings).all()
  inside = chain.chain(chain.repeat(2, scale), scale).Instantiate()
  variables = inside.init(jax.random.key(0), _X)
  assert inside.apply(variables, _X).shape == _X.shape
