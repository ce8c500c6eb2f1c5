"""praxis's own unit tests are run and counted."""

from adaptors.pax_names import praxis_tests

_TEST = """
from absl.testing import absltest
from praxis import layers
from praxis import py_utils


class NamesTest(absltest.TestCase):

  def test_passes(self):
    self.assertEqual(py_utils.NestedMap(a=1).a, 1)

  def test_fails(self):
    self.assertEqual(layers.NoSuchLayer, 1)


if __name__ == '__main__':
  absltest.main()
"""


def test_a_file_is_run(tmp_path):
  path = tmp_path / 'names_test.py'
  path.write_text(_TEST)
  passed, total, reasons = praxis_tests.run(path, seconds=120)
  assert (passed, total) == (1, 2)
  [reason] = reasons
  assert reason.startswith('ERROR: test_fails')
  assert 'praxis.layers.NoSuchLayer is not supported here' in reason


def test_a_file_that_cannot_be_imported(tmp_path):
  path = tmp_path / 'names_test.py'
  path.write_text('from praxis import no_such_module')
  passed, total, [reason] = praxis_tests.run(path, seconds=120)
  assert (passed, total) == (0, 0)
  assert 'praxis.no_such_module is not supported here' in reason


def test_a_file_that_takes_too_long(tmp_path):
  path = tmp_path / 'names_test.py'
  path.write_text('import time; time.sleep(60)')
  found = praxis_tests.run(path, seconds=1)
  assert found == (0, 0, ['not done after 1 s; others were not run'])
