"""Mixtures of recurrent networks against their parts, and step by step.

Shapes: B batch, T time, D dims, O output nodes, E experts.
"""

import jax
import numpy as np
import pytest
from scipy import special

from pax_compat.base_layer import PARAMS
from pax_compat.layers import models
from pax_compat.layers.rnn.recurrent import LstmFrnn
from pax_compat.layers.rnn.recurrent_stacks import StackFrnn
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.layers.rnn.rnn_lm import RnnLm
from pax_compat.layers.rnn.rnn_mixture_lm import RnnMixtureLm
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import step_by_step, token_batches
from tests.pax_compat.layers.token_batches import V

D, N, E = 3, 4, 2
BATCH = token_batches.batch()


def _stack(inputs):
  cell = LstmCellSimple.config(num_input_nodes=inputs, num_output_nodes=N)
  return StackFrnn.config(frnn_tpl=LstmFrnn.config(cell_tpl=cell))


def _config(*, shared, merges):
  config = RnnMixtureLm.config(
    vocab_size=V,
    num_experts=E,
    shared_embedding=shared,
    rnns_tpl=_stack(D),
    merge_tpl=(
      RnnLm.config(embedding_tpl=None, rnns_tpl=_stack(N)) if merges else None
    ),
  )
  config.embedding_tpl.input_dims = D
  config.gating_softmax_tpl.input_dims = N
  (config.merge_tpl if merges else config).softmax_tpl.input_dims = N
  return config


def _model(config):
  return models.LanguageModel.config(lm_tpl=config)


def _params(config):
  return token_batches.random_weights(_model(config), BATCH, scale=0.7)['lm']


kinds = pytest.mark.parametrize(
  'kind', [{'shared': True, 'merges': True}, {'shared': False, 'merges': False}]
)


@kinds
def test_a_mixture_of_its_parts(kind):
  config = _config(**kind)
  params = _params(config)
  ids, paddings = BATCH.ids, BATCH.paddings
  outputs = []
  for i in range(1 + E):
    name = 'embedding' if kind['shared'] else f'embedding_{i}'
    steps = NestedMap(
      act=params[name]['emb_var'][ids], padding=paddings[..., None]
    )
    stack = _stack(D).Instantiate()
    outputs.append(stack.apply({PARAMS: params[f'rnns_{i}']}, steps)[0])
  gate = params['gating_softmax']['logits_ffn']
  shares = special.softmax(
    outputs[0] @ gate['linear']['w'] + gate['bias']['b'], axis=-1
  )
  mixture = sum(shares[..., i : i + 1] * outputs[1 + i] for i in range(E))
  output = config.Instantiate().apply({PARAMS: params}, ids, paddings)
  if kind['merges']:
    merge = config.merge_tpl.clone().set(vocab_size=V).Instantiate()
    want = merge.apply({PARAMS: params['merge']}, mixture, paddings).logits
  else:
    head = params['softmax']['logits_ffn']
    want = mixture @ head['linear']['w'] + head['bias']['b']
    np.testing.assert_allclose(output.last_hidden, mixture, atol=1e-5)
  np.testing.assert_allclose(output.logits, want, atol=1e-5)


@kinds
def test_step_by_step(kind):
  config = _config(**kind)
  params, ids = _params(config), BATCH.ids
  layer = config.Instantiate()
  whole = layer.apply({PARAMS: params}, ids, 0.0 * ids).logits
  steps = step_by_step.decode(layer, params, ids, [1, 3, 1], len(ids), 5)
  np.testing.assert_allclose(steps, whole, atol=1e-5)


def test_as_the_network_of_a_language_model():
  config = _config(shared=True, merges=False)
  params = _params(config)
  layer = _model(config).Instantiate()

  @jax.jit
  def loss(params):
    return layer.apply({PARAMS: {'lm': params}}, BATCH)[0].loss[0]

  logits = config.Instantiate().apply(
    {PARAMS: params}, BATCH.ids, BATCH.paddings
  )
  total, nats, _, _ = token_batches.token_sums(
    logits.logits, BATCH.labels, BATCH.weights
  )
  np.testing.assert_allclose(loss(params), nats / total, rtol=1e-5)
  gradients = jax.grad(loss)(params)
  assert all(np.any(g != 0) for g in jax.tree.leaves(gradients))
