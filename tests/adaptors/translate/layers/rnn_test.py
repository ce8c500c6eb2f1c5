"""Translated recurrent layers against the Lingvo layers they stand for.

Legend: B batch, T time, D input nodes, N output nodes, H hidden nodes, V
vocabulary.
"""

import itertools

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import check_layer, issues_of, translate

B, T, D, N, H, V = 3, 7, 5, 4, 6, 11
SEGMENTS = np.array(
  [[1, 1, 2, 2, 2, 3, 3], [1, 2, 2, 2, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]],
  np.int32,
)


@pytest.fixture(scope='module')
def lingvo():
  """The modules of Lingvo that the tests take layers from."""

  class Modules:
    cells = lingvo_runtime.module('lingvo.core.rnn_cell')
    layers = lingvo_runtime.module('lingvo.core.layers')
    rnn = lingvo_runtime.module('lingvo.core.rnn_layers')
    lm = lingvo_runtime.module('lingvo.tasks.lm.layers')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')

  return Modules


_counter = itertools.count()


def _new_name():
  """Returns a name: Lingvo takes layers of one name for the same."""
  return f'rnn_{next(_counter)}'


def _inputs(*shape):
  return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _paddings():
  """Returns paddings [B, T] of rows of full, middle and short length."""
  lengths = np.array([T, 4, 1])
  return (np.arange(T) >= lengths[:, None]).astype(np.float32)


def _fprop(outputs_of, *, packed=False, states=('m', 'c')):
  """Returns Lingvo's computation of a recurrent layer, from [B, T, D].

  Args:
    outputs_of: from what FProp returns to (outputs [T, B, ...], the last states
      by name, each a dict of arrays).
    packed: whether segment ids are given.
    states: names of the arrays of a state.
  """
  tf = lingvo_runtime.module('tensorflow')

  def wrapped(layer, theta, x, paddings):
    segments = {}
    if packed:
      segments['segment_id'] = tf.constant(SEGMENTS.T[..., None], tf.float32)
    outputs, last = outputs_of(
      layer.FProp(
        theta,
        tf.transpose(x, [1, 0, 2]),
        tf.transpose(paddings)[..., None],
        **segments,
      )
    )
    named = {f'{k}.{name}': s[name] for k, s in last.items() for name in states}
    return {'outputs': tf.transpose(outputs, [1, 0, 2]), **named}

  return wrapped


def _call(states_of, *, packed=False, states=('m', 'c')):
  """Returns our computation of the same."""

  def wrapped(layer, x, paddings):
    inputs = NestedMap(act=x, padding=paddings[..., None])
    if packed:
      inputs.example_ids = SEGMENTS[..., None]
    outputs, last = layer(inputs)
    named = {
      f'{k}.{name}': s[name]
      for k, s in states_of(last).items()
      for name in states
    }
    return {'outputs': outputs, **named}

  return wrapped


def _cell(lingvo, cls='LSTMCellSimple', **fields):
  return (
    getattr(lingvo.cells, cls)
    .Params()
    .Set(
      **{
        'num_input_nodes': D,
        'num_output_nodes': N,
        'num_hidden_nodes': H,
        **fields,
      }
    )
  )


def _check_frnn(params, *, packed):
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_fprop(lambda out: (out[0], {'last': out[1]}), packed=packed),
    call=_call(lambda last: {'last': last}, packed=packed),
  )


@pytest.mark.parametrize(
  ('cls', 'fields'),
  [
    ('LSTMCellSimple', {'num_hidden_nodes': 0, 'forget_gate_bias': 1.0}),
    ('LSTMCellSimple', {'cell_value_cap': 0.2}),
    (
      'LSTMCellSimple',
      {'cell_value_cap': None, 'output_nonlinearity': False},
    ),
    ('LSTMCellSimple', {'zo_prob': 0.3}),
    (
      'LSTMCellSimple',
      {'couple_input_forget_gates': True, 'forget_gate_bias': 0.5},
    ),
    (
      'LSTMCellSimple',
      {'enable_lstm_bias': False, 'forget_gate_bias': 0.5},
    ),
    ('LayerNormalizedLSTMCellSimple', {'layer_norm_epsilon': 1e-3}),
    ('LayerNormalizedLSTMCellSimple', {'couple_input_forget_gates': True}),
  ],
)
def test_steps_of_cells(lingvo, cls, fields):
  nested_map = lingvo.py_utils.NestedMap
  cell = _cell(lingvo, cls, name=_new_name(), **fields)
  hidden = cell.num_hidden_nodes or N
  state = {'m': _inputs(B, N), 'c': 0.5 * _inputs(B, hidden)}
  padding = np.array([[0], [1], [0]], np.float32)

  def fprop(layer, theta, x):
    inputs = nested_map(act=[x], padding=padding)
    new, _ = layer.FProp(theta, nested_map(state), inputs)
    return {'m': new.m, 'c': new.c}

  check_layer(
    cell,
    [_inputs(B, D)],
    fprop=fprop,
    call=lambda layer, x: dict(
      layer(NestedMap(state), NestedMap(act=x, padding=padding))
    ),
  )


