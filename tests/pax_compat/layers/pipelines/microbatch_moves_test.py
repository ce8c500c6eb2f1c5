"""Streams of microbatches against pipelines that do not stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import linears
from pax_compat.layers.pipelines.pipeline import (
  CircularLayerwiseShardablePipelined,
  LayerwiseShardablePipelined,
)

B, D, S = 12, 4, 3
X = np.random.default_rng(0).normal(size=[B, D]).astype(np.float32)
# One for each example, so that it shows where each one goes.
FACTORS = np.linspace(0.5, 1.5, B, dtype=np.float32)[:, None]


class _Body(base_layer.BaseLayer):
  def setup(self):
    linear = linears.Linear.config(input_dims=D, output_dims=D)
    self.create_child('linear', linear)

  def __call__(self, inputs, factors):
    return jnp.tanh(self.linear(inputs)) * factors


def _config(cls=LayerwiseShardablePipelined, **fields):
  return cls.config(num_stages=S, single_stage_body=_Body.config(), **fields)


def _outputs_and_gradients(config):
  layer = config.Instantiate()
  variables = base_layer.unbox(
    layer.init({PARAMS: jax.random.key(0)}, X, FACTORS)
  )

  def loss(variables, x):
    outputs = layer.apply(variables, x, FACTORS)
    return jnp.sum(outputs * jnp.arange(B)[:, None]), outputs

  grad = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
  return grad(variables, X)


@pytest.mark.parametrize(
  'number', [S, pytest.param(2 * S, marks=pytest.mark.slow), 4 * S]
)
def test_a_stream_changes_no_numbers(number):
  config = _config(num_microbatches=number)
  plain = _outputs_and_gradients(config)
  streamed = _outputs_and_gradients(config.clone().set(stream_io=True))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
    streamed,
    plain,
  )


def test_a_number_that_is_not_a_multiple():
  layer = _config(num_microbatches=4, stream_io=True).Instantiate()
  with pytest.raises(
    errors.UserError, match='stream_io is True and num_stages is 3, but there'
  ):
    layer.init({PARAMS: jax.random.key(0)}, X, FACTORS)


def test_circular_pipelines_do_not_stream():
  layer = _config(
    CircularLayerwiseShardablePipelined,
    num_microbatches=4,
    circular_repeat=2,
    stream_io=True,
  ).Instantiate()
  assert layer.init({PARAMS: jax.random.key(0)}, X, FACTORS)
