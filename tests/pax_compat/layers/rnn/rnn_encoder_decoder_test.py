"""Decoding steps of a recurrent encoder-decoder against its whole sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.decoder_hparams import BeamSearchHParams
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.models import GreedyDecoderHParams, SequenceModel
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
from pax_compat.layers.rnn.recurrent import BidirectionalFrnn, LstmFrnn
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.layers.rnn.rnn_encoder_decoder import RnnEncoderDecoder
from pax_compat.layers.rnn.source_attention import AdditiveSourceAttention
from pax_compat.nested_map import NestedMap

_VOCAB, _DIMS, _SOURCE = 13, 6, 5

pytestmark = pytest.mark.slow


def _cell(inputs):
  return LstmCellSimple.config(
    num_input_nodes=inputs, num_output_nodes=_DIMS, reset_cell_state=True
  )


def _network():
  encoder = BidirectionalFrnn.config(
    fwd_frnn_tpl=LstmFrnn.config(cell_tpl=_cell(_DIMS)),
    bwd_frnn_tpl=LstmFrnn.config(cell_tpl=_cell(_DIMS)),
  )
  attention = AdditiveSourceAttention.config(
    source_dim=2 * _DIMS,
    query_dim=_DIMS,
    hidden_dim=8,
    num_heads=2,
    project_source=True,
    project_query=True,
  )
  config = RnnEncoderDecoder.config(
    encoder_embedding_tpl=Embedding.config(
      num_classes=_VOCAB, input_dims=_DIMS
    ),
    encoder_rnn_tpls=[encoder],
    decoder_embedding_tpl=Embedding.config(
      num_classes=_VOCAB, input_dims=_DIMS
    ),
    attention_rnn_tpl=LstmFrnnWithAttention.config(
      cell_tpl=_cell(3 * _DIMS), attention_tpl=attention, zero_context=True
    ),
    decoder_rnn_tpls=[LstmFrnn.config(cell_tpl=_cell(3 * _DIMS))] * 2,
    context_to_softmax=True,
  )
  config.softmax_tpl.set(input_dims=3 * _DIMS, num_classes=_VOCAB)
  return config


def _sources():
  rng = np.random.default_rng(0)
  ids = rng.integers(3, _VOCAB, (2, _SOURCE)).astype(np.int32)
  return ids, np.float32([[0] * 5, [0, 0, 0, 1, 1]])


def _initial(layer, *arguments):
  keys = {base_layer.PARAMS: jax.random.key(1)}
  weights = base_layer.unbox(layer.init(keys, *arguments))
  return jax.tree.map(lambda x: 5 * x, weights)


def test_steps_are_those_of_the_whole_sequence():
  layer = _network().Instantiate()
  source, source_paddings = _sources()
  rng = np.random.default_rng(1)
  targets = rng.integers(0, _VOCAB, (2, 6)).astype(np.int32)
  zeros = jnp.zeros(targets.shape)
  given = source, source_paddings, targets, zeros
  weights = _initial(layer, *given)
  expected = layer.apply(weights, *given).logits

  def step(cache, method, *arguments, **fields):
    return layer.apply(
      {**weights, **cache},
      *arguments,
      method=method,
      mutable=[base_layer.DECODE_CACHE],
      **fields,
    )

  _, cache = step({}, 'init_states', source, source_paddings, max_length=8)
  # The prefix has one and three tokens, behind two and no padding tokens.
  prefix = jnp.asarray([[0, 0, targets[0, 0]], targets[1, :3]])
  mask = jnp.arange(8) >= jnp.asarray([2, 0])[:, None]
  mask = mask[:, None, None]
  first, cache = step(
    cache, 'extend_step', prefix, time_step=jnp.asarray(0), atten_mask=mask
  )
  np.testing.assert_allclose(first.logits[0, 2], expected[0, 0], atol=1e-5)
  np.testing.assert_allclose(first.logits[1], expected[1, :3], atol=1e-5)
  following = jnp.stack([targets[0, 1:3], targets[1, 3:5]])
  then, _ = step(
    cache, 'extend_step', following, time_step=jnp.asarray(3), atten_mask=mask
  )
  np.testing.assert_allclose(then.logits[0], expected[0, 1:3], atol=1e-5)
  np.testing.assert_allclose(then.logits[1], expected[1, 3:5], atol=1e-5)
  assert float(jnp.std(expected)) > 0.1


def test_a_model_decodes():
  source, source_paddings = _sources()
  tokens = np.ones([2, 1], np.int32)
  batch = NestedMap(
    src=NestedMap(ids=source, paddings=source_paddings),
    tgt=NestedMap(
      ids=tokens,
      labels=tokens,
      paddings=np.zeros([2, 1], np.float32),
      weights=np.ones([2, 1], np.float32),
    ),
  )
  model = SequenceModel.config(model_tpl=_network()).Instantiate()
  weights = _initial(model, batch)
  common = dict(seqlen=5, max_decode_steps=4, eos_id=-1, fprop_for_prefix=True)

  def decoded(settings):
    (_, out, _), _ = model.apply(
      weights,
      batch,
      settings,
      method='decode_with_params',
      mutable=[base_layer.DECODE_CACHE],
    )
    return out.output_ids

  greedy = decoded(GreedyDecoderHParams(**common))
  beam = decoded(BeamSearchHParams(beam_size=1, **common))
  np.testing.assert_array_equal(greedy.reshape(beam[:, 0].shape), beam[:, 0])
  assert len(np.unique(greedy)) > 2