def test_zoneout_that_is_repeatable_in_lingvo(lingvo):
  """In a FRNN, Lingvo has no other."""
  cell = _cell(lingvo, zo_prob=0.2, deterministic=True)
  params = lingvo.rnn.FRNN.Params().Set(name=_new_name(), cell=cell)
  assert translate(params).config.cell_tpl.zo_prob == 0.2


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('packed', [False, True])
def test_frnn(lingvo, reverse, packed):
  params = lingvo.rnn.FRNN.Params().Set(
    name=_new_name(), cell=_cell(lingvo), reverse=reverse, packed_input=packed
  )
  _check_frnn(params, packed=packed)


@pytest.mark.parametrize('packed', [False, True])
def test_both_directions(lingvo, packed):
  params = lingvo.rnn.BidirectionalFRNN.Params().Set(
    name=_new_name(),
    fwd=_cell(lingvo, name=_new_name()),
    bak=_cell(
      lingvo,
      'LayerNormalizedLSTMCellSimple',
      name=_new_name(),
      num_output_nodes=3,
    ),
    packed_input=packed,
  )
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_fprop(lambda outputs: (outputs, {}), packed=packed),
    call=_call(lambda last: {}, packed=packed),
  )


def test_cells_of_both_directions_that_are_one_in_lingvo(lingvo):
  params = lingvo.rnn.BidirectionalFRNN.Params().Set(
    fwd=_cell(lingvo), bak=_cell(lingvo)
  )
  (issue,) = issues_of(params)
  assert 'layer.bak.name' in issue


def _stack_params(lingvo, **fields):
  return lingvo.rnn.StackedFRNNLayerByLayer.Params().Set(
    name=_new_name(),
    num_layers=3,
    cell_tpl=[
      _cell(lingvo, num_output_nodes=D),
      _cell(lingvo, num_output_nodes=D, num_hidden_nodes=0),
    ],
    **fields,
  )


@pytest.mark.parametrize(
  ('fields', 'residual_layers'),
  [
    ({}, [1, 2]),
    ({'skip_start': 2}, [2]),
    ({'skip_start': 3}, []),
    ({'skip_start': -1}, []),
    ({'skip_start': 0}, [0, 1, 2]),
    ({'skip_start': 0, 'num_input_nodes': D}, [1, 2]),
    ({'skip_start': 0, 'num_output_nodes': 2}, [0, 1]),
  ],
)
def test_which_layers_of_a_stack_are_residual(lingvo, fields, residual_layers):
  config = translate(_stack_params(lingvo, **fields)).config
  assert config.residual_layers == residual_layers


@pytest.mark.parametrize(
  'fields',
  [
    {'skip_start': 0, 'packed_input': True},
    {'skip_start': 0, 'num_input_nodes': D},
    {'skip_start': 0, 'num_output_nodes': 2},
  ],
)
def test_a_stack(lingvo, fields):
  packed = fields.get('packed_input', False)
  check_layer(
    _stack_params(lingvo, **fields),
    [_inputs(B, T, D), _paddings()],
    fprop=_fprop(
      lambda out: (out[0], dict(enumerate(out[1].rnn))), packed=packed
    ),
    call=_call(lambda last: dict(enumerate(last)), packed=packed),
  )


def test_a_stack_of_one_cell(lingvo):
  params = _stack_params(lingvo).Set(
    cell_tpl=_cell(lingvo, num_input_nodes=N), num_layers=2
  )
  params.dropout.keep_prob = 0.75
  assert translate(params).config.dropout_tpl.keep_prob == 0.75
  check_layer(
    params,
    [_inputs(B, T, N), _paddings()],
    fprop=_fprop(lambda out: (out[0], {})),
    call=_call(lambda last: {}),
  )


