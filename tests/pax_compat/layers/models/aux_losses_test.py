"""Auxiliary losses that a layer takes from its children."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import AUX_LOSS, PARAMS, WeightHParams
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import repeats
from pax_compat.layers.models import aux_losses


class _Square(base_layer.BaseLayer):
  """Doubles its input; its weight's square is an auxiliary loss."""

  def setup(self):
    self.create_variable('w', WeightHParams([]))

  def __call__(self, inputs):
    self.add_aux_loss('square', jnp.square(self.theta.w))
    return 2 * inputs


class _Taker(base_layer.BaseLayer):
  """Returns what its child does, and the losses in it."""

  child_tpl: Config = sub_config_field(_Square)

  def setup(self):
    self.create_child('child', self.child_tpl)

  def __call__(self, inputs):
    self.add_aux_loss('own', jnp.float32(7))
    return aux_losses.call_and_take(self.child, inputs)


REPEATED = repeats.Repeat.config(sub_tpl=_Square.config(), x_times=3)


@pytest.mark.parametrize(
  ('child', 'weights', 'factor'),
  [
    (_Square.config(), {'w': np.float32(3)}, 2),
    (REPEATED, {'sub': {'w': np.arange(3, dtype=np.float32)}}, 8),
  ],
)
def test_losses_are_taken_with_their_gradients(child, weights, factor):
  layer = _Taker.config(child_tpl=child).Instantiate()
  params = {'child': weights}

  def loss(params):
    (y, taken), left = layer.apply({PARAMS: params}, 5.0, mutable=[AUX_LOSS])
    return taken, (y, left)

  gradient, (y, left) = jax.grad(loss, has_aux=True)(params)
  taken = loss(params)[0]
  w = jax.tree.leaves(weights)[0]
  assert y == 5 * factor
  np.testing.assert_allclose(taken, (w**2).sum())
  np.testing.assert_allclose(jax.tree.leaves(gradient)[0], 2 * w)
  assert jax.tree.leaves(left) == [7, 1]


def test_nothing_is_taken_where_nothing_is_collected():
  layer = _Taker.config().Instantiate()
  y, taken = layer.apply({PARAMS: {'child': {'w': np.float32(3)}}}, 5.0)
  assert (y, taken) == (10, 0)
