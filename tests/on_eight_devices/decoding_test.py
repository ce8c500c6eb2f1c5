"""Decoding on a mesh: rows at positions of their own, and reordered rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import GreedyDecoderHParams
from pax_compat.layers import models
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import cached_network_test, greedy_test


@pytest.mark.slow
def test_a_draft_model_on_a_mesh_changes_no_token():
  config = greedy_test.lm_config()
  TransformerLm.set_sharding_params_v1(
    config,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    training_optimized=False,
    ici_mesh_shape=[1, 4, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  config.vocab_size = 12
  model = models.LanguageModel.config(lm_tpl=config).Instantiate()
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

  mesh = jax.make_mesh(
    (1, 4, 2),
    ('replica', 'data', 'mdl'),
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )
  with base_layer.eval_mode():
    want = jax.jit(alone)(params, batch)
    with jax.set_mesh(mesh):
      out = jax.jit(drafted)(params, batch)
  np.testing.assert_array_equal(out.output_ids, want.output_ids)
  np.testing.assert_array_equal(out.decode_lengths, want.decode_lengths)


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
