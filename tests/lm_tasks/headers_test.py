"""Each module of experiments says what to run, on what, and what to expect."""

import ast
import re

import pytest

from pax_compat import experiment_sources
from tests import source_tree

_REGISTER = re.compile(r'@\w*registry\.(?:register|RegisterSingleTaskModel)\b')
_LABELS = ('Hardware: ', 'Time: ', 'Metric: ')
_MODULES = [
  path
  for path in source_tree.python_files()
  if path.startswith('lm_tasks/')
  and _REGISTER.search((source_tree.ROOT / path).read_text('utf-8'))
]


def test_all_folders_are_looked_at():
  assert {path.rpartition('/')[0] for path in _MODULES} == {
    'lm_tasks/lingvo_params',
    'lm_tasks/params',
    'lm_tasks/vision/params',
  }


@pytest.mark.parametrize('path', _MODULES)
def test_headers(path):
  header = ast.get_docstring(source_tree.tree(path))
  lines = header.splitlines()
  for label in _LABELS:
    assert any(line.startswith(label) for line in lines), label
  command = header.replace('\\\n', '')
  names = re.findall(
    r'python -m pax_compat\.main +--exp=(\S+).* --job_log_dir=\S+', command
  )
  known = experiment_sources.names(experiment_sources.SourceOptions())
  assert names and set(names) <= set(known)
  module = path.removesuffix('.py').rpartition('/')[2]
  assert all(name.split('.')[-2] == module for name in names)
