"""The code in the documents that users have read runs, as it stands there.

Its names are those of `praxis` and `paxml`, which `pax_names.install` makes
importable.
"""

import inspect
import itertools
import pathlib
import re
import textwrap

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import pax_names
from pax_compat import (
  base_input,
  base_layer,
  base_model,
  config,
  errors,
  experiment_registry,
  tasks_lib,
)
from pax_compat.experiment_sources import SourceOptions
from pax_compat.layers import activations, models
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators

_REFERENCE = pathlib.Path(__file__).resolve().parents[2] / 'shared/reference'
# Each document's Python blocks, in order, by a word that only that block has.
_DOCUMENTS = {
  'paxml-readme.md': (
    'exp_profiler',
    'class BaseInput:',
    'inp.get_next',
    'class MyInput',
    'class Linear',
    'class FeedForward',
    'fdl_config',
    'BaseTask.HParams',
  ),
  'paxml-readme-pip.md': (
    'class BaseInput:',
    'inp.get_next',
    'class MyInput',
    'class Linear',
    'class FeedForward',
    'fdl_config',
    'BaseTask.HParams',
  ),
  'models.md': ('class BaseModel',),
  'learning-pax.md': (),
}
# What the blocks do not import.
_IMPORTS = """
from paxml import base_task
from praxis import base_input
from praxis import base_layer
from praxis.base_layer import BaseHParams, sub_config_field
from praxis.layers import activations
from praxis.layers.activations import ReLU
"""
# Blocks that use JAX only.
_NOT_OURS = ('exp_profiler',)
# An edition in which code has lost its marks and its indentation.
_PLAIN = 'paxml-readme-gpu.txt'


def _text(document: str) -> str:
  path = _REFERENCE / document
  if not path.is_file():
    pytest.skip(f'needs ../shared/reference/{document}, beside the checkout')
  return path.read_text('utf-8')


def _blocks(document: str) -> list[str]:
  found = re.findall(r'^```python\n(.*?)^```', _text(document), re.S | re.M)
  return [textwrap.dedent(block) for block in found]


def _block(document: str, word: str) -> str:
  (block,) = [b for b in _blocks(document) if word in b]
  return block


def _pax() -> dict:
  """Returns what the blocks take for granted: names imported from Pax."""
  pax_names.install()
  namespace: dict = {}
  exec(_IMPORTS, namespace)  # noqa: S102
  return namespace


def _run(block: str, **names) -> dict:
  """Runs a block with what it takes for granted; returns what it defined."""
  namespace = {**_pax(), '__name__': __name__, **names}
  exec(compile(block, '<document>', 'exec'), namespace)  # noqa: S102
  return namespace


def _documents_with(word: str):
  names = [name for name, words in _DOCUMENTS.items() if word in words]
  assert names
  return pytest.mark.parametrize('document', names)


@pytest.mark.parametrize('document', _DOCUMENTS)
def test_every_python_block_of_a_document_is_known_here(document):
  blocks, words = _blocks(document), _DOCUMENTS[document]
  for block, word in itertools.zip_longest(blocks, words):
    assert word in block
  tests = inspect.getsource(inspect.getmodule(_run))
  for word in set(words) - set(_NOT_OURS):
    assert f"@_documents_with('{word}')" in tests


def test_the_plain_edition_has_the_same_code():
  plain = [' '.join(line.split()) for line in _text(_PLAIN).splitlines()]
  for block in _blocks('paxml-readme.md')[1:]:
    for line in filter(None, map(str.strip, block.splitlines())):
      assert ' '.join(line.split()) in plain


@_documents_with('class BaseInput:')
def test_an_input_has_the_methods_that_are_shown(document):
  shown = _run(_block(document, 'class BaseInput:'))['BaseInput']
  for name, method in inspect.getmembers(shown, inspect.isfunction):
    ours = getattr(base_input.BaseInput, name)
    assert inspect.signature(ours).parameters.keys() == (
      inspect.signature(method).parameters.keys()
    )


class Ones(base_input.BaseInput):
  """An input of one's own."""

  def get_next(self):
    return NestedMap(ids=np.ones([self.batch_size, 2], np.int32))


@_documents_with('inp.get_next')
def test_a_batch_is_looked_at(document, capsys):
  block = _block(document, 'inp.get_next')
  chooses, rest = block.split('\n', 1)
  # The reader is told to put a config in the place of the dots.
  chooses = chooses.replace('...', 'Ones.HParams(batch_size=3)')
  found = _run(f'{chooses}\n{rest}', Ones=Ones)
  np.testing.assert_array_equal(found['b'].ids, np.ones([3, 2]))
  assert 'ids' in capsys.readouterr().out


