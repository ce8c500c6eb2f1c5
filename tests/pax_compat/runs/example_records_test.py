"""Tests of files of `tf.train.Example`, against TensorFlow."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.runs import example_records


@pytest.mark.slow  # It imports TensorFlow.
def test_tensorflow_reads_all_types(tmp_path):
  path = tmp_path / 'new' / 'examples'
  with example_records.record_writer(path) as writer:
    writer.write(
      {
        'int': np.int32([[1, -2], [3, 2**31 - 1]]),
        'bool': np.bool_([True, False]),
        'unsigned': np.uint64(2**63 - 1),
        'half': np.array([0.5, -1], jnp.bfloat16),
        'double': np.float64(0.25),
        'texts': np.array(['a', 'é'], object),
        'bytes': np.array([b'\xff']),
        'none': np.zeros([0, 3], np.float32),
      }
    )
    writer.write({'x': np.zeros(100_000, np.float32)})
  assert [file.name for file in path.parent.iterdir()] == ['examples']
  tf = pytest.importorskip('tensorflow')
  first, second = map(
    tf.train.Example.FromString,
    tf.data.TFRecordDataset(str(path)).as_numpy_iterator(),
  )
  found = first.features.feature
  assert list(found['int'].int64_list.value) == [1, -2, 3, 2**31 - 1]
  assert list(found['bool'].int64_list.value) == [1, 0]
  assert list(found['unsigned'].int64_list.value) == [2**63 - 1]
  assert list(found['half'].float_list.value) == [0.5, -1]
  assert list(found['double'].float_list.value) == [0.25]
  assert list(found['texts'].bytes_list.value) == [b'a', 'é'.encode()]
  assert list(found['bytes'].bytes_list.value) == [b'\xff']
  assert found['none'].HasField('float_list')
  assert len(second.features.feature['x'].float_list.value) == 100_000


@pytest.mark.parametrize(
  'value', [np.complex64(1j), np.array([None]), np.uint64(2**63)]
)
def test_types_that_an_example_does_not_have(value, tmp_path):
  with pytest.raises(errors.UserError, match="the field 'a.b' has the type"):
    with example_records.record_writer(tmp_path / 'file') as writer:
      writer.write({'a.b': value})
  assert not list(tmp_path.iterdir())
