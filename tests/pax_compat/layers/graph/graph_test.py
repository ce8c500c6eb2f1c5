"""Graphs of layers against the same computation written out."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.graph import graph, graph_signature
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers.graph.containers_test import Times

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _run(inputs, outputs, sub, *args):
  """Returns a graph's output, and its weights."""
  config = graph.Graph.config(
    input_endpoints=inputs, output_endpoints=outputs, sub=sub
  )
  layer = config.Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, *args)
  got = jax.jit(layer.apply)(variables, *args)
  return got, base_layer.unbox(variables).get(PARAMS, {})


@pytest.mark.parametrize('module', [graph, graph_signature])
def test_examples(module):
  found = doctest.testmod(module)
  assert found.attempted and not found.failed


def test_a_graph():
  got, params = _run(
    ['a', 'b'],
    ['d', 'c'],
    [('a -> c', Times.config(value=3.0)), ('c,b->d', jnp.subtract)],
    X,
    X + 1,
  )
  np.testing.assert_allclose(got[0], 3 * X - (X + 1))
  np.testing.assert_allclose(got[1], 3 * X)
  assert params == {'sub_c': {'w': 3.0}}


def test_the_order_of_the_nodes_does_not_matter():
  nodes = [
    ('a->b', Times.config(value=2.0)),
    ('b->c', jnp.square),
    ('c,a->d', jnp.add),
  ]
  forth, _ = _run(['a'], ['d'], nodes, X)
  back, _ = _run(['a'], ['d'], nodes[::-1], X)
  np.testing.assert_allclose(forth, (2 * X) ** 2 + X)
  np.testing.assert_array_equal(back, forth)


def test_one_template_in_two_nodes_is_one_layer():
  tpl = Times.config(value=2.0)
  got, params = _run(['a'], ['c'], [('a->b', tpl), ('b->c', tpl)], X)
  np.testing.assert_allclose(got, 4 * X)
  assert len(jax.tree.leaves(params)) == 1


def test_paths_read_fields_of_maps():
  got, _ = _run(
    ['batch'],
    ['both.plus'],
    [
      ('batch.x,batch.more.y->both', lambda x, y: NestedMap(plus=x + y)),
    ],
    NestedMap(x=X, more=NestedMap(y=2 * X)),
  )
  np.testing.assert_allclose(got, 3 * X)


def test_a_node_may_have_several_outputs():
  got, _ = _run(['a'], ['q', 'r'], [('a->q,r', lambda x: (x // 2, x % 2))], X)
  jax.tree.map(np.testing.assert_allclose, got, (X // 2, X % 2))


def test_arguments_may_be_lists_and_maps():
  def node(pair, both):
    return pair[0] - pair[1] * both.y[0] + both.x

  got, _ = _run(
    ['a', 'b'],
    ['c'],
    [('[a, b],(x=a,y=[b.z])->c', lambda p, m: node((p[0], p[1].z), m))],
    X,
    NestedMap(z=2 * X),
  )
  np.testing.assert_allclose(got, X - 2 * X * 2 * X + X)


def test_fields_of_a_map_are_written_one_by_one():
  """Whoever reads the map gets it with all of its fields."""
  got, params = _run(
    ['a'],
    ['d', 'o.in.x'],
    [
      ('o->d', lambda o: o['in'].x + o.y),
      ('a->o.in.x', Times.config(value=3.0)),
      ('a->o.y', jnp.square),
    ],
    X,
  )
  np.testing.assert_allclose(got[0], 3 * X + X**2)
  np.testing.assert_allclose(got[1], 3 * X)
  assert params == {'sub_o_in_x': {'w': 3.0}}


def test_inputs_that_nothing_reads_can_be_allowed():
  config = graph.Graph.config(
    input_endpoints=['a', 'unread'],
    output_endpoints=['b'],
    sub=[('a->b', abs)],
    allow_unread_inputs=True,
  )
  np.testing.assert_allclose(config.Instantiate().apply({}, X, None), X)


def test_a_node_may_have_no_input():
  got, _ = _run(
    ['a'], ['c'], [('->b', lambda: jnp.ones([3])), ('a,b->c', jnp.add)], X
  )
  np.testing.assert_allclose(got, X + 1)


@pytest.mark.parametrize(
  ('inputs', 'outputs', 'sub', 'message'),
  [
    (['abc'], ['d'], [('abd->d', abs)], "writes 'abd'; did you mean: abc"),
    (['a'], ['bb'], [('a->b', abs)], "nothing writes 'bb'; did you mean: b"),
    (['a', 'x'], ['b'], [('a->b', abs)], "nothing reads the input 'x'"),
    (['a'], ['b'], [('a->b', abs), ('a->b', abs)], "'b' is written twice"),
    (['a'], ['a'], [('a->a', abs)], "'a' is written twice"),
    (
      ['a'],
      ['c'],
      [('a,c->b', jnp.add), ('b->c', abs)],
      'form a cycle: (b -> c -> b|c -> b -> c)',
    ),
    (['a'], ['b'], [('a', abs)], "'a' is not a signature"),
    (['a'], ['b'], [('[a->b', abs)], 'is not a signature'),
    (['a'], ['b'], [('(a)->b', abs)], 'is not a signature'),
    (['a'], ['b'], [('(x.y=a)->b', abs)], 'is not a signature'),
    (['a'], ['b'], [('a a->b', abs)], 'is not a signature'),
    (['a'], ['b'], [('a->[b]', abs)], 'is not a signature'),
    (['a'], ['b'], [('a->', abs)], 'is not a signature'),
    (['a'], ['b'], [('a->a.b', abs)], "both 'a' and 'a.b' are written"),
    (
      ['a'],
      ['b'],
      [('a->b', abs), ('a->b.c', abs)],
      "both 'b' and 'b.c' are written",
    ),
    (['a'], ['b.d'], [('a->b.c', abs)], "nothing writes 'b.d'"),
    (['a'], ['b'], [('a->b', 3)], 'sub_b: expected the config of a layer'),
    (['a'], ['b'], [('a.x->b', abs)], "no 'x' in 'a.x'"),
    (
      ['a'],
      ['b'],
      [('a->b,c', lambda x: (x,))],
      'returned 1 values; expected 2',
    ),
    (
      ['a', 'b'],
      ['c'],
      [('a,b->c', jnp.add)],
      'got 1 arguments; expected a, b',
    ),
  ],
)
def test_what_is_refused(inputs, outputs, sub, message):
  with pytest.raises(errors.UserError, match=message):
    _run(inputs, outputs, sub, X)


def test_the_nodes_are_what_is_split_over_a_mesh():
  config = graph.Graph.config(
    input_endpoints=['a'],
    output_endpoints=['b'],
    sub=[('a->b', abs)],
    activation_split_dims_mapping=graph.Graph.ActivationSharding.config(
      out=['data', None]
    ),
  )
  with pytest.raises(
    errors.UserError, match='expected that of the layers inside'
  ):
    config.Instantiate().init_boxed(jax.random.key(0), X)


def test_fields_of_maps_are_suggested():
  with pytest.raises(errors.UserError, match='did you mean: labels'):
    _run(
      ['batch'], ['b'], [('batch.label->b', abs)], NestedMap(labels=X, ids=X)
    )
