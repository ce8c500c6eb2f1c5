"""Decoding in which each row is at a position of its own, on a mesh."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import GreedyDecoderHParams
from pax_compat.layers import models
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test


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
