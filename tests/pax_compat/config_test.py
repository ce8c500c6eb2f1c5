"""Tests of configs in both of their spellings."""

import dataclasses
import doctest
import typing

import fiddle as fdl
import pytest

from pax_compat import base_layer, config, errors
from pax_compat.config import REQUIRED, Config, sub_config_field


class Part(config.Configurable):
  size: int = 3
  tags: list = config.instance_field(list)


class Whole(config.Configurable):
  """Declared as plain fields."""

  dims: int = REQUIRED
  part: Config = sub_config_field(Part, size=4)


class OldWhole(config.Configurable):
  """Declared as Pax does."""

  class HParams(config.BaseHParams):
    """Its hyperparameters.

    Attributes:
      dims: how many.
      part: a template.
    """

    dims: int = REQUIRED
    part: Config = sub_config_field(Part.HParams, size=4)


class Layer(base_layer.BaseLayer):
  """A flax module, declared as Pax does."""

  class HParams(config.BaseHParams):
    dims: int = REQUIRED
    part: Config = sub_config_field(Part)


def test_the_examples():
  found = doctest.testmod(config)
  assert found.attempted > 0 and found.failed == 0


spellings = pytest.mark.parametrize('cls', [Whole, OldWhole])


@spellings
def test_both_spellings_declare_the_same_fields(cls):
  c = cls.HParams(dims=2)
  assert config.field_names(c) == ['dims', 'part']
  assert isinstance(c, Config) and c.cls is cls
  built = c.Instantiate()
  assert isinstance(built, cls)
  assert built.dims == 2 and built.part.size == 4


@spellings
def test_all_spellings_make_the_same_config(cls):
  for c in (
    cls.HParams(dims=2),
    cls.HParams.config(dims=2),
    cls.config(dims=2),
    Config(cls, dims=2),
    cls.HParams().set(dims=2),
  ):
    assert c == cls.HParams(dims=2) and c.dims == 2


def test_layers_have_their_own_fields_before_the_inherited_ones_hidden_not():
  c = Layer.HParams(dims=2)
  names = config.field_names(c)
  assert {'dims', 'part', 'dtype', 'name'} <= set(names)
  assert 'parent' not in names
  assert c.Instantiate().dims == 2


def test_partial_makes_a_callable_that_takes_the_other_fields():
  partial = Whole.HParams.partial(part=None)
  assert isinstance(partial, fdl.Partial)
  built = fdl.build(partial)(dims=7)
  assert (built.dims, built.part) == (7, None)


@pytest.mark.parametrize(
  'misuse',
  [
    lambda: Whole.HParams(dim=2),
    lambda: Whole.config().set(dim=2),
    lambda: setattr(Whole.config(), 'dim', 2),
    lambda: Whole.config().dim,
    lambda: Whole.HParams.partial(dim=2),
    lambda: Whole.config(dims=1).Instantiate(dim=2),
  ],
)
def test_a_typo_is_an_error_with_the_near_name(misuse):
  with pytest.raises(errors.UserError, match="no field 'dim'.*mean: dims"):
    misuse()


def test_an_own_init_is_refused():
  with pytest.raises(
    errors.UserError, match='Mine has an __init__; expected a'
  ):

    class Mine(config.Configurable):
      def __init__(self, hparams):
        self.hparams = hparams


def test_an_object_has_a_config_of_its_fields():
  class Counted(Whole):
    total: int = dataclasses.field(init=False)

    def __post_init__(self):
      self.dims += 1
      self.total = 2 * self.dims

  found = Counted.config(dims=1).Instantiate().hparams
  assert found.cls is Counted and found.dims == 2
  assert found.part.cls is Part and found.part.size == 4
  assert found.Instantiate().total == 6


@pytest.mark.parametrize('make', [Whole.HParams, lambda v: Config(Whole, v)])
def test_positional_values_are_refused(make):
  with pytest.raises(errors.UserError, match='Whole: .*set by name'):
    make(2)


