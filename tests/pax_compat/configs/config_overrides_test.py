"""Tests of setting config fields from strings."""

import enum

import jax.numpy as jnp
import pytest

from pax_compat import config, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.configs import config_overrides, config_text
from pax_compat.layer_core.weight_init import WeightInit


class Colour(enum.Enum):
  RED = 1
  BLUE = 2


class Mode(enum.StrEnum):
  FAST = 'quick'
  SLOW = 'slow'


class Leaf(config.Configurable):
  rate: float = 0.5
  steps: int = 3
  on: bool = False
  word: str = 'a'


class Tree(config.Configurable):
  need: object = REQUIRED
  maybe: object = None
  dtype: object = jnp.float32
  colour: Colour = Colour.RED
  mode: str = Mode.FAST
  init: WeightInit = WeightInit.Gaussian(0.5)
  shape: tuple = (1, 2)
  names: list = config.instance_field(lambda: ['x'])
  table: dict = config.instance_field(lambda: {'k': 1})
  function: object = print
  leaf: Config = sub_config_field(Leaf)
  leaves: list = config.instance_field(lambda: [Leaf.config(), Leaf.config()])


def _set(*settings: str) -> Config:
  tree = Tree.config()
  config_overrides.apply({'task': tree, 'list': [tree]}, settings)
  return tree


@pytest.mark.parametrize(
  ('setting', 'get', 'value'),
  [
    ('task.leaf.rate=1e-3', lambda t: t.leaf.rate, 1e-3),
    ('task.leaf.rate = 2', lambda t: t.leaf.rate, 2.0),
    ('task.leaf.steps=1e3', lambda t: t.leaf.steps, 1000),
    ('task.leaf.on=true', lambda t: t.leaf.on, True),
    ('task.leaf.word=1', lambda t: t.leaf.word, '1'),
    ("task.leaf.word='a=b c'", lambda t: t.leaf.word, 'a=b c'),
    ('task.leaves[1].steps=4', lambda t: t.leaves[1].steps, 4),
    ('list[0].leaf.steps=4', lambda t: t.leaf.steps, 4),
    ('task.need=[1, "a"]', lambda t: t.need, [1, 'a']),
    ('task.maybe=word', lambda t: t.maybe, 'word'),
    ('task.maybe=None', lambda t: t.maybe, None),
    ('task.leaf=None', lambda t: t.leaf, None),
    ('task.dtype=bf16', lambda t: t.dtype, jnp.dtype('bfloat16').type),
    ('task.dtype=bfloat16', lambda t: t.dtype, jnp.dtype('bfloat16').type),
    ('task.colour=BLUE', lambda t: t.colour, Colour.BLUE),
    ('task.colour=Colour.BLUE', lambda t: t.colour, Colour.BLUE),
    ('task.mode=slow', lambda t: t.mode, Mode.SLOW),
    ('task.mode=SLOW', lambda t: t.mode, Mode.SLOW),
    ('task.shape=[3]', lambda t: t.shape, (3,)),
    ('task.names=("y", "z")', lambda t: t.names, ['y', 'z']),
    ('task.table={"a": 2}', lambda t: t.table, {'a': 2}),
    ('task.table.k=5', lambda t: t.table['k'], 5),
    (
      "task.init=WeightInit(method='uniform', scale=0.1)",
      lambda t: t.init,
      WeightInit.Uniform(0.1),
    ),
  ],
)
def test_a_field_is_set_to_a_value_of_its_own_kind(setting, get, value):
  got = get(_set(setting))
  assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ('task.leaf.rate', 'expected path=value'),
    ('task.leaf.rat=1', "task.leaf .Leaf. has no field 'rat'.*did you mean"),
    (
      'tusk.leaf.rate=1',
      "unknown root 'tusk'; expected task, list; did you mean: task",
    ),
    ('task=1', 'task is a config'),
    ('task.leaf=1', 'task.leaf is a config of Leaf; set one of its fields'),
    ('task.leaf.steps=1.5', "task.leaf.steps: expected int, as in 3, got '1.5"),
    ('task.leaf.steps=1e999', "expected int, as in 3, got '1e999'"),
    ('task.leaf.steps=-1e999', "expected int, as in 3, got '-1e999'"),
    ('task.leaf.steps=True', 'task.leaf.steps: expected int'),
    ('task.leaf.on=1', 'task.leaf.on: expected bool'),
    ('task.leaf.rate=fast', 'task.leaf.rate: expected float'),
    ('task.leaf.rate.x=1', 'task.leaf.rate is 0.5, which has no field'),
    ('task.leaves[7].rate=1', 'task.leaves has 2 elements, no .7.'),
    (
      'task.leaves.x.rate=1',
      r"list, .*'x'; expected one of task.leaves\[0\], task",
    ),
    (f'task.leaf.rate=1{"0" * 400}', 'not within the range of a float'),
    (f'task.leaf.rate={"[" * 9000}', 'task.leaf.rate: expected float'),
    ('task..leaf=1', 'is not a path'),
    ('task.table.z=1', "task.table has no key 'z'"),
    ('task.shape[0]=1', 'elements cannot be set'),
    ('task.dtype=floaty', 'expected the name of a dtype'),
    ('task.colour=BLEU', "'BLEU' is not a Colour.*did you mean.*BLUE"),
    ('task.function=open', 'is a builtin.*, which cannot be set by a string'),
    ('task.init=WeightInit(scale=open("x"))', 'expected WeightInit.method='),
    ('task.init=Other(scale=1)', 'expected WeightInit.method='),
  ],
)
def test_an_invalid_setting_is_reported_and_changes_nothing(setting, message):
  with pytest.raises(errors.UserError, match=message):
    _set(setting)
  tree = Tree.config()
  with pytest.raises(errors.UserError):
    config_overrides.apply({'task': tree}, [setting])
  tree.need, other = 1, Tree.config(need=1)
  assert config_text.diff(tree, other) == ''


def test_the_last_of_two_settings_wins():
  assert _set('task.leaf.steps=4', 'task.leaf.steps=5').leaf.steps == 5


def test_text_of_a_config_sets_another_to_it():
  one = Tree.config(
    need='n',
    maybe=(1, 2.5),
    dtype=jnp.bfloat16,
    colour=Colour.BLUE,
    mode=Mode.SLOW,
    init=WeightInit.Uniform(0.25),
    shape=(4,),
    names=['p', 'q'],
    table={'k': 3},
  )
  one.leaf.set(rate=1e-9, steps=-1, on=True, word='it\'s "so"')
  other = Tree.config()
  settings = [
    line.replace(' = ', '=', 1)
    for line in config_text.to_text(one, 'task').splitlines()
    # Lines of configs are classes, and functions cannot be set.
    if ' = ' in line and '.function' not in line
  ]
  config_overrides.apply({'task': other}, settings)
  assert config_text.diff(one, other) == ''
