"""Classes with an `__init__(hparams)`, as in older Pax."""

import dataclasses
import pickle

import pytest

from adaptors.pax_names.own import parameterizable
from pax_compat import base_hyperparams, errors


class Scale(parameterizable.BaseParameterizable):
  """Has a field."""

  _USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE = True

  class HParams(base_hyperparams.BaseHyperParams):
    factor: float
    names: list = dataclasses.field(default_factory=list)


class Scales(Scale):
  """Has another, and an argument."""

  class HParams(Scale.HParams):
    offset: int = 3

  def __init__(self, hparams, inner: Scale):
    super().__init__(hparams)
    self.inner = inner


def test_objects_have_their_hyperparameters():
  made = Scale(Scale.HParams(factor=2.0))
  assert made.hparams == Scale.HParams(factor=2.0, names=[], cls=Scale)
  config = Scales.config(offset=4, inner=Scale.config(factor=5.0))
  config.factor = 1.5
  built = pickle.loads(pickle.dumps(config)).Instantiate()
  assert isinstance(built, Scales) and isinstance(built.inner, Scale)
  assert isinstance(built.hparams, Scales.HParams)
  assert isinstance(built.hparams, Scale.HParams)
  assert (built.hparams.factor, built.hparams.offset) == (1.5, 4)
  assert built.hparams.cls is Scales
  assert built.inner.hparams.factor == 5.0
  partial = base_hyperparams.instantiate(Scales.partial(inner=None))
  assert partial(factor=7.0).hparams.factor == 7.0
  first, second = Scale.make(factor=1), Scale.make(factor=1)
  first.hparams.names.append('a')
  assert not second.hparams.names


def test_fields_are_copied_but_for_the_class():
  target = Scales.HParams(factor=1.0)
  target.copy_fields_from(Scale.HParams(factor=2.0))
  assert (target.factor, target.offset, target.cls) == (2.0, 3, Scales)


def test_classes_with_hparams_need_no_mark():
  class Old(parameterizable.BaseParameterizable):
    class HParams(parameterizable.BaseParameterizable.HParams):
      factor: float = 2.0

  assert Old.HParams(factor=3.0).Instantiate().hparams.factor == 3.0
  assert Old(Old.HParams()).hparams.factor == 2.0
  assert Old.config(factor=4.0).Instantiate().hparams.factor == 4.0


def test_mistakes():
  with pytest.raises(errors.UserError, match='has no field .fact'):
    Scale.config(fact=1.0)
  with pytest.raises(errors.UserError, match='expected FiddleBaseParam'):
    type('Unmarked', (parameterizable.BaseParameterizable,), {})
  with pytest.raises(TypeError, match='Duplicated parameter of Twice: factor'):

    def __init__(self, hparams, factor):  # noqa: N807
      del self, hparams, factor

    type('Twice', (Scale,), {'__init__': __init__})
  with pytest.raises(TypeError, match='must have a parameter named hparams'):
    type('Other', (Scale,), {'__init__': lambda self, p: None})
