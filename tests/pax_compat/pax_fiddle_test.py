"""Tests of pax_fiddle: Pax's spellings of configs."""

import dataclasses
import functools
from typing import Any

import fiddle as fdl
import pytest

from pax_compat import base_layer, errors, pax_fiddle
from pax_compat.config import REQUIRED, set_fields


class Mark(pax_fiddle.Tag):
  """A tag."""


class Scale(base_layer.BaseLayer):
  factor: float = 1.0


@pax_fiddle.auto_config
def make_double():
  return Scale(factor=2.0)


class Block(base_layer.BaseLayer):
  scale_tpl: pax_fiddle.Config = pax_fiddle.template_field(Scale)
  none_tpl: pax_fiddle.Config = pax_fiddle.template_field(None)
  needed_tpl: pax_fiddle.Config = pax_fiddle.template_field()
  scale: Scale = pax_fiddle.instance_field(Scale, tags=Mark)
  double: Scale = pax_fiddle.instance_field(make_double)
  double_tpl: pax_fiddle.Config = pax_fiddle.template_field(make_double)
  sizes: list = pax_fiddle.fdl_field(default_factory=list, tags=[Mark])
  size: int = pax_fiddle.field(default=3)


class Wider(Block):
  width: int = 4


def test_fields_have_their_defaults_and_tags():
  block = pax_fiddle.Config(Block)
  assert block.scale_tpl.cls is Scale and block.none_tpl is None
  assert block.needed_tpl is REQUIRED and block.size == 3
  assert block.double.factor == block.double_tpl.factor == 2
  assert pax_fiddle.get_tags(block, 'scale') == {Mark}
  assert pax_fiddle.get_tags(block, 'sizes') == {Mark}
  fields = {f.name: f for f in Block.__dataclass_fields__.values()}
  assert pax_fiddle.field_has_tag(fields['sizes'], Mark)
  assert not pax_fiddle.field_has_tag(fields['size'], Mark)


def test_templates_stay_configs_and_instances_are_built():
  block = pax_fiddle.Config(Block, needed_tpl=Scale.config())
  block.scale.factor = 5.0
  layer = pax_fiddle.instantiate(block, size=7)
  assert isinstance(layer.scale_tpl, pax_fiddle.Config)
  assert isinstance(layer.double_tpl, pax_fiddle.Config)
  assert layer.scale.factor == 5 and layer.size == 7 and block.size == 3
  built = pax_fiddle.build({'a': [block], 'b': (1, Scale.config())})
  assert built['a'][0].size == 3 and built['b'][1].factor == 1
  with pytest.raises(errors.UserError, match='needed_tpl is required'):
    pax_fiddle.instantiate(pax_fiddle.Config(Block))


def test_a_config_changes_its_class():
  block = pax_fiddle.Config(Block, size=7)
  block.cls = Wider
  assert block.width == 4 and block.size == 7
  pax_fiddle.update_callable(block, Scale, drop_invalid_args=True)
  assert block.cls is Scale and block.factor == 1


def test_fields_are_copied_from_another_config():
  block = pax_fiddle.Config(Block, size=7, sizes=[1])
  wider = pax_fiddle.Config(Wider).Set(width=9)
  wider.copy_fields_from(block)
  assert wider.size == 7 and wider.sizes == [1] and wider.width == 9
  assert wider.sizes is not block.sizes
  with pytest.raises(ValueError, match="'width' not in self"):
    block.copy_fields_from(wider)
  block.copy_fields_from(wider, ['width'])
  with pytest.raises(errors.UserError, match='expected a config'):
    block.copy_fields_from(3)


def test_mesh_shape_is_over_all_slices():
  block = pax_fiddle.Config(Block, ici_mesh_shape=[1, 4])
  assert block.mesh_shape == [1, 4]
  assert block.set(dcn_mesh_shape=[2, 1]).mesh_shape == [2, 4]
  weight = pax_fiddle.Config(base_layer.WeightHParams, [3])
  assert weight.mesh_shape is None
  assert weight.set(mesh_shape=[5]).mesh_shape == [5]


def test_partials_are_functions():
  partial = pax_fiddle.Partial(Scale).set(factor=3.0)
  copied = partial.clone().Set(factor=4.0)
  make = pax_fiddle.build(partial)
  assert isinstance(make, functools.partial)
  assert make(name='x').factor == 3 and copied.factor == 4
  assert pax_fiddle.instantiate(partial, factor=5.0)().factor == 5
  assert issubclass(pax_fiddle.Partial, fdl.Partial)


@dataclasses.dataclass
class Wheel:
  radius: int = 5


@dataclasses.dataclass
class Axle:
  wheels: list[Wheel] = dataclasses.field(default_factory=list)
  spare_tpls: list[pax_fiddle.Config] = dataclasses.field(default_factory=list)
  hub: Wheel = None


