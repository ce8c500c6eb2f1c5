"""Stacks of recurrent layers against loops in numpy.

Shapes: B batch, T time, D input nodes, N output nodes, H hidden nodes.
"""

import functools

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers.rnn import recurrent, recurrent_stacks
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.layers.stochastics import Dropout
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_rnn

B, T, D, N, H = 3, 6, 5, 4, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, T, D]).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[6], [4], [2]])).astype(np.float32)
INPUTS = NestedMap(act=X, padding=PADDINGS[..., None])


def _frnn(hidden=H, **cell_fields):
  cell = LstmCellSimple.config(num_hidden_nodes=hidden, **cell_fields)
  return recurrent.LstmFrnn.config(cell_tpl=cell)


def _stack(cls=recurrent_stacks.StackFrnn, **fields):
  return cls.config(
    **{'num_input_nodes': D, 'num_output_nodes': N, **fields}
  ).Instantiate()


def _weights(layer):
  """Returns random values for all weights of a layer."""
  init = jax.eval_shape(layer.init, jax.random.key(0), INPUTS)
  shapes = base_layer.unbox(init)[PARAMS]
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes
  )


def _run(layer, weights, *args, **kwargs):
  return jax.jit(functools.partial(layer.apply, **kwargs))(weights, *args)


def _part(part):
  """Returns a position or a slice of positions of the inputs."""
  return jax.tree.map(lambda x: x[:, part], INPUTS)


def _loops(weights, residual=()):
  """Returns the outputs of a stack in one direction."""
  x = X
  for i in range(len(weights)):
    y, _ = numpy_rnn.lstm({}, weights[f'frnn_{i}']['cell'], x, PADDINGS)
    x = x + y if i in residual else y
  return x


@pytest.mark.parametrize('residual', [(), (1,), (1, 2)])
def test_a_stack(residual):
  layer = _stack(frnn_tpl=_frnn(), num_layers=3, residual_layers=residual)
  weights = _weights(layer)
  assert set(weights) == {'frnn_0', 'frnn_1', 'frnn_2'}
  outputs, _ = _run(layer, {PARAMS: weights}, INPUTS)
  np.testing.assert_allclose(outputs, _loops(weights, residual), atol=1e-5)


def test_layers_of_different_sizes():
  templates = [
    _frnn(hidden=3, num_output_nodes=6),
    _frnn(hidden=0, num_output_nodes=2),
  ]
  layer = _stack(frnn_tpl=templates, num_layers=2, num_output_nodes=None)
  weights = _weights(layer)
  assert weights['frnn_0']['cell']['w_proj'].shape == (3, 6)
  assert weights['frnn_1']['cell']['wm'].shape == (6 + 2, 4 * 2)
  outputs, _ = _run(layer, {PARAMS: weights}, INPUTS)
  np.testing.assert_allclose(outputs, _loops(weights), atol=1e-5)
  assert not config_lib.is_set(templates[1].cell_tpl, 'num_input_nodes')


def test_one_template_twice_in_the_list_is_one_layer():
  tpl = _frnn()
  layer = _stack(frnn_tpl=[tpl, tpl], num_layers=2, num_input_nodes=N)
  inputs = NestedMap(INPUTS, act=X[..., :N])
  init = jax.eval_shape(layer.init, jax.random.key(0), inputs)
  assert set(init[PARAMS]) == {'frnn_0'}


def test_states_go_on():
  layer = _stack(frnn_tpl=_frnn(), num_layers=2, residual_layers=[1])
  weights = {PARAMS: _weights(layer)}
  whole, last = _run(layer, weights, INPUTS)
  state = layer.apply(weights, B, method='init_states')
  extend = jax.jit(functools.partial(layer.apply, method='extend_step'))
  for t in range(T):
    state, y = extend(weights, _part(t), state)
    np.testing.assert_allclose(y, whole[:, t], atol=1e-6)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state, last
  )
  first, between = _run(layer, weights, _part(slice(None, 2)))
  second, _ = _run(layer, weights, _part(slice(2, None)), between)
  np.testing.assert_allclose(
    np.concatenate([first, second], 1), whole, atol=1e-6
  )
  np.testing.assert_array_equal(
    layer.apply(weights, last, method='get_output'), last[-1].m
  )


