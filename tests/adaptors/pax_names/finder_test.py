"""`praxis` and `paxml` are importable, and their names are ours."""

import importlib
import subprocess
import sys
import types

import jax
import pytest

from adaptors import pax_names
from adaptors.lingvo_input import input_adaptor
from adaptors.pax_names import finder, table
from adaptors.pax_names.own import parameterizable
from pax_compat import (
  base_layer,
  config,
  decoder_hparams,
  errors,
  layers,
  nested_map,
  tasks_lib,
)
from pax_compat import experiment_registry as our_registry
from pax_compat.layers import attentions
from pax_compat.tasks import train_states
from pax_compat.tuning import automl


@pytest.fixture(autouse=True)
def _installed():
  pax_names.install()


def test_names_are_ours():
  from paxml import automl as pax_automl
  from paxml import base_task, experiment_registry
  from paxml import tasks_lib as pax_tasks_lib
  from praxis import base_input, py_utils
  from praxis import layers as pax_layers
  from praxis.layers import attentions as pax_attentions
  from praxis.layers.linears import FeedForward

  assert pax_layers.Transformer is layers.Transformer
  assert FeedForward is layers.FeedForward
  assert pax_attentions.DotProductAttention is attentions.DotProductAttention
  assert pax_layers.attentions is pax_attentions
  assert pax_layers.chain.chain is layers.chain.chain
  assert py_utils.NestedMap is nested_map.NestedMap
  assert base_task.BaseTask is pax_tasks_lib.SingleTask is tasks_lib.SingleTask
  assert experiment_registry.register is our_registry.register
  assert pax_automl.SearchHParams is automl.SearchHParams
  assert issubclass(
    base_input.LingvoInputAdaptor, input_adaptor.LingvoInputAdaptor
  )


def test_names_of_videos_are_in_their_modules():
  from praxis.layers import video as pax_video
  from praxis.layers.video import enc_dec_3dcnn, losses, quantizer, vqvae

  assert pax_video.vqvae is vqvae and vqvae.quantizer is quantizer
  assert vqvae.Encoder is layers.video.Encoder
  assert losses.VQGANLoss is layers.video.VQGANLoss
  assert quantizer.ScalarQuantizer is layers.video.ScalarQuantizer
  assert enc_dec_3dcnn.depth_to_space is layers.video.depth_to_space
  assert callable(enc_dec_3dcnn.scan_function)
  assert not hasattr(importlib.import_module('praxis.layers'), 'Encoder')


def test_modules_have_those_that_paxs_import():
  from praxis import base_layer as pax_base_layer
  from praxis.layers import models, transformer_models

  assert models.transformer_models is transformer_models
  assert models.base_layer is pax_base_layer
  sample_decode = importlib.import_module('praxis.sample_decode')
  with pytest.raises(
    AttributeError, match='sample_decode.sample_decoding_step is not'
  ):
    sample_decode.sample_decoding_step()


@pytest.mark.parametrize('name', sorted(table.KNOWN))
def test_each_module_of_the_layout_is_importable(name):
  module = importlib.import_module(name)
  assert isinstance(module, finder.PaxModule)


@pytest.mark.parametrize(
  'name',
  [n for n in table.NAMES if not table.NAMES[n].startswith('lingvo.')],
)
def test_each_row_names_something(name):
  module, _, attribute = name.rpartition('.')
  assert getattr(importlib.import_module(module), attribute) is not None


def test_each_row_is_for_a_module_of_the_layout():
  assert table.MODULES.keys() <= table.KNOWN
  rows = {name.rpartition('.')[0] for name in table.NAMES}
  assert rows <= table.KNOWN
  for name in table.INSTEAD:
    assert name in table.KNOWN or name.rpartition('.')[0] in table.KNOWN


def test_an_absent_name_says_so():
  from praxis import layers as pax_layers

  with pytest.raises(AttributeError, match='praxis.layers.Transformr is not'):
    _ = pax_layers.Transformr
  with pytest.raises(AttributeError, match='did you mean: Transformer'):
    _ = pax_layers.Transformr
  assert not hasattr(pax_layers, 'Transformr')


