"""Builder layers against the Lingvo layers that they stand for.

Shapes: B batch, T time, D dims, R repeats.
"""

import operator

import numpy as np
import pytest

from adaptors import lingvo_runtime
from tests.adaptors.translate.parity import check_layer

B, T, D, R = 3, 5, 4, 3
X, Y = np.random.default_rng(1).normal(size=(2, B, T, D)).astype(np.float32)


@pytest.fixture(scope='module')
def lingvo():
  """The modules of Lingvo that the tests take layers from."""

  class Modules:
    tf = lingvo_runtime.module('lingvo.compat')
    layers = lingvo_runtime.module('lingvo.core.layers')
    core = lingvo_runtime.module('lingvo.core.builder_layers')
    activations = lingvo_runtime.module('lingvo.core.activations')
    batch_major = lingvo_runtime.module('lingvo.core.batch_major_attention')
    with_attention = lingvo_runtime.module('lingvo.core.layers_with_attention')
    builder = lingvo_runtime.module('lingvo.core.builder').Base.Params()
    builder = builder.Instantiate()

  return Modules


def _flat(outputs) -> dict:
  """Returns outputs by name, whatever they are in."""
  if isinstance(outputs, dict):
    return {
      f'{k}.{name}': x for k in outputs for name, x in _flat(outputs[k]).items()
    }
  if isinstance(outputs, list | tuple):
    return _flat(dict(enumerate(outputs)))
  return {'': outputs}


def _check(params, *inputs, do_eval=True):
  # Rematerialisation is one of a graph's.
  function = lingvo_runtime.module('tensorflow').function
  check_layer(
    params,
    list(inputs),
    fprop=lambda layer, theta, *x: _flat(function(layer.FProp)(theta, *x)),
    call=lambda layer, *x: _flat(layer(*x)),
    do_eval=do_eval,
  )


def _linear(lingvo, name='linear', dims=D):
  return lingvo.builder._Linear(name, dims, D)


def _fc(lingvo, name='fc', act='TANH'):
  return lingvo.builder._FC(name, D, D, act)


def _two(lingvo):
  """A layer of two arguments and two outputs."""
  b = lingvo.builder
  return b._Graph(
    'two',
    ['a', 'b'],
    ['d', 'c'],
    ('a->c', _fc(lingvo)),
    ('b,c->d', b._Fn('add', lingvo.tf.add)),
  )


