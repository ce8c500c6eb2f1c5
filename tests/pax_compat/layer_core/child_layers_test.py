"""Tests of the steps in the docstring of `build_child`."""

import jax
import jax.numpy as jnp
import pytest

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import child_layers

# The layers that were set up, in order.
_set_up: list[str] = []


class Leaf(base_layer.BaseLayer):
  def setup(self):
    _set_up.append('.'.join(self.path))
    self.create_variable('w', base_layer.WeightHParams(shape=(2,)))

  def __call__(self):
    return self.theta.w.sum()


class Branch(base_layer.BaseLayer):
  leaf_tpl: Config = REQUIRED

  def setup(self):
    _set_up.append('.'.join(self.path))
    built = child_layers.build_child(self, 'leaf', self.leaf_tpl, {})
    assert built.parent is None and built.name is None and built.scope is None
    again = child_layers.build_child(self, 'leaf', self.leaf_tpl, {})
    assert again is built
    self.leaf = built
    assert self.leaf is not built  # The clone.
    assert self.leaf.name == 'leaf' and self.leaf.scope is not None

  def __call__(self):
    return self.leaf()


class Tree(base_layer.BaseLayer):
  leaf_tpl: Config = REQUIRED
  calls: bool = True

  def setup(self):
    branch = Branch.config(leaf_tpl=self.leaf_tpl)
    self.create_child('one', branch)
    self.create_child('two', branch.clone().set(leaf_tpl=self.leaf_tpl))

  def __call__(self):
    return self.one() + self.two() if self.calls else 0.0


@pytest.fixture(autouse=True)
def _nothing_is_set_up_yet():
  _set_up.clear()


def test_a_second_parent_gets_the_clone_of_the_first():
  variables = Tree(leaf_tpl=Leaf.config()).init(jax.random.key(0))
  assert list(variables['params']) == ['one']
  assert _set_up == ['one', 'one.leaf', 'two']


def test_a_child_is_set_up_when_it_is_called():
  Tree(leaf_tpl=Leaf.config(), calls=False).init(jax.random.key(0))
  assert _set_up == []


def test_set_up_sets_up_what_is_not_called():
  child_layers.set_up(Tree.config(leaf_tpl=Leaf.config(), calls=False))
  assert _set_up == ['one', 'one.leaf', 'two']


def test_each_call_builds_layers_anew():
  tree = Tree(leaf_tpl=Leaf.config())
  for _ in range(2):
    tree.init(jax.random.key(0))
  assert _set_up == ['one', 'one.leaf', 'two'] * 2


def test_what_is_no_template_is_refused():
  with pytest.raises(errors.UserError, match='one.leaf: expected a config'):
    Tree(leaf_tpl=3).init(jax.random.key(0))


class Row(base_layer.BaseLayer):
  leaf_tpl: Config = REQUIRED
  other_tpl: Config | None = None

  def setup(self):
    for i in range(2):
      self.create_child(f'leaf_{i}', self.leaf_tpl)
    self.create_children('leaves', [self.leaf_tpl] * 2)
    if self.other_tpl is not None:
      self.create_child('other', self.other_tpl)

  def __call__(self):
    leaves = [self.leaf_0, self.leaf_1, *self.leaves]
    if self.other_tpl is not None:
      leaves.append(self.other)
    return sum(leaf() for leaf in leaves)


class Pair(base_layer.BaseLayer):
  one_tpl: Config = REQUIRED
  two_tpl: Config = REQUIRED

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams(shape=()))
    self.create_child('one', self.one_tpl)
    self.create_child('two', self.two_tpl)

  def __call__(self):
    return self.one() + self.two()


def test_one_template_in_a_loop_is_several_layers():
  layer = Row(leaf_tpl=Leaf.config())
  variables = layer.init(jax.random.key(0))
  names = ['leaf_0', 'leaf_1', 'leaves_0', 'leaves_1']
  assert sorted(variables['params']) == names
  ones = jax.tree.map(lambda w: w * 0 + 1, variables)
  assert layer.apply(ones) == 8


def test_one_template_in_two_fields_is_one_layer():
  leaf = Leaf.config()
  variables = Row(leaf_tpl=leaf, other_tpl=leaf).init(jax.random.key(0))
  assert list(variables['params']) == ['leaf_0']


def test_an_id_for_sharing_makes_one_layer():
  leaf = Leaf.config(shared_weight_layer_id='mine')
  variables = Row(leaf_tpl=leaf).init(jax.random.key(0))
  assert list(variables['params']) == ['mine']


def test_shared_layers_within_shared_layers_are_at_the_root():
  leaf = Leaf.config(shared_weight_layer_id='the_leaf')
  row = Row.config(leaf_tpl=leaf, other_tpl=Leaf.config())
  row.shared_weight_layer_id = 'the_row'
  layer = Pair(one_tpl=row.clone(), two_tpl=row.clone())
  variables = layer.init(jax.random.key(0))
  assert jax.tree.map(jnp.shape, variables['params']) == {
    'the_leaf': {'w': (2,)},
    'the_row': {'other': {'w': (2,)}},
    'w': (),
  }
  ones = jax.tree.map(jnp.ones_like, variables)
  out, grads = jax.value_and_grad(layer.apply)(ones)
  assert out == 2 * 5 * 2
  assert grads['params']['the_leaf']['w'].tolist() == [8, 8]
  assert grads['params']['the_row']['other']['w'].tolist() == [2, 2]


@pytest.mark.parametrize('name', ['w', 'one'])
def test_an_id_that_names_something_else_is_refused(name):
  tpl = Leaf.config(shared_weight_layer_id=name)
  layer = Pair(one_tpl=Leaf.config(), two_tpl=tpl)
  with pytest.raises(errors.UserError, match=f'{name!r} is also the name of'):
    layer.init(jax.random.key(0))
