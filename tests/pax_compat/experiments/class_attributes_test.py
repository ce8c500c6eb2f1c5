"""Tests of class attributes that are changed from the command line."""

import doctest
import enum
from typing import Optional

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, layers
from pax_compat.experiments import class_attributes


class _Policy(enum.StrEnum):
  ALL = 'all'
  NOTHING = 'nothing'


class _Base:
  DTYPE = jnp.bfloat16
  ACTIVATION_CLS = layers.ReLU
  POLICY = _Policy.ALL
  PERCORE_BATCH_SIZE: float = 16
  NUM_HEADS = None
  FILES: dict[str, str] | None = None
  DIMS: Optional[int] = None  # noqa: UP045 - as old experiments write it.

  class Inner:
    pass

  def task(self):
    return self.NUM_LAYERS * 2

  @property
  def size(self):
    return self.NUM_LAYERS


class _Experiment(_Base):
  """An experiment."""

  NUM_LAYERS = 2
  MESH = [1, 2]
  RATE = 1e-3
  NAME = 'words'
  USE_BIAS = False

  def __init__(self):
    self.own = 1


def _changed(*settings):
  return class_attributes.changed(_Experiment(), settings)


def test_examples():
  assert doctest.testmod(class_attributes).failed == 0


@pytest.mark.parametrize(
  'setting, value',
  [
    ('NUM_LAYERS=3', 3),
    ('MESH=[4,1]', [4, 1]),
    ('RATE=1', 1.0),
    ('NAME=other', 'other'),
    ('USE_BIAS=true', True),
    ('NUM_HEADS=4', 4),
    ("FILES={'dev': 'x'}", {'dev': 'x'}),
    ('DIMS=4', 4),
    ('NUM_LAYERS=None', None),
    ('DTYPE=float32', np.float32),
    ('ACTIVATION_CLS=GELU', layers.GELU),
    ('ACTIVATION_CLS=layers.GELU', layers.GELU),
    ('POLICY=nothing', _Policy.NOTHING),
    ('POLICY=NOTHING', _Policy.NOTHING),
    ('PERCORE_BATCH_SIZE=0.5', 0.5),
    (' PERCORE_BATCH_SIZE = 8', 8),
  ],
)
def test_values_have_the_type_of_the_attribute(setting, value):
  found = getattr(_changed(setting), setting.partition('=')[0].strip())
  assert found == value and isinstance(found, type(value))


def test_the_class_is_a_copy_with_the_same_name():
  made = _changed('NUM_LAYERS=3', 'NUM_LAYERS=4')
  assert (made.task(), made.size, made.own) == (8, 4, 1)
  assert type(made).__name__ == '_Experiment'
  assert type(made).__module__ == __name__
  assert type(made).__doc__ == 'An experiment.'
  assert isinstance(made, _Experiment) and type(made) is not _Experiment
  assert _Experiment.NUM_LAYERS == 2
  same = _Experiment()
  assert class_attributes.changed(same, []) is same


@pytest.mark.parametrize(
  'setting, message',
  [
    ('NUM_LAYER=3', "has no class attribute 'NUM_LAYER'; did you mean: NUM_LA"),
    ('task=3', "has no class attribute 'task'"),
    ('size=3', "has no class attribute 'size'"),
    ('Inner=3', "has no class attribute 'Inner'"),
    ('NUM_LAYERS', 'expected NAME=value'),
    ('NUM_LAYERS=2.5', "--attr=NUM_LAYERS: expected int, as in 2, got '2.5'"),
    ('NUM_LAYERS=__import__("os")', 'expected int'),
    ('FILES=/data/x.txt', 'FILES: expected dict, as in {}, got'),
    ('DIMS=wide', 'DIMS: expected int'),
    ('MESH=4', r"MESH: expected list, as in \[1, 2\], got '4'"),
    ('DTYPE=float33', 'expected the name of a dtype'),
    ('ACTIVATION_CLS=GELLU', "'GELLU' is not a class of .*activations; did"),
    ('POLICY=some', "'some' is not a _Policy"),
  ],
)
def test_settings_that_are_not_valid(setting, message):
  with pytest.raises(errors.UserError, match=message):
    _changed(setting)
