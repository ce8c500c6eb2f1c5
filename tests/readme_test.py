"""Python blocks of the README and of docs/ run; what they name is there."""

import importlib.util
import pathlib
import re

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import (
  base_input,
  base_layer,
  experiment_registry,
  experiment_sources,
)
from pax_compat.experiment_sources import SourceOptions
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.feeding import dataset_inputs
from tests.adaptors.seqio_input import tiny_tasks

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_README = (_ROOT / 'README.md').read_text('utf-8')
# Pages whose flags are ours; others also name those of Pax, Beam and clusters.
_OUR_FLAGS = (
  'README.md',
  'data.md',
  'life_of_an_experiment.md',
  'lingvo_experiments.md',
  'migration_guide.md',
  'programming_model.md',
)
_TEXTS = {'README.md': _README} | {
  path.name: path.read_text('utf-8')
  for path in sorted((_ROOT / 'docs').glob('*.md'))
}
_ALL = '\n'.join(_TEXTS.values())
# The README is one screen or two; the rest is in docs/.
_MAX_LINES = 120


def _python_block(page: str, word: str) -> str:
  """Returns the page's only Python block that has `word` in it."""
  blocks = re.findall(r'```python\n(.*?)```', _TEXTS[page], re.DOTALL)
  (block,) = [b for b in blocks if word in b]
  return block


def test_the_readme_is_short_and_leads_to_every_page():
  assert len(_README.splitlines()) <= _MAX_LINES
  for page in _TEXTS:
    if page not in ('README.md', 'index.md'):
      assert f'](docs/{page})' in _README, page


def test_commands_and_flags_are_there():
  commands = re.findall(r'python -m ([\w.]+)', _ALL)
  assert 'pax_compat.tools.inspect_input' in commands
  # Whoever releases a version installs `build`.
  for module in set(commands) - {'build'}:
    assert importlib.util.find_spec(module), module
  code = [
    path.read_text('utf-8')
    for folder in ('pax_compat', 'adaptors', 'lm_tasks', 'benchmarks', 'tests')
    for path in (_ROOT / folder).rglob('*.py')
  ]
  # Lingvo's own trainer has these, and pytest; the last is of a user's module.
  known = {'run_locally', 'mode', 'my_train_path'}
  ours = '\n'.join(_TEXTS[page] for page in _OUR_FLAGS)
  flags = set(re.findall(r'(?<![\w-])--(\w+)', ours))
  for flag in flags - known:
    assert any(_defines(text, flag) for text in code), flag


def _defines(text: str, flag: str) -> bool:
  """Whether a module's source text defines a flag of that name."""
  defined = (
    rf"(DEFINE_\w+|_effect)\(\s*'{flag}'|'--{flag}'"
    rf'|\b{flag}: .*= options.option\('
  )
  return bool(re.search(defined, text))


def test_experiments_are_there():
  found = re.findall(r'--(?:exp|model)=((?:lm|tasks)\.[\w.]+)', _ALL)
  known = experiment_sources.names(SourceOptions())
  assert found and set(found) <= set(known)


def test_a_layer_computes():
  names = {'__name__': 'readme'}
  exec(
    compile(
      _python_block('programming_model.md', 'GatedLinear'), 'a page', 'exec'
    ),
    names,
  )
  layer, x = names['layer'], np.ones([2, 8], np.float32)
  boxed = layer.init_boxed(jax.random.key(0), x)
  split = boxed['params']['linear']['w'].meta.tensor_split_dims_mapping
  assert split == ['data', 'mdl']
  variables = base_layer.unbox({'params': boxed['params']})
  out, said = layer.apply(variables, x, mutable=['summaries'])
  params = variables['params']
  gate = jax.nn.sigmoid(x @ params['gate']['w'] + params['bias'])
  np.testing.assert_allclose(out, gate * (x @ params['linear']['w']), 1e-5)
  np.testing.assert_allclose(said['summaries']['open'].value, gate.mean(), 1e-5)


@pytest.mark.slow
def test_a_native_experiment_trains():
  class MyInput(base_input.BaseInput):
    """What the page leaves to the reader."""

    def get_next(self):
      ids = np.arange(16, dtype=np.int32).reshape(2, 8)
      return NestedMap(
        ids=ids,
        labels=ids + 1,
        paddings=np.zeros([2, 8], np.float32),
        weights=np.ones([2, 8], np.float32),
      )

  names = {'MyInput': MyInput, '__name__': 'readme'}
  exec(
    compile(_python_block('programming_model.md', 'MyLm'), 'README.md', 'exec'),
    names,
  )
  experiment = experiment_registry.find('readme.MyLm', SourceOptions())
  assert isinstance(experiment, names['MyLm'])
  known = experiment_registry.names(SourceOptions())
  assert known['readme.MyLm'] == 'A line that --list shows.'
  with dataset_inputs.Inputs(experiment.datasets()) as data:
    batch = data.train.get_next()
  made = program.create(
    experiment.task().Instantiate(), partitioning.create_mesh(None, None), batch
  )
  state, first = made.train_step(made.init_state(batch), batch)
  _, second = made.train_step(state, batch)
  assert second['total_loss'] < first['total_loss']


def test_lingvo_inputs_alone(tmp_path):
  lines = tmp_path / 'lines.txt'
  lines.write_text('one line\nanother one\nthe third\n' * 40)
  lm = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  params = lm.LmInput.Params().Set(
    file_pattern=f'text:{lines}',
    file_random_seed=0,
    bucket_upper_bound=[10],
    bucket_batch_limit=[4],
    target_max_length=16,
  )
  names = {'my_lingvo_input_params': params, 'my_dev_params': params.Copy()}
  exec(
    compile(
      _python_block('README.md', 'LingvoInputAdaptor'), 'README.md', 'exec'
    ),
    names,
  )
  assert names['batch'].ids.shape == (4, 16)
  dev = names['dev'].Instantiate()
  count = 0.0
  with pytest.raises(StopIteration):
    while True:
      count += dev.get_next().eval_sample_weights.sum()
  dev.close()
  assert count == 120


def test_an_input_of_ones_own():
  names = {'__name__': 'readme'}
  exec(
    compile(_python_block('data.md', 'class Squares'), 'README.md', 'exec'),
    names,
  )
  data = names['dev'].Instantiate()
  assert data.get_next().y.tolist() == [i**2 for i in range(8)]
  assert data.num_samples == 1000
  assert names['train'].Instantiate().get_next().x.shape == (8,)


def test_seqio():
  name = 'my_task'
  scores = dict(metric_fns=[lambda targets, scores: {'mean': sum(scores)}])
  tiny_tasks.register(name, 10, **scores)
  names = {'__name__': 'readme'}
  exec(
    compile(_python_block('data.md', 'SeqIOInput'), 'README.md', 'exec'), names
  )
  train = names['train'].Instantiate()
  assert train.get_next().segment_ids.shape == (4, 32)
  [dev] = names['dev']
  assert dev.Instantiate().has_example_metrics('eval')
