"""The config and the weights of every shipped experiment, held as text.

The files in `testdata/golden` show in a review what a change does to them.
`python -m tests.golden_test --write` writes them anew.
"""

import difflib
import pathlib
import sys

import jax
import pytest

from pax_compat import base_layer, config_text, experiment_sources, learners
from tests import source_tree

GOLDEN = source_tree.ROOT / 'testdata' / 'golden'
REWRITE = 'python -m tests.golden_test --write'
_PACKAGES = ('lm.python_docs.', 'tasks.lm.params.')
_OPTIONS = experiment_sources.SourceOptions()


def names() -> list[str]:
  """Returns the names of the experiments that come with this distribution."""
  return [
    name
    for name in experiment_sources.names(_OPTIONS)
    if name.startswith(_PACKAGES)
  ]


def golden_text(name: str) -> str:
  """Returns the config of an experiment's task, and a line for each weight."""
  experiment = experiment_sources.find(name, _OPTIONS)
  task = experiment.task()
  data = experiment.train_datasets()[0].Instantiate()
  try:
    batch = data.get_next()
  finally:
    data.close()
  model = task.model.Instantiate()
  variables = jax.eval_shape(
    lambda key, batch: model.init({base_layer.PARAMS: key}, batch),
    jax.random.key(0),
    batch,
  )
  lines = []
  for path, box in learners.by_path(variables, base_layer.is_boxed).items():
    if base_layer.is_boxed(box):
      weight = box.meta
      split = weight.tensor_split_dims_mapping
      lines.append(
        f'{path}: {box.value.dtype}{list(box.value.shape)},'
        f' {weight.init.method}({weight.init.scale:.6g})'
        + (f', split {list(split)}' if split is not None else '')
      )
  return config_text.to_text(task, 'task') + '\n' + '\n'.join(lines) + '\n'


def _file(name: str) -> pathlib.Path:
  return GOLDEN / f'{name}.txt'


@pytest.mark.parametrize('name', names())
def test_an_experiment_is_what_its_file_says(name):
  expected = _file(name).read_text('utf-8') if _file(name).exists() else ''
  changes = '\n'.join(
    difflib.unified_diff(
      expected.splitlines(), golden_text(name).splitlines(), 'file', 'now'
    )
  )
  assert not changes, f'{changes}\nif it is meant so: {REWRITE}'


def test_there_is_no_file_without_an_experiment():
  assert {p.stem for p in GOLDEN.glob('*.txt')} == set(names())


def write():
  """Writes all files anew."""
  GOLDEN.mkdir(parents=True, exist_ok=True)
  for path in GOLDEN.glob('*.txt'):
    path.unlink()
  for name in names():
    _file(name).write_text(golden_text(name), 'utf-8')


if __name__ == '__main__':
  if sys.argv[1:] != ['--write']:
    sys.exit(f'usage: {REWRITE}')
  write()
