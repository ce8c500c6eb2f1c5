"""The config and the weights of every shipped experiment, held as text.

The files in `testdata/golden` show in a review what a change does to them.
`python -m tests.golden_test --write` writes them anew, those of Lingvo's stock
experiments included.
"""

import sys

import pytest

from pax_compat import experiment_sources
from tests import golden
from tests.adaptors.translate import stock_golden_test

_PACKAGES = ('lm.python_docs.', 'tasks.lm.params.')
_MODULES_OF_PAX = tuple(
  f'tasks.lm.params.{name}.' for name in ('c4', 'c4_multislice', 'lm_cloud')
)
_OF_PAX = tuple(
  f'tasks.lm.params.lm_cloud.{name}'
  for name in ('LmCloudSpmd2B', 'LmCloudTransformerAdamTest')
)
_OPTIONS = experiment_sources.SourceOptions()


def names() -> list[str]:
  """Returns the names of the experiments that come with data.

  Of those that are held against Pax (`lm_tasks.params.pax_test`), some.
  """
  return [
    name
    for name in experiment_sources.names(_OPTIONS)
    if name in _OF_PAX
    or name.startswith(_PACKAGES)
    and not name.startswith(_MODULES_OF_PAX)
  ]


def golden_text(name: str) -> str:
  """Returns the config of an experiment's task, and a line for each weight."""
  experiment = experiment_sources.find(name, _OPTIONS)
  data = experiment.train_datasets()[0].Instantiate()
  try:
    batch = data.get_next()
  finally:
    data.close()
  return golden.text(experiment.task(), batch)


@pytest.mark.parametrize('name', names())
def test_an_experiment_is_what_its_file_says(name):
  golden.check(golden.FOLDER / f'{name}.txt', golden_text(name))


def test_there_is_no_file_without_an_experiment():
  assert {p.stem for p in golden.FOLDER.glob('*.txt')} == set(names())


def test_weights_of_like_layers_are_one_line():
  described = [(f'p/x_layers_{i}/w', 'f[2]') for i in range(3)]
  described += [('p/x_layers_3/w', 'f[3]'), ('p/x_layers_5/w', 'f[2]')]
  described += [('p/b', 'f[1]')]
  assert golden.joined(described) == [
    'p/x_layers_[0-2,5]/w: f[2]',
    'p/x_layers_3/w: f[3]',
    'p/b: f[1]',
  ]


def test_what_is_unlike_another_experiment():
  assert golden.changes('a\nb\nc\n', 'a\nB\nc\n', 'base') == (
    'as base, but for:\n-B\n+b\n'
  )


if __name__ == '__main__':
  if sys.argv[1:] != ['--write']:
    sys.exit(f'usage: {golden.REWRITE}')
  golden.write(golden.FOLDER, {name: golden_text(name) for name in names()})
  stock_golden_test.write()
