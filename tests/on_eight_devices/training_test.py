"""Batches, learners and decoding on a mesh."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from pax_compat import base_input, errors, optimizers
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning
from tests.pax_compat.decoding import greedy_test
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.state import state_leaves_test


def test_batches_are_split():
  batch = NestedMap(x=np.arange(48).reshape(16, 3), y=np.arange(16))
  data = base_input.BaseInput()
  split = data.reshard_for_pmap(batch)
  assert split.x.shape == (8, 2, 3) and split.y.shape == (8, 2)
  assert split.y.ravel().tolist() == list(range(16))
  message = 'expected its first dimension to be a multiple of 8'
  with pytest.raises(errors.UserError, match=message):
    data.reshard_for_pmap(NestedMap(x=np.zeros([12])))
  mesh = jax.make_mesh((4, 2), ('data', 'mdl'))
  specs = NestedMap(x=P('data', None), y=P(('data', 'mdl')))
  whole = data.reshard_for_spmd(batch, mesh, specs)
  assert whole.x.sharding.spec == P('data', None)
  for name in ('x', 'y'):
    np.testing.assert_array_equal(whole[name], batch[name])
  assert whole.y.addressable_shards[0].data.shape == (2,)


def test_greedy_decoding():
  params = greedy_test.random_weights(greedy_test.lm_config())
  batch = jax.tree.map(
    lambda x: np.concatenate([x, x]), greedy_test.prefix_batch()
  )
  settings = dict(fprop_for_prefix=True, eos_id=4)
  want = greedy_test.fast_decode(params, batch, **settings)
  mesh = jax.make_mesh((4, 2), ('data', 'mdl'), (AxisType.Auto,) * 2)

  def split(x):
    mdl = 'mdl' if x.ndim and x.shape[-1] % 2 == 0 else None
    spec = [None] * (x.ndim - 1) + [mdl] if x.ndim else []
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))

  by_data = NamedSharding(mesh, P('data'))
  with jax.set_mesh(mesh):
    greedy_test.decoder.cache_clear()
    out = greedy_test.fast_decode(
      jax.tree.map(split, params), jax.device_put(batch, by_data), **settings
    )
  assert jax.device_count() == 8
  np.testing.assert_array_equal(out.output_ids, want.output_ids)
  np.testing.assert_array_equal(out.decode_lengths, want.decode_lengths)
  np.testing.assert_allclose(out.logprobs, want.logprobs, rtol=1e-4, atol=1e-5)


def test_a_learner_does_what_it_does_on_one_device():
  mesh = partitioning.create_mesh((2, 2, 2), ('replica', 'data', 'mdl'))
  rng = np.random.default_rng(0)
  params = {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in state_leaves_test.SHAPES.items()
  }
  metas = state_leaves_test.metas()
  one = stepping.learner(
    optimizers.ShardedStaticAccumulator.config(
      optimizer_tpl=optimizers.ShardedAdafactor.config(
        learning_rate=0.1,
        decay_method='pow',
        decay_pow=0.8,
        beta1=0.9,
        quantized_dtype='float32',
        multiply_by_parameter_scale=True,
      ),
      num_sub_batches=2,
      ema_decay=0.9,
      clip_gradient_norm_to_value=1.0,
    ),
  )
  want = stepping.steps(one, params, [params] * 3, metas)[-1]

  placed = {
    name: jax.device_put(w, NamedSharding(mesh, state_leaves_test.SPECS[name]))
    for name, w in params.items()
  }
  shapes = jax.tree.map(
    lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=w.sharding),
    placed,
  )
  abstract = one.abstract_state(shapes, weight_metas=metas)
  shardings = jax.tree.map(lambda s: s.sharding, abstract)
  state = jax.jit(
    lambda p: one.init(p, weight_metas=metas), out_shardings=shardings
  )(placed)
  update = jax.jit(
    lambda p, s, g: one.update(p, s, g, weight_metas=metas),
    donate_argnums=(1,),
    out_shardings=(
      {name: w.sharding for name, w in placed.items()},
      shardings,
      None,
      None,
    ),
  )
  weights = placed
  for _ in range(3):
    weights, state, metrics, norms = update(weights, state, placed)
  assert update._cache_size() == 1
  leaves = jax.tree.leaves(state)
  for leaf, a in zip(leaves, jax.tree.leaves(abstract), strict=True):
    assert leaf.sharding.is_equivalent_to(a.sharding, leaf.ndim)
    part = leaf.addressable_shards[0].data.shape
    assert part == a.sharding.shard_shape(a.shape)
  parts = {
    x.addressable_shards[0].data.shape
    for x in jax.tree.leaves(state.optimizer['p#4'])
    if x.ndim
  }
  # Whole moments, factored ones, and placeholders.
  assert parts == {(2, 4, 4), (2, 4), (2, 1)}, parts
  stepping.assert_trees_close(
    (weights, state, metrics | norms), want, 1e-5, 1e-6
  )
