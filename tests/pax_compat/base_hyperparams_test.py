"""Tests of base_hyperparams."""

import dataclasses

import numpy as np
import pytest

from pax_compat import base_hyperparams, base_layer, errors, pax_fiddle

# What Pax writes of the same objects.
TEXT = """\
a : 3
arr : [0, 1, 2]
d.b : [1, {'q': 2}]
d.z : 1
f : callable/builtins/len
inner.t : "it's"
inner.x : 9
l : [1, (2, 'a')]
ty : type/builtins/int
"""


class Inner(base_hyperparams.BaseHyperParams):
  x: int = 1
  t: str = "it's"


class Outer(base_hyperparams.BaseHyperParams):
  a: int = 3
  inner: Inner = dataclasses.field(default_factory=Inner)
  arr: object = dataclasses.field(default_factory=lambda: np.arange(3))
  l: object = dataclasses.field(default_factory=lambda: [1, (2, 'a')])  # noqa: E741
  d: object = dataclasses.field(
    default_factory=lambda: {'z': 1, 'b': [1, {'q': 2}]}
  )
  ty: object = int
  f: object = len


class Meter(base_hyperparams.FiddleBaseParameterizable):
  unit: str = 'm'


def test_text_is_that_of_pax():
  outer = Outer()
  outer.inner.x = 9
  assert outer.to_text() == TEXT
  text, kinds = outer.to_text(include_types=True, separator='=')
  assert text.startswith('a = 3\n') and kinds['inner.t'] == 'str'


def test_copies_are_apart():
  one = Outer()
  other = one.clone().set(a=4)
  other.inner.x = 9
  assert (one.a, one.inner.x) == (3, 1)
  one.copy_fields_from(other)
  assert (one.a, one.inner.x) == (4, 9) and one.inner is not other.inner
  with pytest.raises(errors.UserError, match="no field 'x'"):
    one.copy_fields_from(Inner())
  one.copy_fields_from(Inner(), ['x', 't'])


def test_what_is_frozen_does_not_change():
  one = Outer()
  one.freeze()
  for target in (one, one.inner):
    with pytest.raises(errors.UserError, match='frozen'):
      target.x = 5
  copied = one.clone()
  copied.inner.x = 5
  with pytest.raises(AttributeError, match="no field 'innr'.*mean: inner"):
    copied.innr = 3


def test_a_field_is_declared_again_by_name_only():
  with pytest.raises(errors.UserError, match="the field 'x' of its parent"):

    class Wrong(Inner):
      x: int = 2

  class Right(Inner):
    _attribute_overrides = ('x',)
    x: int = 2

  assert Right().x == 2


def test_hyperparameters_have_configs():
  config = Outer.config(a=5)
  config.inner.x = 7
  built = config.Instantiate()
  assert (built.a, built.inner.x) == (5, 7)
  assert Outer.partial(a=6).a == 6


def test_other_classes_know_their_fields():
  meter = base_hyperparams.instantiate(Meter.config(name='one'), unit='cm')
  assert meter.hparams.unit == 'cm' and meter.hparams.cls is Meter
  assert meter.hparams.Instantiate().name == 'one'


def test_configs_are_text():
  config = pax_fiddle.Config(base_layer.BaseLayer, name='l')
  text = base_hyperparams.nested_struct_to_text({'a': [config], 'b': None})
  assert 'a[0].cls : type/pax_compat.base_layer/BaseLayer\n' in text
  assert 'a[0].weight_split_dims_mapping.wt : NoneType\n' in text
  assert text.endswith('b : NoneType\n')


def test_a_circle_is_refused():
  circle = {}
  circle['a'] = circle
  with pytest.raises(errors.UserError, match='contains itself'):
    base_hyperparams.nested_struct_to_text(circle)
