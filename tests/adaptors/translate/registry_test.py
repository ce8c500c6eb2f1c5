"""Tests of adaptors.translate.registry: registration, rules of all layers."""

import doctest
import sys

import jax.numpy as jnp
import pytest

from adaptors import lingvo_runtime, translate
from adaptors.translate import registry
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView, Report
from pax_compat.layers import linears
from tests.adaptors.translate import parity

_MODULE = """
from adaptors.translate import registry


@registry.translates('made.up.Layer')
def layer(view):
  return 'translated'
"""


@pytest.fixture
def no_translators(monkeypatch):
  """Empties the registry during the test."""
  registry.load_translators()  # An imported module does not register again.
  empty = type(registry._translators)({}, {})
  monkeypatch.setattr(registry, '_translators', empty)


def test_a_new_module_is_found_in_its_folder(
  tmp_path, monkeypatch, no_translators
):
  folder = tmp_path / 'made_up'
  folder.mkdir()
  (folder / '__init__.py').touch()
  (folder / 'layers.py').write_text(_MODULE)
  monkeypatch.setattr(
    translate, '__path__', [*translate.__path__, str(tmp_path)]
  )
  registry.load_translators.__wrapped__()
  for name in ('made_up.layers', 'made_up'):
    del sys.modules[f'adaptors.translate.{name}']
  assert registry.registered()['made.up.Layer'](None) == 'translated'


@pytest.mark.parametrize('fallback_first', [False, True])
def test_a_fallback_gives_way_in_any_order(fallback_first, no_translators):
  for fallback in (fallback_first, not fallback_first):
    registry.translates('made.up.Layer', fallback=fallback)(
      'fallback' if fallback else 'translator'
    )
  assert registry.registered()['made.up.Layer'] == 'translator'


def test_a_fallback_is_used_where_there_is_nothing_else(no_translators):
  registry.translates('made.up.Layer', fallback=True)('fallback')
  assert registry.registered() == {'made.up.Layer': 'fallback'}


@pytest.fixture(scope='module')
def lingvo():
  return lingvo_runtime.module('lingvo.core.layers')


def test_the_example():
  results = doctest.testmod(registry)
  assert results.attempted > 0 and results.failed == 0


def _bias(*names):
  """Returns a translator that reads no field; its layer has some variables."""
  variables = VariableMap(Variable((name,), name) for name in names)
  return lambda view: registry.Translated(linears.Bias.config(), variables)


def _called(params, translator):
  """Returns the translation by a translator, and the issues."""
  view = ParamsView(params, 'layer', Report())
  translated = registry.call(translator, view)
  view.finish()
  return translated, [issue.field for issue in view.report.issues]


def test_dtypes_are_set_on_each_layer(lingvo):
  tf = lingvo_runtime.module('tensorflow')
  params = lingvo.IdentityLayer.Params().Set(
    fprop_dtype=tf.bfloat16, skip_lp_regularization=True
  )
  translated, _ = _called(params, _bias())
  assert translated.config.fprop_dtype == jnp.bfloat16
  assert translated.config.skip_lp_regularization is True


def test_fields_that_are_set_already_stay(lingvo):
  """As those of a child's config, which a translator returns."""
  tf = lingvo_runtime.module('tensorflow')
  softmax = lingvo.SimpleFullSoftmax.Params().Set(fprop_dtype=tf.bfloat16)
  params = lingvo.SharedSoftmaxLayer.Params().Set(
    name='softmax', softmax=softmax, input_dim=4, num_classes=8
  )
  assert parity.translate(params).config.fprop_dtype == jnp.bfloat16


def test_an_initializer_must_be_read_if_there_are_variables(lingvo):
  init = lingvo.py_utils.WeightInit.Uniform(0.1)
  params = lingvo.IdentityLayer.Params().Set(params_init=init)
  assert _called(params.Copy(), _bias())[1] == []
  assert 'params_init.method' in _called(params, _bias('w'))[1]


def test_an_inherited_initializer_is_read_by_the_child(lingvo):
  init = lingvo.py_utils.WeightInit.CustomVarInit(lambda shape: 0.0)
  params = lingvo.FeedForwardNet.Params().Set(
    name='net',
    input_dim=4,
    hidden_layer_dims=[4],
    batch_norm=False,
    params_init=init,
  )
  [issue] = parity.issues_of(params)
  assert issue.startswith('layer.projection[0].params_init (')
