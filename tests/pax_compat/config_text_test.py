"""Tests of configs as text."""

import functools

import jax.numpy as jnp
import pytest

from pax_compat import config, config_text
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.weight_init import WeightInit
from tests.pax_compat import processes


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


def test_lines_are_in_the_order_of_declaration_with_full_paths():
  tree = Tree.config(
    leaves=[Leaf.config(zebra=5), 7], table={'b': Leaf.config(), 'a': 1}
  )
  tree.function = helper
  here = __name__
  assert config_text.to_text(tree, 'task').splitlines() == [
    f'task : {here}.Tree',
    'task.name = REQUIRED',
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
  text = config_text.to_text(Tree.config(), 't')
  assert 't.leaves = []\n' in text and 't.table = {}\n' in text


def test_without_a_name_paths_start_at_the_fields():
  lines = config_text.to_text(Leaf.config()).splitlines()
  assert lines[0].startswith('. : ') and lines[1] == 'zebra = 1'


def test_configs_are_opened_however_deep_they_are():
  tree = Tree.config(leaves=[{'a': [Leaf.config(zebra=7)]}])
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
def test_no_text_holds_an_address(value):
  assert ' at 0x' not in config_text.to_text(Tree.config(function=value))


def test_two_processes_write_the_same_text():
  script = """
    from pax_compat import config_text, tasks_lib
    from pax_compat.layers import models
    task = tasks_lib.SingleTask.config(model=models.LanguageModel.config())
    # The order of a set of strings depends on the seed of their hashes.
    task.model.lm_tpl.set(name=set('abcdefg'))
    print(config_text.to_text(task, 'task'))
  """
  texts = [
    processes.run_script(script, PYTHONHASHSEED=seed) for seed in ('1', '2')
  ]
  assert texts[0].returncode == 0, texts[0].stderr
  assert texts[0].stdout == texts[1].stdout
  assert 'task.model.lm_tpl.softmax_tpl.use_bias = True' in texts[0].stdout
  assert ' at 0x' not in texts[0].stdout