def test_importing_an_absent_name_or_module_says_so():
  with pytest.raises(ImportError, match='praxis.layers.linears.Linaer is not'):
    from praxis.layers.linears import Linaer  # noqa: F401
  with pytest.raises(ImportError, match='praxis.layrs is not .* mean: layers'):
    import praxis.layrs  # noqa: F401
  with pytest.raises(ImportError, match='paxml.train.x.*pax_compat.main'):
    from paxml.train import x  # noqa: F401


def test_names_that_paxs_modules_take_from_others():
  from paxml import tasks_lib as pax_tasks_lib
  from praxis.beam_search import BeamSearchHParams
  from praxis.contrib.gpu.scripts_gpu import lora_layers
  from praxis.layers.linears import JTensor, LayerTpl, WeightInit

  assert JTensor is jax.Array and LayerTpl is config.Config
  assert WeightInit is base_layer.WeightInit
  assert BeamSearchHParams is decoder_hparams.BeamSearchHParams
  assert pax_tasks_lib.TrainState is train_states.TrainState
  assert lora_layers.LoraLinear is layers.LoraLinear


def test_experiments_of_vision_have_paxs_import_path():
  from paxml.tasks.vision.params import mnist as pax_mnist

  from lm_tasks.vision.params import mnist

  assert pax_mnist.MnistExperiment is mnist.MnistExperiment


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('paxml.tasks.lm.params.nvidia', '--pax_source=FOLDER of a checkout'),
    ('paxml.tools.fiddle.codegen', 'pax_compat.main with --check'),
    ('paxml.checkpoints.PaxCheckpointHandler', 'docs/warm_start.md'),
  ],
)
def test_what_is_absent_names_what_to_use(name, message):
  module, _, attribute = name.rpartition('.')
  with pytest.raises((ImportError, AttributeError), match=message):
    getattr(importlib.import_module(module), attribute)


def test_a_module_lists_its_names():
  from praxis.layers import linears

  assert 'FeedForward' in dir(linears)
  assert not any(
    isinstance(getattr(linears, name), types.ModuleType)
    for name in dir(linears)
  )


def test_names_that_differ_here():
  from praxis import base_hyperparams, pax_fiddle
  from praxis import base_layer as pax_base_layer

  assert pax_base_layer.BaseLayerApi is base_layer.BaseLayer
  own = parameterizable.BaseParameterizable
  assert base_hyperparams.BaseParameterizable is own

  class Outer(pax_base_layer.BaseLayer):
    linear_tpl: pax_fiddle.Config = pax_fiddle.template_field(layers.Linear)

  assert Outer.config().linear_tpl.cls is layers.Linear


def test_it_is_refused_where_the_real_one_is_imported():
  code = """
import sys, types
sys.modules['praxis'] = types.ModuleType('praxis')
sys.modules['praxis'].__file__ = '/real/praxis/__init__.py'
from adaptors import pax_names
from pax_compat import errors
try:
  pax_names.install()
except errors.UserError as e:
  assert '/real/praxis/__init__.py' in str(e)
else:
  raise AssertionError
"""
  subprocess.run([sys.executable, '-c', code], check=True)


def test_only_one_checkout(tmp_path, monkeypatch):
  monkeypatch.setattr(finder._finder, 'root', tmp_path / 'one')
  with pytest.raises(errors.UserError, match='already mounted'):
    finder.mount(tmp_path / 'two')


def test_modules_that_a_checkout_may_have():
  may_be = finder._may_be_in_checkout
  own = ('paxml.tasks.lm.params.mine', 'paxml.contrib.gpu.mine', 'paxml.utils')
  assert all(map(may_be, own))
  pax = ('paxml.learners', 'paxml.tools.fiddle', 'praxis.utils', 'paxml')
  assert not any(map(may_be, pax))


def test_a_module_of_a_fork_is_that_of_its_checkout(tmp_path, monkeypatch):
  folder = tmp_path / 'paxml'
  (folder / 'tasks').mkdir(parents=True)
  (folder / 'of_a_fork.py').write_text('from paxml import learners\n')
  monkeypatch.setattr(finder._finder, 'root', tmp_path)
  module = importlib.import_module('paxml.of_a_fork')
  assert module.__file__ == str(folder / 'of_a_fork.py')
  assert module.learners is sys.modules['paxml.learners']
