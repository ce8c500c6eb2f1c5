"""Tests of py_utils; results of its array functions are Pax's."""

import logging
import pathlib

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pax_compat import errors, py_utils
from tests import source_tree
from tests.pax_compat.py_utils import py_utils_cases

RECORDED = 'testdata/pax/py_utils.npz'


def test_arrays_are_those_of_pax():
  recorded = dict(np.load(pathlib.Path(source_tree.ROOT) / RECORDED))
  for name, arrays in py_utils_cases.results(py_utils).items():
    for i, array in enumerate(arrays):
      expected = recorded.pop(f'{name}_{i}')
      np.testing.assert_allclose(array, expected, rtol=1e-6, err_msg=name)
      assert array.dtype == expected.dtype, name
  assert not recorded


def test_what_does_not_fit_is_refused():
  x = jnp.ones([3, 4, 2])
  for call in (
    lambda: py_utils.reshape_with_outer_batch_size(x, 2),
    lambda: py_utils.pad_or_trim_to(x, [3]),
    lambda: py_utils.tree_unstack([1], 0),
    lambda: py_utils.tree_unstack([x, x[:, :2]], 1),
    lambda: py_utils.get_large_negative_number(bool),
    lambda: py_utils.concat_sequences_with_padding(x, x, x, x),
    lambda: py_utils.get_global_input_shape_dtype(jnp.ones([])),
    lambda: py_utils.merge_dict({'a': [1]}, {'a': [1]}),
    lambda: py_utils.sharded_file_pattern_to_glob('a@2,b'),
    lambda: py_utils.make_array(x, x, None),
  ):
    with pytest.raises(errors.UserError):
      call()


def test_trees_have_names():
  tree = {'a': [1, {'b': 2}], 'c': (3,)}
  assert py_utils.extract_prefixed_keys_from_nested_map(tree) == {
    'a': ['a[0]', {'b': 'a[1]/b'}],
    'c': ('c[0]',),
  }
  matched = py_utils.match_variable_names(tree, [r'a\[1\]/b', 'c.*'])
  assert matched == {'a': [False, {'b': True}], 'c': (True,)}
  negative = jax.tree.map(lambda x: -x, tree)
  updated = py_utils.update_matched_variables(tree, negative, 'c.*')
  assert updated == {'a': [1, {'b': 2}], 'c': (-3,)}
  updated = py_utils.update_matched_variables(
    tree, negative, 'c.*', invert=True
  )
  assert updated == {'a': [-1, {'b': -2}], 'c': (3,)}
  assert (
    py_utils.total_num_vars({'a': jnp.ones([3, 4]), 'b': jnp.ones(2)}) == 14
  )


@flax.struct.dataclass
class Statistics:
  value: jax.Array
  start: int = flax.struct.field(pytree_node=False)


def test_fields_of_dataclasses_have_names():
  tree = {'a': Statistics(value=jnp.ones(2), start=1)}
  names = py_utils.extract_prefixed_keys_from_nested_map(tree)
  assert names['a'].value == 'a/value'
  assert jax.tree.leaves(names) == ['a/value']


def test_maps_are_split_and_joined():
  one, other = py_utils.filter_by_matching_keys({'ab': 1, 'c': 2}, ['a'])
  assert (one, other) == ({'ab': 1}, {'c': 2})
  m = py_utils.NestedMap(a=jnp.ones([2, 2]), b=py_utils.NestedMap(c=3))
  joined = py_utils.concat_nested_maps([m, m, m], 0)
  assert joined.a.shape == (6, 2) and joined.b.c == 3


def test_examples_have_an_id():
  example = dict.fromkeys(py_utils.ENUM_PROVENANCE_KEYS, np.array([7]))
  assert py_utils.get_enumeration_id(example).endswith('num_shards=7')
  assert py_utils.get_enumeration_id(example, pop=True) and not example
  assert py_utils.get_enumeration_id(example) is None


def test_arrays_over_devices():
  mesh = jax.make_mesh((jax.device_count(),), ('x',))
  spec = jax.sharding.PartitionSpec('x')
  rows = np.arange(4.0 * jax.device_count())
  shape = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
  array = py_utils.make_array(rows, shape, mesh, spec)
  np.testing.assert_array_equal(array, rows)
  assert array.sharding.spec == spec
  assert py_utils.get_uneven_sharding_paddings(
    jax.sharding.PartitionSpec('a', ('a', 'b'), None), [3, 5, 7], [2, 4], 'ab'
  ) == [1, 3, 0]
  padded = py_utils.maybe_pad_uneven_sharding(rows[:3], spec, (3,), [4], ['x'])
  assert padded.shape == (4,)
  cut = py_utils.maybe_slice_uneven_sharding(padded, spec, (3,))
  np.testing.assert_array_equal(cut, rows[:3])
  assert py_utils.create_device_mesh([1, jax.device_count()]).ndim == 2


def test_calls_are_timed(caplog):
  timed = py_utils.benchmark('test: ', first_n=1)(lambda: 3)
  with caplog.at_level(logging.INFO):
    assert timed() == timed() == 3
  assert caplog.text.count('took') <= 1
  with py_utils.timeit(min_elapsed=5) as period:
    pass
  assert period.elapsed == 5


def test_arrays_of_pmap_over_one_device_lose_its_dimension():
  x = jax.pmap(lambda x: x, devices=jax.devices()[:1])(jnp.ones([1, 3]))
  plain = jnp.ones([1, 3])
  mesh = jax.make_mesh(
    (1, 1), ('a', 'b'), (AxisType.Auto,) * 2, devices=jax.devices()[:1]
  )
  sharded = jax.device_put(plain, NamedSharding(mesh, PartitionSpec('a')))
  made = py_utils.maybe_unreplicate_for_fully_replicated([x, plain, sharded, 5])
  assert [getattr(one, 'shape', None) for one in made] == [
    (3,),
    (1, 3),
    (1, 3),
    None,
  ]