def test_an_rnn_of_any_loop(lingvo):
  params = lingvo.rnn.RNN.Params().Set(
    name=_new_name(), cell=_cell(lingvo), sequence_length=T, reverse=True
  )
  _check_frnn(params, packed=False)


@pytest.mark.parametrize(
  'fields',
  [
    {'skip_start': -1},
    {'skip_start': 1},
    {'skip_start': 0, 'num_input_nodes': D, 'num_output_nodes': 6},
  ],
)
def test_a_stack_of_both_directions(lingvo, fields):
  params = lingvo.rnn.StackedBiFRNNLayerByLayer.Params().Set(
    name=_new_name(),
    num_layers=3,
    cell_tpl=[_cell(lingvo), _cell(lingvo, num_hidden_nodes=0)],
    **fields,
  )
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_fprop(lambda outputs: (outputs, {})),
    call=_call(lambda last: {}),
  )


def _lm_params(lingvo, name='RnnLm', *, packed=False, softmax=None):
  params = (
    getattr(lingvo.lm, name)
    .Params()
    .Set(name=_new_name(), vocab_size=V, packed_input=packed)
  )
  params.rnns = _stack_params(lingvo, num_output_nodes=N)
  params.softmax = softmax or params.softmax
  params.softmax.Set(input_dim=N, num_classes=V)
  if name == 'RnnLm':
    params.emb.Set(vocab_size=V, embedding_dim=D, scale_sqrt_depth=True)
  return params


def _labels(classes=V):
  rng = np.random.default_rng(3)
  ids = rng.integers(0, classes, [B, T]).astype(np.int32)
  return ids, (1 - _paddings()) * rng.uniform(0.5, 2, [B, T]).astype('f')


_XENT = ('avg_xent', 'total_xent', 'per_example_xent', 'last_hidden')


def _lm_fprop(lingvo, *, with_labels, packed):
  """Returns Lingvo's computation of a model, from [B, T, ...]."""
  tf = lingvo_runtime.module('tensorflow')
  nested_map = lingvo.py_utils.NestedMap

  def wrapped(layer, theta, inputs, paddings):
    ids, weights = map(tf.transpose, _labels())
    labels = nested_map(class_ids=ids, class_weights=weights)
    axes = [1, 0, 2][: inputs.shape.rank]
    segments = {}
    if packed:
      segments['segment_id'] = tf.constant(SEGMENTS.T[..., None], tf.float32)
    output, _ = layer.FProp(
      theta,
      tf.transpose(inputs, axes),
      tf.transpose(paddings),
      layer.zero_state(theta, B),
      labels if with_labels else None,
      **segments,
    )
    if not with_labels:
      return tf.transpose(output.logits, [1, 0, 2])
    result = {name: output[name] for name in _XENT}
    result['per_example_xent'] = tf.transpose(
      tf.reshape(result['per_example_xent'], [T, B])
    )
    result['last_hidden'] = tf.transpose(result['last_hidden'], [1, 0, 2])
    return result

  return wrapped


def _lm_call(*, with_labels, packed):
  """Returns our computation of the same."""

  def wrapped(layer, inputs, paddings):
    ids, weights = _labels()
    labels = NestedMap(class_ids=ids, class_weights=weights)
    segments = {'segment_ids': SEGMENTS} if packed else {}
    output = layer(
      inputs, paddings, labels if with_labels else None, **segments
    )
    if not with_labels:
      return output.logits
    return {name: output[name] for name in _XENT}

  return wrapped


@pytest.mark.parametrize('name', ['RnnLm', 'RnnLmNoEmbedding'])
@pytest.mark.parametrize(
  ('packed', 'with_labels'), [(False, True), (True, False)]
)
def test_language_models(lingvo, name, packed, with_labels):
  if name == 'RnnLm':
    inputs = np.random.default_rng(2).integers(0, V, [B, T]).astype(np.int32)
  else:
    inputs = _inputs(B, T, D)
  check_layer(
    _lm_params(lingvo, name, packed=packed),
    [inputs, _paddings()],
    fprop=_lm_fprop(lingvo, with_labels=with_labels, packed=packed),
    call=_lm_call(with_labels=with_labels, packed=packed),
    do_eval=not with_labels,
  )


