"""Tests of the flags shared by the benchmarks."""

import importlib

from benchmarks import command_line
from tests import source_tree


def test_one_process_may_import_all_benchmarks():
  """Each defines its flags, which are global."""
  for path in source_tree.python_files('benchmarks'):
    importlib.import_module(source_tree.module_name(path))
  assert command_line.ROUNDS.name == 'rounds'
