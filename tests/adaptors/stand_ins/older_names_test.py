"""Tests of names that Lingvo changed, and of what only a checkout defines."""

import importlib

import pytest

from adaptors import lingvo_runtime
from adaptors.stand_ins import older_names, renames
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


@pytest.fixture(autouse=True, scope='module')
def _lingvo():
  lingvo_runtime.load()


def _value(name: str):
  module, _, last = name.rpartition('.')
  return getattr(importlib.import_module(module), last)


@pytest.mark.parametrize('old', sorted(renames.NAMES))
def test_renamed_names_are_those_of_today(old):
  assert _value(old) is _value(renames.current(old))


@pytest.mark.parametrize(
  ('old', 'new'),
  # A `params` package exists only where one is mounted.
  sorted(o for o in renames.MODULES.items() if '.params.' not in o[0]),
)
def test_renamed_modules_are_those_of_today(old, new):
  module = importlib.import_module(old)
  assert module is importlib.import_module(new)
  assert module.__spec__.name == new
  package, _, last = old.rpartition('.')
  assert getattr(importlib.import_module(package), last) is module


def test_old_schedules():
  lr_schedule = importlib.import_module('lingvo.core.lr_schedule')
  assert lr_schedule.BaseLearningRateSchedule is lr_schedule.BaseSchedule
  old = lr_schedule.TransformerLearningRateScheduleNoWarmUp
  assert old is lr_schedule.TransformerScheduleNoWarmUp


def test_a_layer_with_the_old_decorator():
  base_layer = importlib.import_module('lingvo.core.base_layer')
  py_utils = importlib.import_module('lingvo.core.py_utils')

  class Old(base_layer.LayerBase):
    @base_layer.initializer
    def __init__(self, params):
      super().__init__(params)
      self.CreateVariable('w', py_utils.WeightParams([2]))

  with lingvo_runtime.cluster():
    layer = Old.Params().Set(name='old').Instantiate()
  assert layer.vars.w.shape == [2]


@pytest.mark.parametrize('removed', sorted(renames.REMOVED))
def test_what_is_removed_is_absent_and_has_a_hint(removed):
  package, _, last = removed.rpartition('.')
  with pytest.raises(ImportError) as caught:
    exec(f'from {package} import {last}')  # noqa: S102
  hint = renames.of_error(caught.value)
  assert hint == f'; Lingvo removed it: expected {renames.REMOVED[removed]}'


def test_hints_for_other_errors():
  tf = importlib.import_module('tensorflow')
  with pytest.raises(AttributeError) as caught:
    _ = tf.flags
  assert 'from lingvo import compat as tf' in renames.of_error(caught.value)
  layers = importlib.import_module('lingvo.core.layers')
  with pytest.raises(AttributeError, match="'GELU_APPROXIMATE'") as caught:
    _ = layers.Gelu
  # It is in the message already.
  assert renames.of_error(caught.value) == ''
  with pytest.raises(AttributeError, match="has no attribute 'Nothing'$"):
    _ = layers.Nothing
  assert renames.of_error(ValueError('x')) == ''


_FORK = '''
from __future__ import print_function
import collections
from lingvo import compat as tf
from lingvo.core import base_layer as other_name
from tensorflow.contrib import function

SCALE = 3
pair = collections.namedtuple('pair', 'a b')


def AddedToPyUtils(x):
  """Needs a constant, a function of the installed module and an import."""
  return pair(SCALE * x, _Helper([x]))


def _Helper(x):
  return other_name.BaseLayer, Flatten(x)


def Flatten(x):
  raise RuntimeError('the installed one is used')


class Added(other_name.BaseLayer):

  def FProp(self, theta, x):
    return Recursive(x)


def Recursive(x):
  function = x  # No use of the import that fails.
  assert function == x
  return x if x < 2 else Recursive(x - 1)


def Broken():
  return 1


Broken = Undefined
'''


@pytest.fixture(name='py_utils')
def _fork(tmp_path, monkeypatch):
  """Returns the installed `py_utils`, with a checkout for the test."""
  file = tmp_path / 'lingvo' / 'core' / 'py_utils.py'
  file.parent.mkdir(parents=True)
  file.write_text(_FORK)
  module = importlib.import_module('lingvo.core.py_utils')
  before = dict(vars(module))
  monkeypatch.setattr(older_names._finder, 'root', None)
  monkeypatch.setattr(module.__getattr__, '_nodes', None)
  older_names.use_checkout(tmp_path)
  yield module
  for name in set(vars(module)) - set(before):
    delattr(module, name)


def test_a_fork_adds_functions_to_an_installed_module(py_utils, caplog):
  base_layer = importlib.import_module('lingvo.core.base_layer')
  with caplog.at_level('INFO', logger='absl'):
    result = py_utils.AddedToPyUtils(2)
  assert (result.a, result.b) == (6, (base_layer.BaseLayer, [2]))
  lines = [r.getMessage() for r in caplog.records]
  [line] = [x for x in lines if 'py_utils.AddedToPyUtils is in the' in x]
  number = _FORK.splitlines().index('def AddedToPyUtils(x):') + 1
  assert line.endswith(f'core/py_utils.py:{number}')
  assert not any('Flatten' in line for line in lines)


def test_a_fork_adds_a_layer(py_utils):
  assert py_utils.Added.__module__ == 'lingvo.core.py_utils'
  assert py_utils.Added.FProp(None, None, 4) == 1


def test_an_addition_that_fails_is_the_error_of_its_own_line(py_utils):
  with pytest.raises(NameError, match='Undefined'):
    _ = py_utils.Broken
  with pytest.raises(AttributeError, match='Missing'):
    _ = py_utils.Missing


def test_python_2_is_not_read(py_utils, monkeypatch, caplog):
  file = older_names._finder.file_of(py_utils)
  file.write_text('print "two"\n')
  with pytest.raises(AttributeError, match='SCALE'):
    _ = py_utils.SCALE
  assert 'is not Python 3' in caplog.text