# Layers by what they test; each of the inputs that follow.
_CASES = {
  'linear': (_linear, [X]),
  'bias': (lambda m: m.builder._Bias('bias', D), [X]),
  'layer norm': (lambda m: m.builder._LN('ln', D), [X]),
  'projection': (
    lambda m: m.layers.ProjectionLayer.Params().Set(
      name='p', input_dim=D, output_dim=2, batch_norm=False, has_bias=True
    ),
    [X],
  ),
  'fully connected': (
    lambda m: m.layers.FCLayer.Params().Set(
      name='p', input_dim=D, output_dim=2, activation='SIGMOID'
    ),
    [X],
  ),
  'mlp': (lambda m: m.builder._MLP('mlp', [D, 6, 2], 'GELU'), [X]),
  'net': (
    lambda m: m.builder._Seq(
      'seq',
      m.layers.FeedForwardNet.Params().Set(
        name='net',
        input_dim=D,
        hidden_layer_dims=[6, 3],
        activation=['RELU', 'NONE'],
      ),
    ),
    [X],
  ),
  'activation with paddings': (
    lambda m: m.builder._Activation('act', 'LEAKY_RELU'),
    [X, Y[..., 0]],
  ),
  'identity': (
    lambda m: m.layers.IdentityLayer.Params().Set(name='id'),
    [X, Y],
  ),
  'nothing': (lambda m: m.builder._Id('id'), [X]),
  'nothing of two': (lambda m: m.builder._Id('id'), [X, Y]),
  'save': (lambda m: m.builder._Save('save'), [X]),
  'argument': (lambda m: m.builder._Arg('arg', 0), [X, Y]),
  'arguments': (
    lambda m: m.core.ArgIndexLayer.Params().Set(name='i', idx=[1, 0]),
    [X, Y],
  ),
  'first': (lambda m: m.core.FirstNLayer.Params().Set(name='n', n=1), [X, Y]),
  'first two': (
    lambda m: m.core.FirstNLayer.Params().Set(name='n', n=2),
    [X, Y, X],
  ),
  'nested map': (
    lambda m: m.builder._CreateNestedMap('m', ['a', 'b.c']),
    [X, Y],
  ),
  'print': (lambda m: m.builder._PrintShape('print'), [X, Y]),
  'reshape': (lambda m: m.builder._Reshape('r', [B, -1]), [X]),
  'concat': (lambda m: m.builder._Concat('c', axis=1), [X, Y]),
  'slice': (
    lambda m: m.core.SliceHelper()[:, 0, ::2].Set(name='slice'),
    [X],
  ),
  'function': (lambda m: m.builder._Fn('f', m.tf.nn.relu), [X]),
  'function of two': (lambda m: m.builder._Fn('f', operator.mul), [X, Y]),
  'map': (
    lambda m: m.core.MapLayer.Params().Set(
      name='map', fn=m.tf.reduce_sum, kwargs={'axis': 1}
    ),
    [X, Y],
  ),
  'map of one': (
    lambda m: m.core.MapLayer.Params().Set(name='map', fn=m.tf.sigmoid),
    [X],
  ),
  'sequence': (
    lambda m: m.builder._Seq('seq', _two(m), m.builder._Arg('arg', 0)),
    [X, Y],
  ),
  'sequence of sequences': (
    lambda m: m.core.SequentialLayer.Params().Set(
      name='seq', repeat=3, sub=[_fc(m, 'a'), _linear(m, 'b')]
    ),
    [X],
  ),
  'copies': (lambda m: m.builder._Rep('rep', 2, _fc(m, 'a')), [X]),
  'sequence of one': (
    lambda m: m.core.UnarySequentialLayer.Params().Set(
      name='seq', sub=[_fc(m, 'a'), _linear(m, 'b')]
    ),
    [X],
  ),
  'maps in a sequence': (
    lambda m: m.builder._Seq(
      'seq',
      m.builder._CreateNestedMap('m', ['a', 'b']),
      m.builder._Graph(
        'g', ['i'], ['o'], ('i.a,i.b->o', m.builder._Fn('f', m.tf.multiply))
      ),
    ),
    [X, Y],
  ),
  'side by side': (
    lambda m: m.builder._Par('par', _fc(m, 'a'), _linear(m, 'b')),
    [X],
  ),
  'tuples side by side': (
    lambda m: m.builder._Par(
      'par', _two(m), m.builder._Arg('arg', 1), m.builder._Id('id')
    ),
    [X, Y],
  ),
  'fetches': (
    lambda m: m.builder._AddFetches(
      'branch',
      m.builder._Seq(
        'stack',
        _fc(m, 'a'),
        m.builder._Seq('in', m.builder._Save('x'), _linear(m, 'b')),
        m.builder._Save('y'),
        _linear(m, 'c'),
      ),
      ['y', 'in.x'],
    ),
    [X],
  ),
  'batch parallel': (
    lambda m: m.builder._BatchParallel('split', _fc(m)),
    [X],
  ),
  'rematerialized': (
    lambda m: m.builder._Rematerialize('again', _two(m)),
    [X, Y],
  ),
  'repeated': (
    lambda m: m.core.RepeatLayer.Params().Set(
      name='rep', repeat=R, body=_fc(m)
    ),
    [X],
  ),
  'repeated with two arguments': (
    lambda m: m.core.RepeatLayer.Params().Set(
      name='rep', repeat=R, body=_two(m)
    ),
    [X, Y],
  ),
  'repeated with separate variables': (
    lambda m: m.core.RepeatLayer.Params().Set(
      name='rep', repeat=R, body=_fc(m), per_layer_vars=True
    ),
    [X],
  ),
  'repeated and unrolled': (
    lambda m: m.core.RepeatLayer.Params().Set(
      name='rep',
      repeat=2,
      body=_fc(m),
      per_layer_vars=True,
      unroll='always',
      start_layer_id=3,
    ),
    [X],
  ),
  'repeated twice': (
    lambda m: m.core.RepeatLayer.Params().Set(
      name='rep',
      repeat=2,
      body=m.core.RepeatLayer.Params().Set(name='inner', repeat=R, body=_fc(m)),
    ),
    [X],
  ),
  'in parallel': (
    lambda m: m.core.ParallelRepeatLayer.Params().Set(
      name='par', repeat=B, body=_fc(m)
    ),
    [X],
  ),
  'mixed': (
    lambda m: m.core.SoftCondLayer.Params().Set(
      name='mix', num_experts=3, cond_dim=D, body=_fc(m)
    ),
    [X],
  ),
  'mixed by what is not zero': (
    lambda m: m.core.SoftCondLayer.Params().Set(
      name='mix', num_experts=3, cond_dim=D, body=_fc(m), nonzeros_mean=True
    ),
    [np.where(X > 0, X, 0)],
  ),
  'residual': (
    lambda m: m.batch_major.ResidualAddLayer.Params().Set(
      name='add', residual_weight=0.5
    ),
    [X, Y],
  ),
  'padding': (
    lambda m: m.batch_major.PaddingLayer.Params().Set(name='pad'),
    [X, (Y[..., 0] > 0).astype(np.float32)],
  ),
}


@pytest.mark.parametrize('case', _CASES)
def test_a_layer(lingvo, case):
  make, inputs = _CASES[case]
  _check(make(lingvo), *inputs)


@pytest.mark.parametrize(
  'case', ['mlp', 'repeated', 'mixed', 'rematerialized', 'fetches']
)
def test_a_layer_that_is_trained(lingvo, case):
  make, inputs = _CASES[case]
  _check(make(lingvo), *inputs, do_eval=False)
