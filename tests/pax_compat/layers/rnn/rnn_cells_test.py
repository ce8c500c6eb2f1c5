"""Recurrent cells against a step in numpy.

Shapes: B batch, D input nodes, N output nodes, H hidden nodes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM, WeightInit
from pax_compat.layers.rnn import rnn_cells
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_rnn

B, D, N, H = 3, 5, 4, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, D]).astype(np.float32)
PADDING = np.array([0, 1, 0], np.float32)

LstmCellSimple = rnn_cells.LstmCellSimple
LayerNormalized = rnn_cells.LayerNormalizedLstmCellSimple


def _cell(cls, **fields):
  return cls.config(
    num_input_nodes=D, num_output_nodes=N, **fields
  ).Instantiate()


def _weights(cell, seed=0):
  """Returns random values for all weights of a cell."""
  inputs = NestedMap(act=X, padding=PADDING[:, None])
  shapes = jax.eval_shape(
    cell.init, jax.random.key(0), cell.init_states(B), inputs
  )
  shapes = base_layer.unbox(shapes)[PARAMS]
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda s: rng.normal(size=s.shape).astype(np.float32), shapes
  )


def _state(hidden):
  m = RNG.normal(size=[B, N]).astype(np.float32)
  return NestedMap(m=m, c=RNG.normal(size=[B, hidden]).astype(np.float32))


def _apply(cell, weights, state, do_eval=True, **inputs):
  inputs = NestedMap({'act': X, 'padding': PADDING[:, None], **inputs})
  with base_layer.eval_mode(do_eval):
    return cell.apply(
      {PARAMS: weights}, state, inputs, rngs={RANDOM: jax.random.key(1)}
    )


def _check(actual, expected):
  np.testing.assert_allclose(actual.m, expected[0], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(actual.c, expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('hidden', [0, H])
@pytest.mark.parametrize('cls', [LstmCellSimple, LayerNormalized])
@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'forget_gate_bias': 1.5},
    {'cell_value_cap': 0.3},
    {'cell_value_cap': None},
    {'output_nonlinearity': False},
    {'zo_prob': 0.3},
    {'enable_lstm_bias': False, 'forget_gate_bias': -1.0},
    {'couple_input_forget_gates': True},
    {'couple_input_forget_gates': True, 'forget_gate_bias': 0.7},
  ],
)
def test_a_step_of_an_lstm(cls, fields, hidden):
  cell = _cell(cls, num_hidden_nodes=hidden, **fields)
  weights, state = _weights(cell), _state(hidden or N)
  _check(
    _apply(cell, weights, state),
    numpy_rnn.lstm_step(fields, weights, state.m, state.c, X, PADDING),
  )


def test_layer_norm_has_its_epsilon():
  fields = {'layer_norm_epsilon': 0.5}
  cell = _cell(LayerNormalized, **fields)
  weights, state = _weights(cell), _state(N)
  _check(
    _apply(cell, weights, state),
    numpy_rnn.lstm_step(fields, weights, state.m, state.c, X, PADDING),
  )


def test_cifg_is_a_class_of_its_own_too():
  cell = _cell(rnn_cells.CifgLstmCellSimple, num_hidden_nodes=H)
  weights, state = _weights(cell), _state(H)
  assert weights['wm'].shape == (D + N, 3 * H)
  fields = {'couple_input_forget_gates': True}
  _check(
    _apply(cell, weights, state),
    numpy_rnn.lstm_step(fields, weights, state.m, state.c, X, PADDING),
  )


def test_a_padded_step_keeps_the_state():
  cell = _cell(LstmCellSimple, zo_prob=0.5)
  state = _state(N)
  for do_eval in (True, False):
    new = _apply(cell, _weights(cell), state, do_eval)
    np.testing.assert_array_equal(new.m[1], state.m[1])
    np.testing.assert_array_equal(new.c[1], state.c[1])


def test_zoneout_keeps_elements_at_random_in_training():
  cell = _cell(LstmCellSimple, zo_prob=0.25, num_hidden_nodes=4000)
  weights, state = _weights(cell), _state(4000)
  new = _apply(cell, weights, state, do_eval=False)
  stays = (np.array(new.m) == state.m, np.array(new.c) == state.c)
  m, c = numpy_rnn.lstm_step({}, weights, state.m, state.c, X, PADDING, stays)
  # A sum of 4,000 float32 terms is rounded in proportion to its terms: how, it
  # depends on the processor.
  rounding = 1e-6 * np.abs(m).max()
  np.testing.assert_allclose(new.m, m, rtol=1e-5, atol=rounding)
  np.testing.assert_allclose(new.c, c, rtol=1e-5, atol=1e-6)
  share = stays[1][PADDING == 0].mean()
  assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 8000)


def test_the_state_starts_anew_where_the_reset_mask_is_0():
  mask = np.array([[1], [0], [0]], np.float32)
  cell = _cell(LstmCellSimple, reset_cell_state=True)
  weights, state = _weights(cell), _state(N)
  m, c = state.m * mask, state.c * mask
  _check(
    _apply(cell, weights, state, reset_mask=mask),
    numpy_rnn.lstm_step({}, weights, m, c, X, PADDING),
  )


def test_inputs_in_parts():
  cell = _cell(LstmCellSimple, inputs_arity=2)
  weights, state = _weights(_cell(LstmCellSimple)), _state(N)
  _check(
    _apply(cell, weights, state, act=[X[:, :2], X[:, 2:]]),
    numpy_rnn.lstm_step({}, weights, state.m, state.c, X, PADDING),
  )


@pytest.mark.parametrize('act', [X[:, :3], [X[:, :2], X[:, 2:]]])
def test_inputs_that_do_not_fit_are_refused(act):
  cell = _cell(LstmCellSimple)
  with pytest.raises(errors.UserError, match='expected 1 .* of 5 '):
    _apply(cell, _weights(cell), _state(N), act=act)


@pytest.mark.parametrize('prob', [-0.1, 1.0])
def test_a_zoneout_that_is_not_a_probability_is_refused(prob):
  with pytest.raises(errors.UserError, match='LstmCellSimple.zo_prob'):
    _weights(_cell(LstmCellSimple, zo_prob=prob))


def test_initial_weights_and_the_initial_state():
  cell = _cell(
    LayerNormalized,
    num_hidden_nodes=H,
    bias_init=WeightInit.Constant(0.5),
    fprop_dtype=jnp.bfloat16,
  )
  inputs = NestedMap(act=X, padding=PADDING[:, None])
  variables = cell.init(jax.random.key(0), cell.init_states(B), inputs)
  weights = base_layer.unbox(variables)[PARAMS]
  np.testing.assert_array_equal(weights['b'], np.full([4 * H], 0.5))
  np.testing.assert_array_equal(weights['ln_scale'], np.ones([4 * H]))
  # Xavier: uniform up to sqrt(6 / (inputs + outputs)).
  limit = np.sqrt(6 / (D + N + 4 * H))
  assert 0.9 * limit < np.abs(weights['wm']).max() <= limit
  state = cell.init_states(B)
  assert {k: (v.shape, v.dtype) for k, v in state.items()} == {
    'm': ((B, N), jnp.bfloat16),
    'c': ((B, H), jnp.bfloat16),
  }
  new = cell.apply(variables, state, inputs)
  assert new.m.dtype == new.c.dtype == jnp.bfloat16


def test_dims_are_required():
  with pytest.raises(errors.UserError, match='num_output_nodes is required'):
    LstmCellSimple.config(num_input_nodes=D).Instantiate()
