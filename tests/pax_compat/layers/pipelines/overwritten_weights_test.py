"""Weights in pipelines that a step replaces by their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, layers
from pax_compat.base_layer import PARAMS
from pax_compat.config_core.context_values import set_within
from pax_compat.layer_core.gradients import overwritten
from pax_compat.layers.pipelines import pipeline

B, D, M, S, R = 6, 4, 3, 2, 2
_INPUTS = np.random.default_rng(0).normal(size=(B, D)).astype(np.float32)
_STAGE = layers.Linear.config(
  input_dims=D,
  output_dims=D,
  einsum_tpl=layers.Fp8EinsumOp.config(amax_history_length=3),
)


def _pipeline(cls, **fields):
  layer = cls.config(
    single_stage_body=_STAGE.clone(),
    num_stages=S,
    num_microbatches=M,
    **fields,
  ).Instantiate()
  made = base_layer.unbox(layer.init(jax.random.key(0), _INPUTS))
  # Scales of a later step.
  rng = np.random.default_rng(1)
  body = made[PARAMS]['body']
  body['einsum'] = jax.tree.map(
    lambda x: rng.uniform(0.5, 3, size=x.shape).astype(np.float32),
    body['einsum'],
  )
  return layer, made[PARAMS]


def _in_sequence(params, repeats):
  """Returns the stages' output of the whole batch."""
  stage, x = _STAGE.Instantiate(), _INPUTS
  for repeat in range(repeats):
    for i in range(S):
      place = (i,) if repeats == 1 else (repeat, i)
      own = jax.tree.map(lambda w, place=place: w[place], params['body'])
      x = stage.apply({PARAMS: own}, x)
  return x


@pytest.mark.parametrize('knows', [True, False])
@pytest.mark.parametrize(
  'cls, repeats, fields',
  [
    (pipeline.LayerwiseShardablePipelined, 1, {}),
    (
      pipeline.CircularLayerwiseShardablePipelined,
      R,
      {'circular_repeat': R},
    ),
  ],
)
def test_statistics_are_those_of_the_whole_batch(cls, repeats, fields, knows):
  """With and without what a train step knows of the weights."""
  layer, params = _pipeline(cls, **fields)
  paths = {'body/einsum/' + name for name in params['body']['einsum']}

  def loss(params, apply):
    with set_within(overwritten.PATHS, paths if knows else None):
      y = apply(params)
    return jnp.sum(y**2), y

  grad = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
  found, y = grad(params, lambda p: layer.apply({PARAMS: p}, _INPUTS))
  expected, whole = grad(params, lambda p: _in_sequence(p, repeats))
  np.testing.assert_allclose(y, whole, rtol=1e-5)
  assert len(found['body']['einsum']) == 6
  for (path, x), one in zip(
    jax.tree_util.tree_leaves_with_path(found),
    jax.tree.leaves(expected),
    strict=True,
  ):
    np.testing.assert_allclose(x, one, rtol=1e-4, err_msg=str(path))


def test_without_such_weights_nothing_is_copied():
  layer = pipeline.LayerwiseShardablePipelined.config(
    single_stage_body=_STAGE.clone().set(einsum_tpl=layers.EinsumOp.config()),
    num_stages=S,
    num_microbatches=M,
  ).Instantiate()
  variables = base_layer.unbox(layer.init(jax.random.key(0), _INPUTS))
  program = jax.make_jaxpr(layer.apply)(variables, _INPUTS)
  assert 'custom_vjp_call' not in str(program)
