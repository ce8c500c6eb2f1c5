"""Layers on a mesh compute what they compute on one device."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from pax_compat import base_layer, layers, learners
from pax_compat.layers.attentions import (
  attention_kernels,
  attention_masks,
  attention_ops,
)
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.linears import FeedForward
from pax_compat.layers.normalizations import norm_layers
from tests.pax_compat.layer_core import row_gradients_test
from tests.pax_compat.layers.pipelines import pipeline_test
from tests.pax_compat.layers.transformers import moe_stacks_test
from tests.pax_compat.trainer import tiny


def _mesh(shape=(2, 4), names=('data', 'mdl')):
  return jax.make_mesh(shape, names, (AxisType.Auto,) * len(shape))


def test_outputs_of_feed_forward_layers_are_split():
  """Also those of a decoding step, which have no time axis."""
  mesh = _mesh()
  x = np.ones([2, 3, 4], np.float32)
  weights = {'params': {'linear': {'w': np.ones([4, 8], np.float32)}}}

  def spec(x, **mappings):
    layer = FeedForward.config(
      input_dims=4,
      output_dims=8,
      has_bias=False,
      activation_split_dims_mapping=FeedForward.ActivationSharding.config(
        **mappings
      ),
    ).Instantiate()
    with jax.set_mesh(mesh):
      y = jax.jit(layer.apply)(weights, x)
    np.testing.assert_array_equal(y, np.full(y.shape, 4))
    return y.sharding.spec

  out = ['data', None, 'mdl']
  assert spec(x, out=out) == P('data', None, 'mdl')
  assert spec(x[:, 0], out=out) == P('data', 'mdl')
  step = [None, 'mdl']
  assert spec(x[:, 0], out=out, extend_step_out=step) == P(None, 'mdl')


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_vectors_of_an_embedding_are_split(style):
  mesh = _mesh()
  table = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
  ids = np.array([[0, 7, 3, 5], [3, 3, 1, 2]])
  layer = Embedding.config(
    num_classes=8,
    input_dims=4,
    lookup_style=style,
    activation_split_dims_mapping=Embedding.ActivationSharding.config(
      emb_out_split_dims_mapping=['data', None, 'mdl']
    ),
  ).Instantiate()
  placed = jax.device_put(table, NamedSharding(mesh, P('mdl')))
  with jax.set_mesh(mesh):
    y = jax.jit(layer.apply)({'params': {'emb_var': placed}}, ids)
  assert y.sharding.spec == P('data', None, 'mdl'), y.sharding
  np.testing.assert_array_equal(y, table[ids])


def test_row_gradients():
  mesh = _mesh()
  t = row_gradients_test

  def put(x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))

  table = put(np.pad(t.TABLE, ((0, 0), (0, 1))), None, 'mdl')
  gradients = put(np.pad(t.GRADIENTS, ((0, 0),) * 2 + ((0, 1),)), 'data')
  got, facts = jax.jit(t._gradients)(table, put(t.IDS, 'data'), gradients)
  t._check(got[:, : t.D], facts)


def test_batch_norm_uses_the_statistics_of_the_whole_batch():
  """Each device has two examples, with other values and paddings."""
  rng = np.random.default_rng(0)
  x = rng.normal(np.arange(16)[:, None, None], 1, (16, 5, 4))
  x = x.astype(np.float32)
  paddings = (np.arange(5) >= rng.integers(0, 6, (16, 1))).astype(np.float32)
  layer = norm_layers.BatchNorm.config(dim=4, decay=0.5).Instantiate()
  variables = base_layer.unbox(layer.init_boxed(jax.random.key(0), x))

  @jax.jit
  def step(x, paddings):
    def loss(x):
      y, updates = layer.apply(
        variables, x, paddings, mutable=[base_layer.NON_TRAINABLE]
      )
      return jnp.sum(jnp.sin(y)), (y, updates)

    (_, (y, updates)), gradient = jax.value_and_grad(loss, has_aux=True)(x)
    return {'y': y, 'x': gradient, **updates[base_layer.NON_TRAINABLE]}

  one = step(x, paddings)
  mesh = _mesh((8,), ('data',))
  split = NamedSharding(mesh, P('data'))
  with jax.set_mesh(mesh):
    eight = step(jax.device_put(x, split), jax.device_put(paddings, split))
  assert eight['y'].sharding.shard_shape(eight['y'].shape) == (2, 5, 4)
  assert set(one) == {'y', 'x', 'moving_mean', 'moving_variance'}
  for name in one:
    difference = abs(np.asarray(one[name]) - np.asarray(eight[name])).max()
    assert difference < 1e-5, name


def test_a_convolution_block():
  out = layers.ConvBNActWithPadding.ActivationSharding.config(
    out=['data', None, None, 'mdl']
  )
  layer = layers.ConvBNActWithPadding.config(
    filter_shape=(3, 3, 2, 8),
    activation_split_dims_mapping=out,
    weight_split_dims_mapping=layers.Conv2D.WeightSharding.config(
      wt=[None, None, None, 'mdl']
    ),
  ).Instantiate()
  rng = np.random.default_rng(0)
  x = rng.normal(size=(4, 6, 5, 2)).astype(np.float32)
  paddings = np.arange(6) >= np.array([[6], [4], [3], [0]])
  paddings = paddings.astype(np.float32)
  boxed = layer.init_boxed(jax.random.key(0), x, paddings)
  boxed = {k: boxed[k] for k in (base_layer.PARAMS, base_layer.NON_TRAINABLE)}

  @jax.jit
  def step(variables, x, paddings):
    def loss(params):
      (y, _), updates = layer.apply(
        {**variables, base_layer.PARAMS: params},
        x,
        paddings,
        mutable=[base_layer.NON_TRAINABLE],
      )
      return jnp.sum(jnp.sin(y)), (y, updates)

    return jax.grad(loss, has_aux=True)(variables[base_layer.PARAMS])

  one = step(base_layer.unbox(boxed), x, paddings)
  mesh = _mesh()

  def placed(box):
    mapping = box.meta.tensor_split_dims_mapping or ()
    return jax.device_put(box.value, NamedSharding(mesh, P(*mapping)))

  with jax.set_mesh(mesh):
    variables = jax.tree.map(placed, boxed, is_leaf=base_layer.is_boxed)
    split = NamedSharding(mesh, P('data'))
    eight = step(
      variables, jax.device_put(x, split), jax.device_put(paddings, split)
    )
  w = variables[base_layer.PARAMS]['w']
  y = eight[1][0]
  assert w.sharding.shard_shape(w.shape) == (3, 3, 2, 2)
  assert y.sharding.shard_shape(y.shape) == (2, 6, 5, 2)
  differences = jax.tree.map(
    lambda a, b: abs(np.asarray(a) - np.asarray(b)).max() / abs(a).max(),
    one,
    eight,
  )
  assert max(jax.tree.leaves(differences)) < 1e-5


@pytest.mark.parametrize(
  ('repeats', 'prefix'), [(None, P('stage')), (2, P(None, 'stage'))]
)
def test_stages_of_a_pipeline_on_separate_devices(repeats, prefix):
  mesh = _mesh((4, 2), ('stage', 'data'))
  x = np.tile(pipeline_test.X[:1], [8, 1]) * np.arange(1, 9)[:, None] / 8
  layer = pipeline_test._layer(
    repeats=repeats, num_stages=4, num_microbatches=4
  )
  variables = pipeline_test._variables(layer, x)
  grad = jax.grad(lambda v, x: jnp.sum(layer.apply(v, x) ** 2))
  want = jax.jit(grad)(variables, x)
  layer.weight_split_dims_mapping.stages = ['stage']
  with jax.set_mesh(mesh):
    split = NamedSharding(mesh, prefix)
    args = jax.device_put(
      (variables, x), (split, NamedSharding(mesh, P('data')))
    )
    step = jax.jit(grad, out_shardings=split).lower(*args).compile()
    found = step(*args)
  jax.tree.map(
    lambda f, w: np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5),
    found,
    want,
  )
  for tree in (args[0], found):
    for w in jax.tree.leaves(tree['params']):
      assert w.addressable_shards[0].data.shape[-3] == 1, w.sharding
  text = step.as_text()
  assert 'collective-permute' in text
  assert 'all-gather' not in text


def test_experts_learn_as_on_one_device():
  def train(shape):
    task = moe_stacks_test.split_task()
    for part in (task.model, task.model.lm_tpl):
      part.ici_mesh_shape = shape
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = jax.sharding.Mesh(devices, tiny.MESH_AXES)
    made = tiny.make_program(task, mesh)
    _, history = tiny.train(made, 1)
    return made, history

  made, eight = train([1, 4, 2])
  state = made.init_state(tiny.batch())
  shapes = {
    path.split('/')[-1]: w.addressable_shards[0].data.shape
    for path, w in learners.by_path(state.mdl_vars['params']).items()
    if path.split('/')[-1][:2] in ('wi', 'wo')
  }
  # One expert on each of four devices, and half of it on each of two.
  assert shapes == {'wi_0': (1, 8, 4), 'wo_0': (1, 4, 8)}
  _, one = train([1, 1, 1])
  for alone, split in zip(one, eight, strict=True):
    for name in ('loss', 'aux_loss', 'learning/raw_grad_norm'):
      np.testing.assert_allclose(split[name], alone[name], rtol=1e-5)


def test_a_pipeline_streams_over_its_stages():
  """Each device holds the microbatches of its stage only."""
  x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
  config = layers.LayerwiseShardablePipelined.config(
    num_stages=4,
    num_microbatches=8,
    stream_io=True,
    single_stage_body=layers.Linear.config(input_dims=4, output_dims=4),
  )
  layer = config.clone().Instantiate()
  variables = base_layer.unbox(layer.init_boxed(jax.random.key(0), x))
  want = layer.apply(variables, x)
  config.weight_split_dims_mapping.stages = ['stage']
  mesh = _mesh((4, 2), ('stage', 'data'))
  sharding = NamedSharding(mesh, P(('stage', 'data')))
  with jax.set_mesh(mesh):
    apply = jax.jit(config.Instantiate().apply)
    given = jax.device_put(x, sharding)
    compiled = apply.lower(variables, given).compile()
    y = compiled(variables, given)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
  assert 'collective-permute' in compiled.as_text()


@pytest.mark.parametrize('kv_heads', [1, 2])
def test_splash_attention_runs_on_the_examples_and_heads_of_a_device(kv_heads):
  random = np.random.default_rng(0)
  heads = [
    random.normal(size=[2, 128, n, 128]).astype(np.float32) / 4
    for n in (2, kv_heads, kv_heads)
  ]
  ids = jnp.asarray(random.integers(0, 2, [2, 128]))

  @jax.jit
  def loss(*heads):
    inputs = attention_ops.AttentionInputs(
      *heads, attention_masks.SegmentMask(ids, ids), causal=True
    )
    options = attention_ops.AttentionOptions(
      kernel='splash', split=['data', None, 'mdl', None]
    )
    encoded = attention_kernels.dot_product_attention(inputs, options)
    return jnp.sum(encoded**2)

  gradients = jax.grad(loss, argnums=(0, 1, 2))
  alone = gradients(*heads)
  with jax.set_mesh(_mesh((2, 2))):
    on_mesh = jax.jit(gradients)(*heads)
  for one, other in zip(on_mesh, alone, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
