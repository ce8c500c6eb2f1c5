"""Recurrent layers against a loop over time in numpy.

Shapes: B batch, T time, D input nodes, N output nodes, H hidden nodes.
"""

import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import AUX_LOSS, PARAMS, RANDOM, SUMMARIES
from pax_compat.layers.rnn import recurrent, rnn_cells
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_rnn

B, T, D, N, H = 3, 6, 5, 4, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, T, D]).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[6], [4], [2]])).astype(np.float32)
SEGMENTS = np.array(
  [[1, 1, 1, 2, 2, 3], [1, 1, 2, 2, 0, 0], [1, 2, 0, 0, 0, 0]]
)
BOTH = pytest.mark.parametrize('cls', [recurrent.FRnn, recurrent.LstmFrnn])


def _inputs(x=X, **more):
  return NestedMap(act=x, padding=PADDINGS[..., None], **more)


def _part(part, inputs):
  """Returns a position or a slice of positions of inputs."""
  return jax.tree.map(lambda x: x[:, part], inputs)


def _layer(cls, cell=LstmCellSimple, *, reverse=False, unroll=1, **fields):
  tpl = cell.config(
    num_input_nodes=D, num_output_nodes=N, num_hidden_nodes=H, **fields
  )
  return cls.config(cell_tpl=tpl, reverse=reverse, unroll=unroll).Instantiate()


def _weights(layer, inputs=None):
  """Returns random values for all weights of a layer."""
  init = jax.eval_shape(layer.init, jax.random.key(0), inputs or _inputs())
  shapes = base_layer.unbox(init)[PARAMS]
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes
  )


def _run(layer, weights, *args, **kwargs):
  return jax.jit(functools.partial(layer.apply, **kwargs))(weights, *args)


def _check(actual, expected):
  outputs, (m, c) = expected
  np.testing.assert_allclose(actual[0], outputs, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(actual[1].m, m, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(actual[1].c, c, rtol=1e-5, atol=1e-5)


def test_examples():
  found = doctest.testmod(recurrent)
  assert found.attempted and not found.failed


@BOTH
@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('packed', [False, True])
def test_outputs_and_the_last_state(cls, reverse, packed):
  layer = _layer(cls, reverse=reverse, reset_cell_state=packed)
  segments = {'example_ids': SEGMENTS[..., None]} if packed else {}
  weights = _weights(layer)
  _check(
    _run(layer, {PARAMS: weights}, _inputs(**segments)),
    numpy_rnn.lstm(
      {},
      weights['cell'],
      X,
      PADDINGS,
      segment_ids=SEGMENTS if packed else None,
      reverse=reverse,
    ),
  )


@pytest.mark.parametrize(
  ('cell', 'fields'),
  [
    (rnn_cells.LayerNormalizedLstmCellSimple, {}),
    (rnn_cells.LstmCellSimple, {'couple_input_forget_gates': True}),
    (rnn_cells.LstmCellSimple, {'zo_prob': 0.2, 'forget_gate_bias': 1.0}),
  ],
)
def test_other_cells_without_their_inputs_products_in_the_loop(cell, fields):
  layer = _layer(recurrent.LstmFrnn, cell, unroll=2, **fields)
  weights = _weights(layer)
  with base_layer.eval_mode():
    actual = _run(layer, {PARAMS: weights}, _inputs())
  _check(actual, numpy_rnn.lstm(fields, weights['cell'], X, PADDINGS))


@BOTH
@pytest.mark.parametrize('reverse', [False, True])
def test_gradients_are_those_of_differences(cls, reverse):
  layer = _layer(cls, reverse=reverse, reset_cell_state=True)
  weights = {**_weights(layer)['cell'], 'x': X}
  of_outputs = RNG.normal(size=[B, T, N])
  of_cell = RNG.normal(size=[B, H])
  directions = {k: RNG.normal(size=v.shape) for k, v in weights.items()}

  def ours(arrays):
    arrays = dict(arrays)
    inputs = _inputs(arrays.pop('x'), example_ids=SEGMENTS[..., None])
    y, last = layer.apply({PARAMS: {'cell': arrays}}, inputs)
    return jnp.sum(y * of_outputs) + jnp.sum(last.c * of_cell)

  def in_numpy(arrays):
    arrays = dict(arrays)
    x = arrays.pop('x')
    y, (_, c) = numpy_rnn.lstm(
      {}, arrays, x, PADDINGS, segment_ids=SEGMENTS, reverse=reverse
    )
    return np.sum(y * of_outputs) + np.sum(c * of_cell)

  gradients = jax.jit(jax.grad(ours))(weights)
  for name in weights:  # Each on its own, so that errors do not cancel out.
    only = {
      k: d if k == name else np.zeros_like(d) for k, d in directions.items()
    }
    expected = numpy_rnn.derivative(in_numpy, weights, only)
    actual = np.sum(np.asarray(gradients[name], np.float64) * directions[name])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, err_msg=name)


@BOTH
def test_a_sequence_in_two_halves(cls):
  layer = _layer(cls)
  weights = {PARAMS: _weights(layer)}
  whole, last = _run(layer, weights, _inputs())
  first, between = _run(layer, weights, _part(slice(None, 3), _inputs()))
  rest = _part(slice(3, None), _inputs())
  second, end = _run(layer, weights, rest, between)
  np.testing.assert_allclose(
    np.concatenate([first, second], 1), whole, atol=1e-6
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), end, last
  )