def test_a_required_field_must_be_set():
  with pytest.raises(errors.UserError, match='Whole.dims is required'):
    Whole.config().Instantiate()
  assert Whole.config().Instantiate(dims=1).dims == 1


def test_a_required_value_does_not_have_attributes():
  class Holder(base_layer.BaseLayer):
    tpl: Config = REQUIRED

  tpl = Holder.config().tpl
  with pytest.raises(AttributeError, match="'dims' was read .* not set yet"):
    _ = tpl.dims
  with pytest.raises(AttributeError, match="'dims' was set on .* not set yet"):
    tpl.dims = 3


def test_required_stays_one_value_when_configs_are_copied():
  assert Whole.config().clone().dims is REQUIRED


def test_building_a_parent_does_not_build_its_templates():
  c = Whole.config(dims=1)
  built = c.Instantiate()
  assert built.part is c.part
  assert isinstance(built.part, Config)
  # Each build of the template makes another object.
  assert built.part.Instantiate() is not built.part.Instantiate()


def test_overrides_apply_to_one_object_only():
  c = Part.config(size=1)
  assert c.Instantiate(size=9).size == 9
  assert c.Instantiate().size == 1


def test_defaults_are_not_shared():
  one, other = Whole.config(), Whole.config()
  one.part.size = 99
  one.part.tags.append('x')
  assert other.part.size == 4 and other.part.tags == []
  assert Part().tags is not Part().tags


def test_a_clone_is_independent():
  c = Whole.config(dims=1)
  clone = c.clone()
  assert type(clone) is Config and clone == c
  clone.part.size = 5
  clone.dims = 2
  assert c.part.size == 4 and c.dims == 1
  # The history of a field is cloned, too, and grows separately.
  history = [len(x.__argument_history__['dims']) for x in (c, clone)]
  assert history == [1, 2]


def test_a_clone_shares_what_its_source_shares():
  part = Part.config()
  tpl = Whole.config(dims=part, part=part)
  clone = tpl.clone()
  assert clone.part is clone.dims and clone.part is not part


def test_derived_classes_have_all_fields_and_do_not_change_their_parents():
  class Derived(OldWhole):
    class HParams(config.BaseHParams):
      extra: int = 1
      dims: int = 5

  assert Derived.HParams().Instantiate().dims == 5
  assert config.field_names(Derived.HParams()) == ['dims', 'part', 'extra']
  assert config.field_names(OldWhole.HParams()) == ['dims', 'part']
  assert OldWhole.HParams().dims is REQUIRED


def test_field_values_are_those_set_and_the_defaults():
  c = Part.config()
  assert config.field_values(c) == {'size': 3, 'tags': []}
  c.size = 0
  assert config.field_values(c)['size'] == 0


def test_hparams_without_a_class_are_refused():
  class Loose(config.BaseHParams):
    dims: int = 1

  for make in (Loose, Loose.config, Loose.partial):
    with pytest.raises(errors.UserError, match='does not belong to a class'):
      make()


def test_fields_that_were_set():
  c = Whole.config()
  # The default factory has made the template.
  assert config.set_fields(c) == {'part': c.part}
  assert config.is_set(c, 'part') and not config.is_set(c, 'dims')
  c.dims = 2
  assert config.is_set(c, 'dims')
  config.set_fields(c)['dims'] = 3  # A copy.
  assert c.dims == 2
  partial = Part.HParams.partial(size=5)
  assert config.set_fields(partial) == {'size': 5}


@pytest.mark.parametrize('cls', [config.Configurable, base_layer.BaseLayer])
def test_type_checkers_know_what_a_config_builds(cls):
  made = typing.get_type_hints(cls.config)['return']
  assert made == Config[typing.Self]
  for method in (Config.Instantiate, Config.build):
    built = typing.get_type_hints(method)['return']
    assert isinstance(built, typing.TypeVar)
