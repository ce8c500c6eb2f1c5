"""Decoding on a mesh: rows at positions of their own, and reordered rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.decoding.cached_network import CachedNetwork
from pax_compat.layers import models
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import cached_network_test, greedy_test


@pytest.mark.slow
def test_a_draft_model_on_a_mesh_changes_no_token():
  model, config = _sharded_model()
  model = model.Instantiate()
  settings = GreedyDecoderHParams(
    seqlen=greedy_test.P + 4, max_decode_steps=4, fprop_for_prefix=True
  )
  params = greedy_test.random_weights(config)
  batch = NestedMap(greedy_test.prefix_batch())
  rngs = {RANDOM: jax.random.key(0)}

  def alone(params, batch):
    (_, out, _), _ = model.apply(
      {PARAMS: {'lm': params}},
      settings,
      batch,
      method='decode_with_params',
      mutable=[DECODE_CACHE],
    )
    return out

  def drafted(params, batch):
    target, draft = (
      model.bind({PARAMS: {'lm': x}}, rngs=rngs)
      for x in (params, jax.tree.map(lambda x: x * 1.1, params))
    )
    return target.decode_with_draft(draft, settings, batch, draft_steps=2)

  with base_layer.eval_mode():
    want = jax.jit(alone)(params, batch)
    with jax.set_mesh(_mesh()):
      out = jax.jit(drafted)(params, batch)
  np.testing.assert_array_equal(out.output_ids, want.output_ids)
  np.testing.assert_array_equal(out.decode_lengths, want.decode_lengths)


def _sharded_model():
  """Returns a language model whose weights are split over a mesh of 4 x 2."""
  config = greedy_test.lm_config()
  TransformerLm.set_sharding_params_v1(
    config,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    training_optimized=True,
    ici_mesh_shape=[1, 4, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  config.vocab_size = 12
  return models.LanguageModel.config(lm_tpl=config), config


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind', [GreedyDecoderHParams, SampleDecoderHParams, BeamSearchHParams]
)
def test_a_loop_on_other_mesh_axes_changes_no_token(kind):
  model, config = _sharded_model()
  model = model.Instantiate()
  params = greedy_test.random_weights(config)
  batch = NestedMap(greedy_test.prefix_batch())

  def decode(params, batch, axes):
    settings = kind(
      seqlen=greedy_test.P + 4,
      max_decode_steps=4,
      fprop_for_prefix=True,
      decode_loop_mesh_axes_transpose=axes,
    )
    (_, out, _), _ = model.apply(
      {PARAMS: {'lm': params}},
      settings,
      batch,
      rngs={RANDOM: jax.random.key(0)},
      method='decode_with_params',
      mutable=[DECODE_CACHE],
    )
    return out.output_ids

  with base_layer.eval_mode(), jax.set_mesh(_mesh()):
    want, got = (
      jax.jit(functools.partial(decode, axes=axes))(params, batch)
      for axes in (None, {'data': 'mdl', 'mdl': 'data'})
    )
  np.testing.assert_array_equal(got, want)


def test_weights_are_moved_to_the_axes_of_the_loop():
  _, config = _sharded_model()
  network = config.Instantiate()
  params = greedy_test.random_weights(config)
  ids = jnp.zeros([2, 3], jnp.int32)
  metas = network.abstract_init_with_metadata(ids, ids * 0.0)

  def weights(params, axes):
    bound = network.bind({PARAMS: params})
    cached = CachedNetwork(bound, lambda *_: None, lambda *_: None)
    return cached.with_loop_axes(axes, metas)._loop_variables[PARAMS]

  with jax.set_mesh(_mesh()):
    same, other = (
      jax.jit(functools.partial(weights, axes=axes))(params)
      for axes in ({}, {'data': 'mdl', 'mdl': 'data'})
    )
  specs, transposed = (
    [x.sharding.spec for x in jax.tree.leaves(tree)] for tree in (same, other)
  )
  split = [i for i, spec in enumerate(specs) if spec == jax.P('data', 'mdl')]
  found = {transposed[i] for i in split}
  assert jax.P('mdl', 'data') in found
  assert {spec[0] for spec in found} == {'mdl'}


def _mesh():
  return jax.make_mesh(
    (1, 4, 2),
    ('replica', 'data', 'mdl'),
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )


def test_hypotheses_are_reordered_without_other_devices():
  network = cached_network_test.network_of_states(rows=8)
  mesh = jax.make_mesh(
    (8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  of_rows, of_columns, same = (
    jax.NamedSharding(mesh, jax.P(*spec))
    for spec in (('data',), (None, 'data'), ())
  )
  columns = {'time_major': of_columns, 'recurrent': of_columns}
  states = network.init_states(4, 2)
  shardings = {
    name: jax.tree.map(
      lambda x, name=name: columns.get(name, of_rows) if x.ndim else same, state
    )
    for name, state in states.items()
  }
  hyps = jax.device_put(jnp.zeros([8, 2], int), of_rows)
  reorder = jax.jit(lambda x, hyps: network.reordered(x, hyps, 1))
  compiled = reorder.lower(jax.device_put(states, shardings), hyps).compile()
  text = compiled.as_text()
  assert 'gather(' in text or 'dynamic-slice(' in text
  assert 'all-gather' not in text and 'all-reduce' not in text
