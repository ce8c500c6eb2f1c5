"""A recurrent layer with attention, against its steps one by one.

Shapes: B batch, T time, S source time, I inputs, D source dims, O outputs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.rnn import rnn_cells
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
from pax_compat.layers.rnn.source_attention import AdditiveSourceAttention
from pax_compat.nested_map import NestedMap

B, T, S, I, D, O = 2, 4, 3, 5, 6, 7  # noqa: E741 (the letters of the legend)
PADDINGS = np.array([[0, 0, 0, 0], [0, 0, 1, 1]], np.float32)
SOURCE_PADDINGS = np.array([[0, 0, 0], [0, 0, 1]], np.float32)


def _config(inputs=I, **fields):
  attention = AdditiveSourceAttention.config(
    source_dim=D,
    query_dim=O,
    hidden_dim=8,
    num_heads=2,
    project_source=True,
    project_query=True,
    values_are_keys=True,
    atten_dropout_prob=fields.pop('drop', 0.0),
  )
  cell = rnn_cells.LayerNormalizedLstmCellSimple.config(
    num_input_nodes=inputs + 8,
    num_output_nodes=O,
    reset_cell_state=fields.pop('resets', False),
  )
  return LstmFrnnWithAttention.config(
    cell_tpl=cell, attention_tpl=attention, **fields
  )


def _inputs():
  rng = np.random.default_rng(1)
  x, source = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ([B, T, I], [B, S, D])
  )
  return x, PADDINGS, source, SOURCE_PADDINGS


def _made(config):
  layer = config.Instantiate()
  weights = layer.init({PARAMS: jax.random.key(0)}, *_inputs())
  return layer, {PARAMS: base_layer.unbox(weights)[PARAMS]}


def _one_by_one(layer):
  """Returns outputs and contexts of a bound layer, by steps of its cell."""
  x, paddings, source, hidden = map(jnp.asarray, _inputs())
  cell, attention = layer.cell, layer.attention
  packed, matrices = attention.pack(source), attention.weights()

  def attend(query):
    product = lambda name, v: v @ matrices[name]  # noqa: E731
    return attention.attend(product, packed, query, hidden == 0)[0]

  state, context = cell.init_states(B), attend(jnp.zeros([B, O]))
  outputs, contexts = [], []
  for t in range(T):
    act = jnp.concatenate([x[:, t], context], axis=-1)
    step = NestedMap(act=act, padding=paddings[:, t, None])
    state = cell(state, step)
    outputs.append(cell.get_output(state))
    contexts.append(context := attend(outputs[-1]))
  return jnp.stack(outputs, 1), jnp.stack(contexts, 1)


def test_all_steps_at_once():
  layer, weights = _made(_config())
  bound = layer.bind(weights)
  found, wanted = bound(*_inputs()), _one_by_one(bound)
  for one, other in zip(found, wanted, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
  # Padding of the source, and of the inputs, changes nothing.
  x, paddings, source, hidden = _inputs()
  x[1, 2:], source[1, 2] = 9, 9
  again = bound(x, paddings, source, hidden)
  np.testing.assert_array_equal(found[0], again[0])


def test_packed_examples_are_those_of_separate_rows():
  layer, weights = _made(_config(zero_context=True, resets=True))
  bound = layer.bind(weights)
  x, _, source, _ = _inputs()
  rows = [(x[:1, :2], source[:1, :1]), (x[:1, 2:], source[:1, 1:])]
  separate = [
    bound(a, np.zeros(a.shape[:2]), b, np.zeros(b.shape[:2])) for a, b in rows
  ]
  ids, source_ids = np.array([[1, 1, 2, 2]]), np.array([[1, 2, 2]])
  together = bound(
    x[:1], np.zeros([1, T]), source[:1], np.zeros([1, S]), ids, source_ids
  )
  for i in range(2):
    wanted = np.concatenate([one[i] for one in separate], axis=1)
    np.testing.assert_allclose(together[i], wanted, rtol=1e-5, atol=1e-6)


def test_attention_weights_are_dropped_in_training_only():
  layer, weights = _made(_config(drop=0.5))
  draw = lambda seed: layer.apply(  # noqa: E731
    weights, *_inputs(), rngs={base_layer.RANDOM: jax.random.key(seed)}
  )[1]
  assert np.any(draw(0) != draw(1))
  with base_layer.eval_mode():
    np.testing.assert_array_equal(draw(0), draw(1))


def test_what_is_refused():
  with pytest.raises(errors.UserError, match='num_input_nodes is 12'):
    _made(_config(inputs=4))
  layer, weights = _made(_config())
  ids = np.ones([B, T]), np.ones([B, S])
  with pytest.raises(errors.UserError, match='zero_context'):
    layer.apply(weights, *_inputs(), *ids)
