"""Tests of the flags of Lingvo's programs."""

from absl import flags

from adaptors import lingvo_runtime
from adaptors.stand_ins import trainer_flags
from tests.adaptors import native_library

_PROGRAM = """
from lingvo import compat as tf
_NAME = 'computed'
tf.flags.DEFINE_string('stand_in_text', 'a', 'A'
                       ' text.')
tf.flags.DEFINE_list('stand_in_list', ['a', 'b'], 'A list.')
tf.flags.DEFINE_enum('stand_in_enum', 'x', ['x', 'y'], help='One of two.')
tf.flags.DEFINE_integer(_NAME, 1, 'Its name is not a literal.')
tf.flags.DEFINE_string('stand_in_own', 'theirs', 'Exists.')
"""


def test_flags_are_defined_from_source(tmp_path, caplog):
  flags.DEFINE_string('stand_in_own', 'ours', 'A flag of this test.')
  (tmp_path / 'trainer.py').write_text(_PROGRAM)
  (tmp_path / 'python_2.py').write_text('print "x"  # DEFINE_bool')
  (tmp_path / 'damaged.py').write_bytes(b'DEFINE_bool\0\xff')
  (tmp_path / 'trainer_test.py').write_text("DEFINE_bool('stand_in_no', 0, '')")
  for _ in range(2):
    trainer_flags.define(tmp_path)
  for name in ('python_2.py', 'damaged.py'):
    assert f'{name} are not defined' in caplog.text
  values = flags.FLAGS
  found = [values[f'stand_in_{n}'].value for n in ('text', 'list', 'enum')]
  assert found == ['a', ['a', 'b'], 'x']
  assert values['stand_in_own'].value == 'ours'
  assert 'stand_in_no' not in values
  # A program that is run later defines its own.
  flags.DEFINE_string('stand_in_text', 'b', 'The same flag.')
  assert values['stand_in_text'].value == 'b'


@native_library.NEEDS_LINGVO
def test_flags_of_lingvos_trainer_can_be_read():
  lingvo_runtime.load()
  assert flags.FLAGS.tpu is None
  assert flags.FLAGS.worker_split_size == 1
