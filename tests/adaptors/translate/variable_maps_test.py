"""Maps of variables as a whole; their transforms are tested with their uses."""

import doctest

import numpy as np

from adaptors.translate import variables as variables_lib
from adaptors.translate.training import variable_layout
from adaptors.translate.variables import Transpose, Variable, VariableMap

VARIABLES = VariableMap(
  [
    Variable(('a.w',), 'a/w', Transpose((1, 0))),
    Variable(('a.moving_mean',), 'a/moving_mean', is_trainable=False),
    Variable(('b.w',), 'b/w'),
  ]
)
THETA = {
  'a.w': np.arange(6.0).reshape(2, 3),
  'a.moving_mean': np.ones(3),
  'b.w': np.zeros(2),
}


def test_the_example():
  results = doctest.testmod(variables_lib)
  assert results.attempted > 0 and results.failed == 0


def test_collections_and_children():
  for is_trainable, paths in (
    (True, {'x/a/w', 'x/b/w'}),
    (False, {'x/a/moving_mean'}),
  ):
    chosen = VARIABLES.under('outer', 'x').only(is_trainable=is_trainable)
    assert {v.jax for v in chosen} == paths
    assert {v.is_trainable for v in chosen} == {is_trainable}


def test_there_and_back():
  trained = VARIABLES.only(is_trainable=True)
  params = trained.to_jax(THETA)
  assert params['a']['w'].shape == (3, 2)
  flat = {'a/w': params['a']['w'], 'b/w': params['b']['w']}
  back = trained.to_lingvo(flat)
  assert sorted(back) == ['a.w', 'b.w']
  for path, value in back.items():
    np.testing.assert_array_equal(value, THETA[path])
  others = VARIABLES.only(is_trainable=False).to_jax(THETA)
  assert list(others) == ['a']


def test_a_stack_is_known_by_its_class():
  class Tall(variables_lib.Stack):
    """The same under another name."""

  class Stack:
    """Another class of the same name."""

  assert variable_layout.is_stack(variables_lib.Stack())
  assert variable_layout.is_stack(variables_lib.Chain((Tall(),)))
  assert not variable_layout.is_stack(Stack())
