"""Layers made of layers against Lingvo's builder layers, run for real.

Shapes: B batch, D features.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Variable, VariableMap
from pax_compat.layers import linears
from pax_compat.layers.graph import containers, graph
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import check_pair

B, D = 4, 6
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(2, B, D)).astype(np.float32)


@pytest.fixture(scope='module')
def builder():
  return lingvo_runtime.module('lingvo.core.builder_layers')


def _lingvo_linear(builder, name):
  return builder.LinearLayer.Params().Set(
    name=name, input_dims=D, output_dims=D
  )


def _linear():
  return linears.Linear.config(input_dims=D, output_dims=D)


def _check(params, config, names, inputs):
  check_pair(
    params,
    config,
    VariableMap(Variable((theirs,), ours) for theirs, ours in names.items()),
    inputs,
    fprop=lambda layer, theta, *x: layer.FProp(theta, *x),
    call=lambda layer, *x: layer(*x),
  )


def test_sequential(builder):
  tf = lingvo_runtime.module('tensorflow')
  function = builder.FnLayer.Params().Set(name='act', fn=tf.sin)
  params = builder.SequentialLayer.Params().Set(
    name='seq',
    sub=[
      _lingvo_linear(builder, 'first'),
      function,
      _lingvo_linear(builder, 'last'),
    ],
  )
  config = containers.Sequential.config(layers=[_linear(), jnp.sin, _linear()])
  names = {'first.w': 'layers_0/w', 'last.w': 'layers_2/w'}
  _check(params, config, names, [X])


@pytest.mark.parametrize('merge', ['sum', 'concat'])
def test_parallel(builder, merge):
  tf = lingvo_runtime.module('tensorflow')

  def lingvo_merge(outputs):
    outputs = [output for (output,) in outputs]
    if merge == 'sum':
      return (tf.add_n(outputs),)
    return (tf.concat(outputs, axis=-1),)

  params = builder.ParallelLayer.Params().Set(
    name='par',
    sub=[_lingvo_linear(builder, 'left'), _lingvo_linear(builder, 'right')],
    merge=lingvo_merge,
  )
  config = containers.Parallel.config(
    layers=[_linear(), _linear()], merge=merge
  )
  names = {'left.w': 'layers_0/w', 'right.w': 'layers_1/w'}
  _check(params, config, names, [X])


def test_graph(builder):
  """Two inputs, a node of two outputs, and a path into a NestedMap."""
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def nodes(linear, function, both, tree):
    return [
      ('a->c', linear('c')),
      ('c,b->d', function(lambda c, b: c * b)),
      ('d->e,f', function(lambda d: (d + 1, d - 1))),
      ('e,f->g', function(lambda e, f: tree(x=e * f, y=f))),
      ('g.x->h', linear('h')),
      ('h,g.y->out', function(both)),
    ]

  params = builder.GraphLayer.Params().Set(
    name='graph',
    input_endpoints=['a', 'b'],
    output_endpoints=['out'],
    sub=nodes(
      lambda name: _lingvo_linear(builder, name),
      lambda fn: builder.FnLayer.Params().Set(fn=fn),
      lambda h, y: tf.tanh(h) + y,
      py_utils.NestedMap,
    ),
  )
  config = graph.Graph.config(
    input_endpoints=['a', 'b'],
    output_endpoints=['out'],
    sub=nodes(
      lambda name: _linear(),
      lambda fn: fn,
      lambda h, y: jnp.tanh(h) + y,
      NestedMap,
    ),
  )
  names = {'c.w': 'sub_c/w', 'h.w': 'sub_h/w'}
  _check(params, config, names, [X, Y])
