"""Tests of NestedMap."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fiddle import daglish
from flax import serialization

from pax_compat import errors
from pax_compat.config import Config
from pax_compat.nested_map import NestedMap


def test_keys_are_attributes():
  m = NestedMap(a=1)
  m.b = 2
  assert m['b'] == 2 and m.a == 1
  del m.a
  assert list(m) == ['b']
  assert getattr(m, 'a', 'none') == 'none'


def test_an_unknown_attribute_names_the_fields():
  m = NestedMap(labels=1, ids=2)
  for kind in (AttributeError, errors.UserError):
    with pytest.raises(kind, match="'id'.*ids, labels"):
      _ = m.id
  with pytest.raises(AttributeError):
    del m.id


def test_flax_saves_and_restores_the_values():
  m = NestedMap(x=[1, {2: 3}], y=NestedMap(z=np.ones(2)))
  state = serialization.to_state_dict(m)
  assert state['x'] == {'0': 1, '1': {'2': 3}}
  empty = NestedMap(x=[0, {2: 0}], y=NestedMap(z=np.zeros(2)))
  restored = serialization.from_bytes(empty, serialization.to_bytes(m))
  assert type(restored.y) is NestedMap and restored.x == m.x
  np.testing.assert_array_equal(restored.y.z, m.y.z)


def test_structure_does_not_depend_on_the_order_of_insertion():
  one, other = NestedMap(a=1, b=2), NestedMap(b=2, a=1)
  assert jax.tree.structure(one) == jax.tree.structure(other)
  assert jax.tree.leaves(other) == [1, 2]


def test_keys_count_in_the_structure():
  assert jax.tree.structure(NestedMap(a=1)) != jax.tree.structure(
    NestedMap(b=1)
  )


def test_goes_through_jit_and_grad():
  m = NestedMap(x=jnp.float32(3), inner=NestedMap(y=jnp.ones(2)))
  doubled = jax.jit(lambda m: m.transform(lambda x: 2 * x))(m)
  assert isinstance(doubled, NestedMap) and isinstance(doubled.inner, NestedMap)
  np.testing.assert_array_equal(doubled.inner.y, [2, 2])
  assert jax.grad(lambda m: m.x**2 * m.inner.y[0])(m).x == 6


def test_flatten_items_gives_dotted_paths_in_tree_order():
  m = NestedMap(b=1, a=NestedMap(z=[2, 3]))
  assert m.flatten_items() == [('a.z.0', 2), ('a.z.1', 3), ('b', 1)]


def test_nested_mappings_become_maps():
  made = NestedMap.from_nested({'a': {'b': 1}, 'c': [{'d': 2}]})
  assert made.a.b == 1 and isinstance(made.a, NestedMap)
  assert made.c == [{'d': 2}]


@dataclasses.dataclass
class _Thing:
  x: int


def test_fiddle_looks_into_maps():
  m = NestedMap(b=Config(_Thing, x=1), a=[Config(_Thing, x=2)])
  found = [one for one, _ in daglish.iterate(m) if isinstance(one, Config)]
  assert [one.x for one in found] == [1, 2]
  assert daglish.MemoizedTraversal.run(lambda v, s: s.map_children(v), m) == m


def test_copies():
  m = NestedMap(inner=NestedMap(y=[1]))
  shallow, deep = m.copy(), copy.deepcopy(m)
  shallow.new = 1
  deep.inner.y.append(2)
  assert 'new' not in m and m.inner.y == [1]
  assert shallow.inner is m.inner
  assert isinstance(shallow, NestedMap) and isinstance(deep.inner, NestedMap)


def test_paths_reach_into_maps_and_lists():
  m = NestedMap(b=[1, {'c': 2}], a=NestedMap(z=(3, 4)))
  m.Set('q[0].r', 5)
  m.Set('q[1]', 6)
  assert m.FlattenItems() == [
    ('a.z', (3, 4)),
    ('b[0]', 1),
    ('b[1].c', 2),
    ('q[0].r', 5),
    ('q[1]', 6),
  ]
  assert m.Has('b[1].c') and not m.Has('b[2]') and not m.Has('x.y')
  assert m.Get('q[1]') == 6 and m.Get('x.y', 'none') == 'none'
  assert m.GetSlice(['a.z']) == {'a': {'z': (3, 4)}}
  assert m.Filter(lambda v: v == 2) == {'b': [{'c': 2}]}
  assert m.FilterKeyVal(lambda k, v: False) == {}
  assert m.Pack([1, 2, 3, 4, 5]).b == [2, {'c': 3}]
  assert m.TransformWithKey(lambda k, v: k).a.z == 'a.z'
  assert m.Union(NestedMap(a=NestedMap(w=1))).a == {'z': (3, 4), 'w': 1}
  assert m.IsCompatible(m.DeepCopy()) and not m.IsCompatible(NestedMap())
  assert m.DebugString().splitlines()[2] == 'b[1].c    2'
  assert type(m.ToNestedDict()['a']) is dict
  assert NestedMap.SquareBracketIndex('a[3]') == ('a', 3)
  for wrong in ('b[3]', 'b[0].c', 'a b'):
    with pytest.raises(errors.UserError, match='path|cannot be set'):
      m.Set(wrong, 1)
  with pytest.raises(errors.UserError, match='3 values for the 5 leaves'):
    m.Pack([1, 2, 3])


def test_maps_are_made_of_dicts_and_dataclasses():
  @dataclasses.dataclass
  class Point:
    x: int

  assert NestedMap.FromNestedDict({'a': [{'b': 1}]}).a[0].b == 1
  assert NestedMap.FromNestedDataclass(Point(3)).x == 3
  with pytest.raises(errors.UserError, match='expected a dataclass'):
    NestedMap.FromNestedDataclass(3)
  with pytest.raises(errors.UserError, match='not a valid NestedMap key'):
    NestedMap.CheckKey('a b')
