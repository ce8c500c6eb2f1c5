"""Graphs of layers against Lingvo's `GraphLayer`.

Shapes: B batch, T time, D dims.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import check_layer, issues_of

B, T, D = 3, 5, 4
X, Y = np.random.default_rng(1).normal(size=(2, B, T, D)).astype(np.float32)


@pytest.fixture(scope='module')
def lingvo():
  """The modules of Lingvo that the tests take layers from."""

  class Modules:
    tf = lingvo_runtime.module('lingvo.compat')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    rnn = lingvo_runtime.module('lingvo.core.rnn_layers')
    base_layer = lingvo_runtime.module('lingvo.core.base_layer')
    core = lingvo_runtime.module('lingvo.core.builder_layers')
    builder = lingvo_runtime.module('lingvo.core.builder').Base.Params()
    builder = builder.Instantiate()

  return Modules


def _check(params, lingvo_inputs, jax_inputs, *inputs):
  """Compares a graph, whose inputs are made of two arrays on each side."""
  check_layer(
    params,
    list(inputs),
    fprop=lambda layer, theta, *x: layer.FProp(theta, *lingvo_inputs(*x)),
    call=lambda layer, *x: layer(*jax_inputs(*x)),
  )


def _as_they_are(*arrays):
  return arrays


def test_paths_lists_and_maps(lingvo):
  b, tf = lingvo.builder, lingvo.tf
  params = b._Graph(
    'graph',
    ['i', 'unread'],
    ['o'],
    ('i.x->h', b._FC('fc', D, D, 'TANH')),
    ('[h,i.x]->joined', b._Fn('join', tf.add_n)),
    ('(a=joined,b=(c=h))->tree', b._Id('id')),
    ('tree.b.c,tree.a->o.vec', b._Fn('mul', tf.multiply)),
    ('i.y->o.more', b._Linear('linear', D, 2)),
  )
  _check(
    params,
    lambda x, y: (lingvo.py_utils.NestedMap(x=x, y=y), y),
    lambda x, y: (NestedMap(x=x, y=y), y),
    X,
    Y,
  )


def test_a_layer_of_several_nodes(lingvo):
  b = lingvo.builder
  params = lingvo.core.GraphLayer.Params().Set(
    name='graph',
    input_endpoints=['a', 'b'],
    output_endpoints=['e'],
    sub_layers=[b._FC('fc', D, D, 'TANH'), b._Fn('add', lingvo.tf.add)],
    sub=[('a->c', 0), ('b->d', 0), ('c,d->e', 1)],
  )
  _check(params, _as_they_are, _as_they_are, X, Y)


def test_layers_without_names(lingvo):
  b = lingvo.builder
  params = b._Graph(
    'graph',
    ['a'],
    ['c'],
    ('a->b', b._Linear('', D, D)),
    ('b->c', b._Linear('', D, D)),
  )
  _check(params, _as_they_are, _as_they_are, X)


def test_fetches_from_a_graph(lingvo):
  b = lingvo.builder
  body = b._Graph(
    'graph',
    ['a'],
    ['c'],
    ('a->b', b._Seq('in', b._Linear('one', D, D), b._Save('save'))),
    ('b->c', b._Linear('two', D, D)),
  )
  check_layer(
    b._AddFetches('branch', body, ['in.save']),
    [X],
    fprop=lambda layer, theta, x: dict(
      zip('ab', layer.FProp(theta, x), strict=True)
    ),
    call=lambda layer, x: dict(zip('ab', layer(x), strict=True)),
  )


@pytest.mark.parametrize(
  ('nodes', 'message'),
  [
    ([('a->b', '_Id'), ('x->c', '_Id')], "nothing writes 'x'"),
    ([('a->b', '_Id'), ('a->b', '_Id')], "'b' is written twice"),
    ([('a->c', '_Id'), ('a->a.b', '_Id')], "both 'a' and 'a.b' are written"),
    ([('b->c', '_Id'), ('a->b', '_Id')], 'sub[0] (lingvo.core.builder_layers.'),
    ([('a', '_Id')], "'a' is not a signature"),
  ],
)
def test_graphs_that_are_refused(lingvo, nodes, message):
  b = lingvo.builder
  params = b._Graph(
    'graph',
    ['a'],
    ['c'],
    *((text, getattr(b, m)(f'n{i}')) for i, (text, m) in enumerate(nodes)),
  )
  [issue] = issues_of(params)
  assert message in issue


def test_names_that_are_there_twice(lingvo):
  b = lingvo.builder
  [issue] = issues_of(b._Seq('seq', b._Id('same'), b._Id('same')))
  assert 'sub (lingvo.core.builder_layers.SequentialLayer): 2 layers' in issue
  assert "called 'same'" in issue


def test_a_shared_layer_that_no_node_uses(lingvo):
  b = lingvo.builder
  params = lingvo.core.GraphLayer.Params().Set(
    name='graph',
    input_endpoints=['a'],
    output_endpoints=['b'],
    sub_layers=[b._Id('used'), b._Id('unused')],
    sub=[('a->b', 0)],
  )
  [issue] = issues_of(params)
  assert 'no node uses the layers [1]' in issue


def test_every_untranslated_part_is_named(lingvo):
  """A function, a layer without a translator, and one that is not a part."""

  def mine(x):
    return x

  class NobodyKnows(lingvo.base_layer.BaseLayer):
    """A layer of a user."""

  b = lingvo.builder
  frnn = lingvo.rnn.FRNN.Params().Set(name='rnn')
  unknown = NobodyKnows.Params().Set(name='unknown')
  params = b._Seq(
    'seq',
    b._Par('par', b._Fn('fn', mine), unknown),
    b._Rematerialize('again', frnn),
  )
  issues = sorted(issues_of(params))
  assert len(issues) == 3
  assert issues[0].startswith('layer.sub[0].sub[0].fn (lingvo.core.builder_l')
  assert 'every_untranslated_part_is_named.<locals>.mine' in issues[0]
  assert issues[1].startswith('layer.sub[0].sub[1] (')
  assert 'NobodyKnows' in issues[1]
  assert (
    'no translator is registered for this class; @translates_part' in issues[1]
  )
  assert issues[2].startswith('layer.sub[1].body (lingvo.core.rnn_layers.FRNN')
  assert 'not one for a sub-layer of a builder' in issues[2]


def test_a_part_that_computes_something_else(lingvo):
  class Halved(lingvo.core.LinearLayer):
    """Overrides what its parent computes."""

    def FProp(self, theta, inputs):
      return super().FProp(theta, inputs) / 2

  part = Halved.Params().Set(name='half', input_dims=D, output_dims=D)
  [issue] = issues_of(lingvo.builder._Seq('seq', part))
  assert issue.startswith('layer.sub[0] (')
  assert 'LinearLayer, since it overrides FProp; @translates_part(' in issue


def test_first_values_that_depend_on_the_repeats(lingvo):
  body = lingvo.builder._Linear('linear', D, D)
  body.params_init = lingvo.py_utils.WeightInit.GaussianSqrtFanIn()
  params = lingvo.core.RepeatLayer.Params().Set(name='r', repeat=2, body=body)
  [issue] = issues_of(params)
  assert "its params_init 'gaussian_sqrt_fanin' is not translated" in issue
  assert not issues_of(params.Set(per_layer_vars=True))


def test_a_fetch_that_is_not_there(lingvo):
  b = lingvo.builder
  params = b._AddFetches('branch', b._Seq('seq', b._Save('save')), ['saved'])
  [issue] = issues_of(params)
  assert "'saved' is not a layer of the body" in issue
  assert 'expected some of save' in issue
