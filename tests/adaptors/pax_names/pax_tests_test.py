"""Pax's own unit tests are run and counted."""

import pytest

from adaptors.pax_names import pax_tests
from pax_compat import errors

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
  path = tmp_path / 'praxis' / 'tests' / 'names_test.py'
  path.parent.mkdir(parents=True)
  path.write_text(
    'from praxis.tests import names_util\n'
    + _TEST.replace('a=1', 'a=names_util.ONE')
  )
  path.with_name('names_util.py').write_text('ONE = 1')
  passed, total, reasons = pax_tests.run(path, seconds=120)
  assert (passed, total) == (1, 2)
  [reason] = reasons
  assert reason.startswith('ERROR: test_fails')
  assert 'praxis.layers.NoSuchLayer is not supported here' in reason


@pytest.mark.slow
def test_tests_of_experiments_use_those_of_the_checkout(tmp_path):
  tasks = tmp_path / 'paxml' / 'tasks' / 'lm'
  tasks.mkdir(parents=True)
  (tasks / 'mine.py').write_text(
    'from paxml import test_helper\n'
    'VALUE = len(open(test_helper.test_src_dir_path("tasks/seven")).read())\n'
  )
  (tasks.parent / 'seven').write_text('1234567')
  path = tasks / 'mine_test.py'
  path.write_text(
    _TEST.replace(
      'from praxis import layers', 'from paxml.tasks.lm import mine'
    ).replace('layers.NoSuchLayer, 1', 'mine.VALUE, 7')
  )
  assert pax_tests.run(path, seconds=120) == (2, 2, [])


def test_a_file_that_cannot_be_imported(tmp_path):
  path = tmp_path / 'names_test.py'
  path.write_text('from praxis import no_such_module')
  passed, total, [reason] = pax_tests.run(path, seconds=120)
  assert (passed, total) == (0, 0)
  assert 'praxis.no_such_module is not supported here' in reason


def test_a_file_that_takes_too_long(tmp_path):
  path = tmp_path / 'names_test.py'
  path.write_text('import time; time.sleep(60)')
  found = pax_tests.run(path, seconds=1)
  assert found == (0, 0, ['not done after 1 s; others were not run'])


def test_a_row_has_the_most_frequent_reasons():
  reasons = [
    'ERROR: test_a (names_test.Names): AttributeError: no x',
    'FAIL: test_b (names_test.Names) [sub]: AssertionError:',
    'ERROR: test_c0 (2, (3,)) (names_test.Names): AttributeError: no x',
  ]
  text = pax_tests.row('a', 1, 4, reasons, {'a': [3, 4]})
  assert text == (
    '| `a` | 1 | 3 | 4 | 2 x `AttributeError: no x`; 1 x `AssertionError` |'
  )
  assert '| 0 | ? | 7 |' in pax_tests.row('b', 0, 0, [], {'b': [None, 7]})


def test_subtests_are_one_test():
  part = '=' * 70 + '\nFAIL: test_a (m.A) [{}]\nm.A.test_a\nAssertionError: x\n'
  text = f'{part.format(1)}{part.format(2)}\nRan 3 tests in 1 s\n'
  assert pax_tests.counted(text)[:2] == (2, 3)


def test_files_of_a_checkout(tmp_path):
  with pytest.raises(errors.UserError, match='not a source checkout'):
    pax_tests.files(tmp_path)
  folder = tmp_path / 'paxml' / 'tools'
  folder.mkdir(parents=True)
  (folder / 'dump_test.py').touch()
  (folder.parent / 'zoo_test.py').touch()
  assert list(pax_tests.files(tmp_path)) == ['zoo', 'tools/dump']