def test_dropout_is_on_each_layers_output_before_the_residual():
  layer = _stack(
    frnn_tpl=_frnn(),
    num_layers=1,
    num_input_nodes=D,
    num_output_nodes=D,
    dropout_tpl=Dropout.config(keep_prob=0.6),
    residual_layers=[0],
  )
  weights = _weights(layer)
  plain, _ = numpy_rnn.lstm({}, weights['frnn_0']['cell'], X, PADDINGS)
  with base_layer.eval_mode():
    outputs, _ = _run(layer, {PARAMS: weights}, INPUTS)
  np.testing.assert_allclose(outputs, X + plain, atol=1e-5)
  outputs, _ = _run(
    layer, {PARAMS: weights}, INPUTS, rngs={RANDOM: jax.random.key(0)}
  )
  share = np.array(outputs - X) / plain
  kept = np.abs(share - 1 / 0.6) < 1e-3
  dropped = np.abs(share) < 1e-3
  assert np.all(kept | dropped | (np.abs(plain) < 1e-3))
  assert 0.4 < kept.mean() < 0.8


def test_a_stack_in_both_directions():
  layer = _stack(
    recurrent_stacks.StackBiFrnn,
    frnn_tpl=_frnn(),
    num_layers=2,
    residual_layers=[1],
  )
  weights = _weights(layer)
  assert set(weights) == {
    'fwd_frnn_0',
    'bwd_frnn_0',
    'fwd_frnn_1',
    'bwd_frnn_1',
  }
  x, last = X, []
  for i in range(2):
    pair = [
      numpy_rnn.lstm(
        {}, weights[f'{name}_frnn_{i}']['cell'], x, PADDINGS, reverse=reverse
      )
      for name, reverse in (('fwd', False), ('bwd', True))
    ]
    y = np.concatenate([outputs for outputs, _ in pair], -1)
    x = x + y if i == 1 else y
    last.append([m for _, (m, _) in pair])
  outputs, states = _run(layer, {PARAMS: weights}, INPUTS)
  assert outputs.shape == (B, T, N)
  np.testing.assert_allclose(outputs, x, atol=1e-5)
  for i, (fwd, bwd) in enumerate(last):
    np.testing.assert_allclose(states[i].fwd.m, fwd, atol=1e-5)
    np.testing.assert_allclose(states[i].bwd.m, bwd, atol=1e-5)
  start = layer.apply({PARAMS: weights}, B, method='init_states')
  again, _ = _run(layer, {PARAMS: weights}, INPUTS, start)
  np.testing.assert_array_equal(again, outputs)


@pytest.mark.parametrize(
  ('cls', 'fields', 'message'),
  [
    (recurrent_stacks.StackFrnn, {'num_layers': 0}, 'one layer or more'),
    (
      recurrent_stacks.StackFrnn,
      {'frnn_tpl': [_frnn()], 'num_layers': 2},
      'num_layers 2 and 1 templates',
    ),
    (
      recurrent_stacks.StackFrnn,
      {'residual_layers': [2], 'num_layers': 2},
      r'residual_layers has \[2\]; expected indices from 0 to 1',
    ),
    (
      recurrent_stacks.StackFrnn,
      {'residual_layers': [0]},
      'that layer has 5 input nodes and 4 output nodes',
    ),
    (
      recurrent_stacks.StackFrnn,
      {'frnn_tpl': _frnn(num_output_nodes=9)},
      'num_output_nodes is 9, but its parent layer sets it to 4',
    ),
    (
      recurrent_stacks.StackBiFrnn,
      {'num_output_nodes': 5},
      'expected an even number',
    ),
  ],
)
def test_stacks_that_do_not_fit_together_are_refused(cls, fields, message):
  with pytest.raises(errors.UserError, match=message):
    _weights(_stack(cls, **fields))