@BOTH
def test_step_by_step(cls):
  layer = _layer(cls)
  weights = {PARAMS: _weights(layer)}
  whole, _ = _run(layer, weights, _inputs())
  state = layer.apply(weights, B, method='init_states')
  extend = jax.jit(functools.partial(layer.apply, method='extend_step'))
  for t in range(T):
    step = _part(t, _inputs())
    state, y = extend(weights, step, state)
    np.testing.assert_allclose(y, whole[:, t], atol=1e-6)
  np.testing.assert_array_equal(
    layer.apply(weights, state, method='get_output'), y
  )


def test_zoneout_in_training_draws_anew_at_each_step():
  """With all gates at 1 a cell counts the steps that it did not stay."""
  steps, nodes = 50, 200
  layer = recurrent.LstmFrnn.config(
    cell_tpl=LstmCellSimple.config(
      num_input_nodes=1,
      num_output_nodes=nodes,
      zo_prob=0.3,
      cell_value_cap=None,
    )
  ).Instantiate()
  inputs = NestedMap(
    act=jnp.zeros([1, steps, 1]), padding=jnp.zeros([1, steps, 1])
  )
  weights = {
    'wm': np.zeros([1 + nodes, 4 * nodes]),
    'b': np.full(4 * nodes, 99.0),
  }
  _, last = layer.apply(
    {PARAMS: {'cell': weights}}, inputs, rngs={RANDOM: jax.random.key(0)}
  )
  counts = np.array(last.c)[0]
  assert set(counts) <= set(range(steps + 1))
  deviation = np.sqrt(steps * 0.3 * 0.7)
  assert abs(counts.mean() - 0.7 * steps) < 4 * deviation / np.sqrt(nodes)
  assert abs(counts.std() / deviation - 1) < 0.2


class _Summing(rnn_cells.BaseRnnCell):
  """A cell that sums its inputs, with a summary and an auxiliary loss."""

  def setup(self):
    self.create_variable('scale', base_layer.WeightHParams([D]))

  def init_states(self, batch_size):
    return NestedMap(sum=jnp.zeros([batch_size, D]))

  def get_output(self, state):
    return state.sum

  def __call__(self, state0, inputs):
    self.add_summary('mean', jnp.mean(inputs.act))
    self.add_aux_loss('total', jnp.sum(inputs.act))
    return NestedMap(sum=state0.sum + inputs.act * self.theta.scale)


def test_a_cell_of_the_users_own():
  cell = _Summing.config(num_input_nodes=D, num_output_nodes=D)
  layer = recurrent.FRnn.config(cell_tpl=cell).Instantiate()
  weights = _weights(layer)
  (outputs, _), kept = layer.apply(
    {PARAMS: weights}, _inputs(), mutable=[AUX_LOSS, SUMMARIES]
  )
  np.testing.assert_allclose(
    outputs, np.cumsum(X, 1) * weights['cell']['scale'], rtol=1e-5, atol=1e-5
  )
  np.testing.assert_allclose(
    kept[SUMMARIES]['cell']['mean'].value, X.mean((0, 2)), atol=1e-6
  )
  np.testing.assert_allclose(
    kept[AUX_LOSS]['cell']['total'].value, X.sum(), rtol=1e-5
  )


