"""Tests of configs as text."""

import doctest
import functools

import jax.numpy as jnp
import pytest

from pax_compat import base_layer, config, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.configs import config_text
from pax_compat.layer_core.weight_init import WeightInit
from tests.pax_compat import launching


def helper():
  """Something to name in a config."""


class Leaf(config.Configurable):
  zebra: int = 1
  apple: str = 'a'


class Tree(config.Configurable):
  name: str = REQUIRED
  dtype: type = jnp.float32
  leaf: Config = sub_config_field(Leaf)
  leaves: list = config.instance_field(list)
  table: dict = config.instance_field(dict)
  shape: tuple = (1, 2)
  function: object = None
  init: WeightInit = WeightInit.Gaussian(0.5)


def test_the_example():
  found = doctest.testmod(config_text)
  assert found.attempted > 0 and found.failed == 0


def test_lines_are_in_the_order_of_declaration_with_full_paths():
  tree = Tree.config(
    name='n',
    leaves=[Leaf.config(zebra=5), 7],
    table={'b': Leaf.config(), 'a': 1},
  )
  tree.function = helper
  here = __name__
  assert config_text.to_text(tree, 'task').splitlines() == [
    f'task : {here}.Tree',
    "task.name = 'n'",
    'task.dtype = float32',
    f'task.leaf : {here}.Leaf',
    'task.leaf.zebra = 1',
    "task.leaf.apple = 'a'",
    f'task.leaves[0] : {here}.Leaf',
    'task.leaves[0].zebra = 5',
    "task.leaves[0].apple = 'a'",
    'task.leaves[1] = 7',
    f'task.table.b : {here}.Leaf',
    'task.table.b.zebra = 1',
    "task.table.b.apple = 'a'",
    'task.table.a = 1',
    'task.shape = (1, 2)',
    f'task.function = {here}.helper',
    "task.init = WeightInit(method='gaussian', scale=0.5)",
  ]


def test_the_order_of_setting_does_not_matter():
  one = Leaf.config(apple='b', zebra=2)
  other = Leaf.config().set(zebra=2).set(apple='b')
  assert config_text.to_text(one) == config_text.to_text(other)


def test_empty_containers_have_a_line():
  text = config_text.to_text(Tree.config(name='n'), 't')
  assert 't.leaves = []\n' in text and 't.table = {}\n' in text


def test_without_a_name_paths_start_at_the_fields():
  lines = config_text.to_text(Leaf.config()).splitlines()
  assert lines[0].startswith('. : ') and lines[1] == 'zebra = 1'


def test_deeply_nested_configs_have_lines():
  tree = Tree.config(name='n', leaves=[{'a': [Leaf.config(zebra=7)]}])
  assert 't.leaves[0].a[0].zebra = 7\n' in config_text.to_text(tree, 't')


@pytest.mark.parametrize(
  'value',
  [
    [lambda x: x],
    functools.partial(lambda x: x),
    functools.partial(helper, [lambda x: x], key=object()),
    object(),
  ],
)
def test_the_text_does_not_contain_addresses(value):
  assert ' at 0x' not in config_text.to_text(
    Tree.config(name='n', function=value)
  )


def test_two_processes_write_the_same_text():
  script = """
    from pax_compat.configs import config_text
    from pax_compat import optimizers, tasks_lib
    from pax_compat.layers import models
    task = tasks_lib.SingleTask.config(model=models.LanguageModel.config())
    task.train.learner.optimizer = optimizers.Adam.config(learning_rate=1e-3)
    # The order of a set of strings depends on the seed of their hashes.
    lm = task.model.lm_tpl.set(vocab_size=4, model_dims=2)
    stack = lm.stacked_transformer_tpl.set(num_layers=1)
    stack.transformer_layer_params_tpl.set(hidden_dims=2, num_heads=1)
    lm.set(name=set('abcdefg'))
    print(config_text.to_text(task, 'task'))
  """
  texts = [
    launching.run_script(script, PYTHONHASHSEED=seed) for seed in ('1', '2')
  ]
  assert texts[0].returncode == 0, texts[0].stderr
  assert texts[0].stdout == texts[1].stdout
  assert 'task.model.lm_tpl.packed_input = False' in texts[0].stdout
  assert ' at 0x' not in texts[0].stdout


class Layer(base_layer.BaseLayer):
  dims: int = REQUIRED

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams([self.dims]))


class Parent(base_layer.BaseLayer):
  one_tpl: Config = sub_config_field(Layer)
  two_tpl: Config = sub_config_field(Layer)

  def setup(self):
    self.create_child('one', self.one_tpl, dims=2)
    self.create_child('two', self.two_tpl)


class Holder(config.Configurable):
  layer: Config = REQUIRED
  leaves: list = config.instance_field(list)


@pytest.mark.parametrize(
  ('holder', 'path'),
  [
    (Holder.config(), 'task.layer is required by Holder'),
    (
      Holder.config(layer=Leaf.config(), leaves=[1, {'a': Tree.config()}]),
      r'task.leaves\[1\].a.name is required by Tree',
    ),
    (
      Holder.config(layer=Parent.config()),
      'task.layer.two.dims is required by Layer',
    ),
  ],
)
def test_a_required_field_is_named_by_its_full_path(holder, path):
  with pytest.raises(errors.UserError, match=f'^{path}$'):
    config_text.to_text(holder, 'task')


def test_required_fields_that_a_parent_sets_may_be_unset():
  parent = Parent.config()
  parent.two_tpl.dims = 3
  lines = config_text.to_text(parent, 'p').splitlines()
  assert 'p.one_tpl.dims = REQUIRED' in lines and 'p.two_tpl.dims = 3' in lines


def test_an_inherited_field_has_a_line_only_if_set():
  parent = Parent.config(dtype=jnp.bfloat16)
  parent.two_tpl.set(dims=3, fprop_dtype=jnp.float16)
  parent.two_tpl.weight_split_dims_mapping.wt = ['data']
  here = __name__
  assert config_text.to_text(parent, 'p').splitlines() == [
    f'p : {here}.Parent',
    'p.dtype = bfloat16',
    f'p.one_tpl : {here}.Layer',
    'p.one_tpl.dims = REQUIRED',
    f'p.two_tpl : {here}.Layer',
    'p.two_tpl.fprop_dtype = float16',
    'p.two_tpl.weight_split_dims_mapping :'
    ' pax_compat.layer_core.layer_fields.WeightSharding',
    "p.two_tpl.weight_split_dims_mapping.wt = ['data']",
    'p.two_tpl.dims = 3',
  ]


def test_a_shared_config_is_written_once():
  tpl = Layer.config(dims=2)
  lines = config_text.to_text(Parent.config(one_tpl=tpl, two_tpl=tpl), 'p')
  assert 'p.two_tpl : the same as p.one_tpl\n' in lines
  assert 'p.two_tpl.dims' not in lines


def test_a_diff_has_the_lines_of_only_one_config():
  a = Tree.config(name='n', leaves=[1, 2])
  b = a.clone().set(leaves=[1, 3], function=helper)
  b.leaf.zebra = 9
  assert config_text.diff(a, a.clone(), 't') == ''
  assert config_text.diff(a, b, 't').splitlines() == [
    '-t.leaf.zebra = 1',
    '+t.leaf.zebra = 9',
    '-t.leaves = [1, 2]',
    '+t.leaves = [1, 3]',
    '-t.function = None',
    f'+t.function = {__name__}.helper',
  ]