@dataclasses.dataclass
class Factory:
  make: Any = None
  needed: Any = REQUIRED


@pax_fiddle.auto_config
def make_axle():
  return Axle(hub=Wheel(radius=9))


@dataclasses.dataclass
class Cart:
  axle: Axle = pax_fiddle.field(default_factory=make_axle)
  parent: str = ''


def test_configs_are_built_unless_the_annotation_is_a_config():
  wheel = pax_fiddle.Config(Wheel, radius=3)
  config = pax_fiddle.Config(Axle, wheels=[wheel], spare_tpls=[wheel])
  config.hub = wheel
  one, other = pax_fiddle.build([config, config])
  assert one.wheels == [Wheel(3)] and one.spare_tpls == [wheel]
  assert one.hub is one.wheels[0] and one.wheels is not other.wheels
  config.wheels.append(pax_fiddle.Config(Factory))
  with pytest.raises(errors.UserError, match=r'wheels\[1\].needed is required'):
    config.Instantiate()
  nested = pax_fiddle.Partial(Factory, make=wheel, needed=(1, {'a': wheel}))
  assert pax_fiddle.build(nested)().needed == (1, {'a': Wheel(3)})


def test_defaults_of_auto_config_are_configs():
  config = pax_fiddle.Config(Cart)
  config.axle.hub.radius += 1
  assert config.Instantiate().axle.hub == Wheel(10)
  assert Cart().axle.hub == Wheel(9)
  make = pax_fiddle.build(pax_fiddle.Partial(Cart))
  assert make().axle == make().axle and make().axle is not make().axle
  with pytest.raises(ValueError, match='makes a config without it'):
    pax_fiddle.field(default_factory=make_axle, configurable_factory=True)


@pax_fiddle.auto_config
def make_maker():
  return functools.partial(Factory, make=Wheel())


@dataclasses.dataclass
class Works:
  maker: Any = pax_fiddle.field(default_factory=make_maker)


def test_a_partial_in_a_partial_that_would_share_its_config_is_refused():
  assert pax_fiddle.Config(Works).Instantiate().maker(needed=1).make == Wheel()
  with pytest.raises(ValueError, match='Works.maker.* has a .*Partial'):
    pax_fiddle.Partial(Works)


def test_a_field_called_parent_can_be_set_and_is_not_copied():
  config = pax_fiddle.Config(Cart, parent='A')
  other = pax_fiddle.Config(Cart)
  other.copy_fields_from(config)
  assert config.Instantiate().parent == 'A' and other.parent == ''
  layer = pax_fiddle.Config(Scale)
  fdl.materialize_defaults(layer)
  assert layer.Instantiate().factor == 1


def test_a_function_takes_other_names():
  config = pax_fiddle.Config(dict, a=1).set(b=pax_fiddle.Config(Wheel))
  assert config.Instantiate() == {'a': 1, 'b': Wheel()}
  copied = pax_fiddle.Config(dict)
  copied.copy_fields_from(config, ['a', 'b'])
  assert copied.Instantiate() == {}


def test_what_has_no_value_is_not_copied():
  config = pax_fiddle.Config(Axle.__init__)
  with pytest.raises(ValueError, match="Can't copy from .*Axle.*self"):
    config.copy_fields_from(config)


def test_made_defaults_go_with_their_class():
  config = pax_fiddle.Config(Axle)
  config.cls = Wheel
  assert config.Instantiate() == Wheel()
  config = pax_fiddle.Config(Axle, wheels=[1])
  with pytest.raises(TypeError, match='wheels'):
    config.cls = Wheel


@dataclasses.dataclass
class Car:
  spare: Wheel = pax_fiddle.instance_field(Wheel)
  front: Wheel = pax_fiddle.field(
    default_factory=Wheel, configurable_factory=True
  )
  wheel_tpl: pax_fiddle.Config = pax_fiddle.template_field(
    lambda: Wheel(radius=7)
  )


def test_fields_of_plain_dataclasses():
  assert Car().spare == Car().front == Wheel()
  config = pax_fiddle.Config(Car)
  config.spare.set(radius=3)
  config.front.radius = 4
  assert config.wheel_tpl == pax_fiddle.Config(Wheel, radius=7)
  built = pax_fiddle.build(config)
  assert (built.spare, built.front) == (Wheel(3), Wheel(4))
  assert pax_fiddle.build(built.wheel_tpl) == Wheel(7)


def test_a_default_that_is_copied_stays_unset():
  wider = Wider.config(size=5, width=6)
  wider.copy_fields_from(Block.config())
  # So that a parent may set it, as in a template that was never changed.
  assert 'size' not in set_fields(wider)
  assert (wider.size, wider.width) == (3, 6)
  wider.copy_fields_from(Block.config(size=3))
  assert set_fields(wider)['size'] == 3