@_documents_with('class MyInput')
def test_an_adaptor_is_subclassed(document, tmp_path):
  found = _run(_block(document, 'class MyInput'))
  lines = generators.unique_lines(30)
  pattern = generators.write_lines(tmp_path / 'lines.txt', lines)
  data = (
    found['MyInput']
    .HParams(input=generators.lm_params(pattern), is_training=True)
    .Instantiate()
  )
  try:
    batch = data.get_next()
  finally:
    data.close()
  assert batch.ids.shape[0] == 4


def _linear(document: str) -> type:
  block = _block(document, 'class Linear')
  return _run(block)['Linear']


@_documents_with('class Linear')
def test_hyperparameters_are_declared_in_a_nested_class(document):
  linear = _linear(document)
  p = linear.HParams(input_dims=2)
  assert (p.input_dims, p.output_dims) == (2, 0)
  p.output_dims = 3
  built = p.Instantiate()
  assert isinstance(built, linear) and built.output_dims == 3

  class Product(linear):
    """What the document leaves out."""

    def setup(self):
      shape = [self.input_dims, self.output_dims]
      self.create_variable('w', base_layer.WeightHParams(shape))

    def fprop(self, inputs):
      return inputs @ self.theta.w

  layer = Product.HParams(input_dims=2, output_dims=3).Instantiate()
  x = jnp.arange(4.0).reshape([2, 2])
  params = base_layer.unbox(layer.init(jax.random.key(0), x))
  np.testing.assert_allclose(layer.apply(params, x), x @ params['params']['w'])


@_documents_with('class FeedForward')
def test_templates_nest(document):
  linear = _linear(document)
  found = _run(_block(document, 'class FeedForward'), Linear=linear)
  p = found['FeedForward'].HParams(input_dims=4)
  assert p.has_bias and p.linear_tpl.cls is linear
  assert p.activation_tpl.cls is activations.ReLU
  p.linear_tpl.input_dims = 5
  # Every config has templates of its own, and none is built with its parent.
  assert found['FeedForward'].HParams().linear_tpl.input_dims == 0
  assert isinstance(p.Instantiate().linear_tpl, config.Config)


@_documents_with('fdl_config')
def test_a_typo_raises_at_once(document):
  linear = _linear(document)
  block = _block(document, 'fdl_config')
  with pytest.raises(errors.UserError, match='did you mean: input_dims'):
    _run(block, Linear=linear)
  before, typo, after = re.split(
    r'^(fdl_config\.input_dimz.*)$', block, flags=re.M
  )
  found = _run(before, Linear=linear)
  assert found['fdl_config'].input_dims == 1
  with pytest.raises(errors.UserError, match='did you mean: input_dims'):
    _run(typo, **found)
  built = _run(after, Linear=linear)['fdl_partial']
  assert fdl.build(built)(output_dims=2).output_dims == 2


@_documents_with('BaseTask.HParams')
def test_a_task_has_the_hyperparameters_that_are_listed(document):
  task = tasks_lib.SingleTask
  # The block is the head of a class inside of the task, its docstring cut off.
  block = _block(document, 'BaseTask.HParams') + '  """\n'
  shown = _run(block)
  listed = re.findall(r'^\s*(\w+):', shown['HParams'].__doc__, re.M)
  names = [name for name in listed if name != 'Attributes']
  assert {'model', 'train', 'metrics', 'loss_aggregator', 'vn'} <= set(names)
  p = task.HParams(name='mine', model=models.LanguageModel.HParams())
  for name in names:
    assert name in config.field_names(p)


@_documents_with('class BaseModel')
def test_a_model_is_a_layer_with_four_methods(document):
  shown = _run(_block(document, 'class BaseModel'))
  assert issubclass(shown['BaseModel'], base_layer.BaseLayer)
  ours = base_model.BaseModel
  assert issubclass(ours, base_layer.BaseLayer)
  text = _text(document)
  for name in re.findall(r'^\*   `(\w+)\(\)`', text, re.M):
    (section,) = re.findall(
      rf'^#### `{name}`\n(.*?)(?=^#|^---)', text, re.S | re.M
    )
    arguments = re.findall(r'^\*   (\w+): ', section, re.M)
    parameters = list(inspect.signature(getattr(ours, name)).parameters)
    assert parameters == ['self', *arguments][: len(parameters)]
    assert len(parameters) > 1
  for name in re.findall(r'^\*   (\w+Model)$', text, re.M):
    assert issubclass(getattr(models, name), ours)


def test_the_experiments_of_the_commands_are_there():
  text = _text('paxml-readme.md')
  names = set(re.findall(r'--exp=(tasks[\w.]+\.[A-Z]\w+)', text))
  names.add('tasks.lm.params.c4_multislice.C4Spmd22BAdam2xv4_128')
  assert len(names) == 6
  for name in names:
    experiment = experiment_registry.find(name, SourceOptions())
    assert type(experiment).__name__ == name.rpartition('.')[2]
    assert experiment.task().train.num_train_steps