class _StepOfItsOwn(LstmCellSimple):
  """A cell that doubles what it gets, in a method that only FRnn calls."""

  def __call__(self, state0, inputs):
    return super().__call__(state0, NestedMap(inputs, act=2 * inputs.act))


@pytest.mark.parametrize(
  'cell',
  [_StepOfItsOwn, _Summing],
)
def test_cells_that_the_fast_layer_would_not_run_are_refused(cell):
  tpl = cell.config(num_input_nodes=D, num_output_nodes=N)
  layer = recurrent.LstmFrnn.config(cell_tpl=tpl).Instantiate()
  with pytest.raises(errors.UserError, match='FRnn takes any cell'):
    _weights(layer)


@BOTH
def test_packed_examples_need_a_cell_that_starts_anew(cls):
  layer = _layer(cls)
  with pytest.raises(errors.UserError, match='reset_cell_state is False'):
    _weights(layer, _inputs(segment_ids=SEGMENTS[..., None]))


def test_paddings_of_another_shape_are_refused():
  inputs = NestedMap(act=X, padding=PADDINGS)
  with pytest.raises(errors.UserError, match=r'expected \[B, T, 1\]'):
    _weights(_layer(recurrent.LstmFrnn), inputs)


def test_an_unroll_of_nothing_is_refused():
  with pytest.raises(errors.UserError, match='LstmFrnn.unroll is 0'):
    _weights(_layer(recurrent.LstmFrnn, unroll=0))


def test_reset_mask():
  segments = np.array([[3, 3, 4, 0], [1, 2, 2, 2]])
  np.testing.assert_array_equal(
    recurrent.reset_mask(segments), [[1, 1, 0, 0], [1, 0, 1, 1]]
  )
  np.testing.assert_array_equal(
    recurrent.reset_mask(segments[..., None], reverse=True)[..., 0],
    [[1, 0, 0, 1], [0, 1, 1, 1]],
  )


def test_both_directions_side_by_side():
  cell = LstmCellSimple.config(
    num_input_nodes=D, num_output_nodes=N, num_hidden_nodes=H
  )
  layer = recurrent.BidirectionalFrnn.config(
    fwd_frnn_tpl=recurrent.LstmFrnn.config(cell_tpl=cell),
    bwd_frnn_tpl=recurrent.FRnn.config(cell_tpl=cell.clone()),
  ).Instantiate()
  weights = _weights(layer)
  outputs, states = _run(layer, {PARAMS: weights}, _inputs())
  for i, (name, reverse) in enumerate((('fwd', False), ('bwd', True))):
    _check(
      (outputs[..., i * N : (i + 1) * N], states[name]),
      numpy_rnn.lstm(
        {}, weights[f'{name}_frnn']['cell'], X, PADDINGS, reverse=reverse
      ),
    )
  start = layer.apply({PARAMS: weights}, B, method='init_states')
  again, _ = _run(layer, {PARAMS: weights}, _inputs(), start)
  np.testing.assert_array_equal(again, outputs)


@BOTH
@pytest.mark.parametrize('reverse', [False, True])
def test_segments_are_reset_as_in_pax(cls, reverse):
  """At the first position of each, but not within padding."""
  layer = _layer(cls, reverse=reverse, reset_cell_state=True)
  weights = {PARAMS: _weights(layer)}
  state0 = NestedMap(m=RNG.normal(size=[B, N]), c=RNG.normal(size=[B, H]))
  before = np.roll(SEGMENTS, 1, axis=1)
  before[:, 0] = -1
  mask = ((SEGMENTS == before) | (PADDINGS > 0)).astype('f')[..., None]
  results = [
    layer.apply(weights, _inputs(**packed), state0)
    for packed in ({'segment_ids': SEGMENTS[..., None]}, {'reset_mask': mask})
  ]
  jax.tree.map(np.testing.assert_array_equal, *results)
  other, _ = layer.apply(weights, _inputs(example_ids=SEGMENTS[..., None]))
  assert not np.allclose(results[0][0], other, atol=1e-3)
