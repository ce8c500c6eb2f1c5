"""The package of layers offers each of them, and loads in any order."""

import importlib
import inspect
import pkgutil

import pytest

from pax_compat import layers
from pax_compat.base_layer import BaseLayer
from pax_compat.layer_core import exports
from tests.pax_compat.launching import run_script

MODULES = [
  module.name
  for module in pkgutil.walk_packages(layers.__path__, f'{layers.__name__}.')
]


def _public_layers(module: str) -> list[type]:
  """Returns the layers that a module of the package defines."""
  members = vars(importlib.import_module(module)).values()
  return [
    member
    for member in members
    if inspect.isclass(member)
    and issubclass(member, BaseLayer)
    and member.__module__ == module
    and not member.__name__.startswith('_')
  ]


@pytest.mark.parametrize('module', MODULES)
def test_every_public_layer_is_offered(module):
  # Quantized layers have the names of the others, those of videos short ones.
  apart = layers.quantization, layers.video
  of_module = [x for x in apart if f'{module}.'.startswith(f'{x.__name__}.')]
  offering = of_module[0] if of_module else layers
  for layer in _public_layers(module):
    assert layer.__name__ in offering.__all__
    assert getattr(offering, layer.__name__) is layer


def test_what_is_offered_is_there_and_in_order():
  assert sorted(set(layers.__all__)) == layers.__all__
  for name in layers.__all__:
    assert inspect.isclass(getattr(layers, name)), name


def test_a_package_of_layers_offers_its_own():
  assert layers.attentions.DotProductAttention is layers.DotProductAttention
  assert layers.transformers.Transformer is layers.Transformer
  assert 'Linear' not in vars(layers.attentions)


def test_a_name_that_two_modules_define_is_refused(tmp_path, monkeypatch):
  folder = tmp_path / 'exports_twice'
  folder.mkdir()
  text = 'import flax.linen as nn\n\nclass Twice(nn.Module):\n  pass\n'
  for name, content in {'__init__': '', 'one': text, 'two': text}.items():
    (folder / f'{name}.py').write_text(content)
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(
    ImportError, match='exports_twice.one and exports_twice.two'
  ):
    exports.public_layers('exports_twice', [str(folder)])


def test_every_layer_is_found_by_its_name():
  assert len({m for m in MODULES if _public_layers(m)}) > 20
  for layer in (layers.Linear, layers.BatchNorm, layers.TransformerLm):
    assert issubclass(layer, BaseLayer)
    assert layer.HParams.config().cls is layer


_ATTRIBUTES = """
from pax_compat import layers
print(layers.models.LanguageModel.__name__, layers.linears.Linear.__name__)
"""


def test_modules_that_configs_name_need_no_import_of_their_own():
  done = run_script(_ATTRIBUTES)
  assert done.stdout.split() == ['LanguageModel', 'Linear'], done.stderr