def test_a_model_with_a_condition(lingvo):
  params = _lm_params(lingvo, 'ConditionalRnnLm').Set(condition_dim=2)
  params.emb.Set(vocab_size=V, embedding_dim=D - 2)
  params.embedding_dropout_keep_prob = 0.5  # Not at evaluation.
  tf = lingvo_runtime.module('tensorflow')
  ids = np.random.default_rng(2).integers(0, V, [B, T]).astype(np.int32)

  def fprop(layer, theta, condition, ids, paddings):
    output, _ = layer.FProp(
      theta,
      tf.transpose(ids),
      tf.transpose(paddings),
      layer.zero_state(theta, B),
      condition,
    )
    return tf.transpose(output.logits, [1, 0, 2])

  check_layer(
    params,
    [_inputs(B, 2), ids, _paddings()],
    fprop=fprop,
    call=lambda layer, condition, ids, paddings: (
      layer(ids, paddings, condition=condition).logits
    ),
  )
  config = translate(params).config
  assert config.embedding_dropout_tpl.keep_prob == 0.5


def test_a_model_with_a_simple_embedding_and_common_params(lingvo):
  params = lingvo.lm.RnnLm.CommonParams(
    vocab_size=V,
    emb_dim=D,
    num_layers=2,
    rnn_dims=N,
    rnn_hidden_dims=H,
    layer_norm=True,
    softmax_max_alloc=4 * V,
    couple_input_forget_gates=True,
  ).Set(name=_new_name())
  params.emb = lingvo.layers.SimpleEmbeddingLayer.Params().Set(
    vocab_size=V, embedding_dim=D
  )
  ids = np.random.default_rng(2).integers(0, V, [B, T]).astype(np.int32)
  check_layer(
    params,
    [ids, _paddings()],
    fprop=_lm_fprop(lingvo, with_labels=True, packed=False),
    call=_lm_call(with_labels=True, packed=False),
  )


def test_dropout_reaches_the_config(lingvo):
  params = _lm_params(lingvo).Set(embedding_dropout_keep_prob=0.6)
  params.rnns.dropout.keep_prob = 0.7
  config = translate(params).config
  assert config.embedding_dropout_tpl.keep_prob == 0.6
  assert config.rnns_tpl.dropout_tpl.keep_prob == 0.7


@pytest.mark.parametrize(
  ('path', 'value', 'issue'),
  [
    ('rnns.cell_tpl[1].apply_pruning', True, 'cell.apply_pruning'),
    ('rnns.cell_tpl[1].vn.global_vn', True, 'cell.vn.global_vn'),
    ('rnns.rnn_tpl.allow_implicit_capture', True, None),
    ('rnns.num_layers', 0, 'layer.rnns.num_layers'),
    ('rnns.dropout.noise_shape', [1], 'layer.rnns.dropout.noise_shape'),
    ('direct_features_dim', 3, 'layer.direct_features_dim'),
    ('softmax.apply_pruning', True, 'layer.softmax.apply_pruning'),
    ('softmax.num_classes', V + 1, 'layer.softmax.num_classes'),
    ('emb.vocab_size', V + 1, 'layer.emb.vocab_size'),
    ('emb_softmax', 'an_embedding', 'layer.emb_softmax'),
  ],
)
def test_what_is_not_translated_is_refused(lingvo, path, value, issue):
  params = _lm_params(lingvo)
  *parents, field = path.split('.')
  node = params
  for parent in parents:
    name, _, index = parent.rstrip(']').partition('[')
    node = node.Get(name)
    node = node[int(index)] if index else node
  node.Set(**{field: value})
  found = issues_of(params)
  if issue is None:
    assert not found
  else:
    assert found and all(issue in line for line in found), found


def test_a_random_first_state_is_refused(lingvo):
  init = lingvo.py_utils.RNNCellStateInit.RandomNormal()
  cell = _cell(lingvo, zero_state_init_params=init)
  params = lingvo.rnn.FRNN.Params().Set(name=_new_name(), cell=cell)
  (issue,) = issues_of(params)
  assert 'layer.cell.zero_state_init_params' in issue


def test_a_cell_of_the_users_own_is_refused(lingvo):
  class Doubled(lingvo.cells.LSTMCellSimple):
    """An LSTM that computes something else."""

    def _ProcessNewC(self, theta, new_c):  # noqa: N802 (Lingvo's name)
      return 2 * new_c

  cell = Doubled.Params().Set(num_input_nodes=D, num_output_nodes=N)
  params = lingvo.rnn.FRNN.Params().Set(name=_new_name(), cell=cell)
  (issue,) = issues_of(params)
  assert '_ProcessNewC' in issue
