"""Serialized `tf.train.Example`s and TFRecord files, without TensorFlow."""

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pax_compat import errors
from pax_compat.runs import files, tf_records


class RecordWriter:
  """Writes one record per example, without buffering examples."""

  def __init__(self, file: BinaryIO):
    self._file = file

  def write(self, fields: Mapping[str, Any]):
    """Writes an example.

    Args:
      fields: by name, arrays of numbers, booleans, strings or bytes, which are
        flattened. As in TFDS, numbers become int64 or float32.

    Raises:
      UserError: a field has another type, or an integer is above int64's.
    """
    self._file.write(tf_records.framed(serialized(fields)))


@contextlib.contextmanager
def record_writer(path: pathlib.Path) -> Iterator[RecordWriter]:
  """Yields a writer to a file that is replaced atomically at the end.

  Args:
    path: the file; its folder is created. If an error ends the context, an
      earlier file stays as it is.
  """
  with files.replacing(path) as half, open(half, 'wb') as f:
    yield RecordWriter(f)


def serialized(fields: Mapping[str, Any]) -> bytes:
  """Returns a serialized example; see `RecordWriter.write`."""
  example = _example_class()()
  for name, value in fields.items():
    _fill(example.features.feature[name], name, np.asarray(value))
  return example.SerializeToString(deterministic=True)


def _fill(feature: Any, name: str, array: np.ndarray):
  """Sets a feature to the numbers or strings of an array."""
  largest = np.iinfo(np.int64).max
  kind, values = array.dtype.kind, array.ravel()
  if kind in 'bi' or (kind == 'u' and not (values > largest).any()):
    feature.int64_list.value.extend(values.astype(np.int64).tolist())
  elif jnp.issubdtype(array.dtype, np.floating):  # bfloat16, too
    feature.float_list.value.extend(values.astype(np.float32).tolist())
  elif kind in 'SUO' and all(isinstance(x, str | bytes) for x in values):
    feature.bytes_list.value.extend(
      x.encode() if isinstance(x, str) else x for x in values.tolist()
    )
  else:
    raise errors.UserError(
      f'the field {name!r} has the type {array.dtype.name}, which a'
      ' tf.train.Example cannot represent; expected integers within int64,'
      ' floats, booleans, strings or bytes'
    )


@functools.cache
def _example_class() -> type:
  """Returns the class of the message `tensorflow.Example`.

  Its fields are those of TensorFlow's `example.proto` and `feature.proto`. They
  are in a pool of their own, so that TensorFlow can be imported as well.
  """
  file = descriptor_pb2.FileDescriptorProto(
    name='pax_compat/example.proto', package='tensorflow', syntax='proto3'
  )
  field = descriptor_pb2.FieldDescriptorProto
  lists = {
    'bytes_list': ('BytesList', field.TYPE_BYTES),
    'float_list': ('FloatList', field.TYPE_FLOAT),
    'int64_list': ('Int64List', field.TYPE_INT64),
  }
  for name, kind in lists.values():
    file.message_type.add(name=name).field.add(
      name='value', number=1, type=kind, label=field.LABEL_REPEATED
    )
  feature = file.message_type.add(name='Feature')
  feature.oneof_decl.add(name='kind')
  for number, (name, (kind, _)) in enumerate(lists.items(), 1):
    feature.field.add(
      **_message_field(name, number, f'.tensorflow.{kind}'), oneof_index=0
    )
  features = file.message_type.add(name='Features')
  entry = features.nested_type.add(name='FeatureEntry')
  entry.options.map_entry = True
  entry.field.add(name='key', number=1, type=field.TYPE_STRING)
  entry.field.add(**_message_field('value', 2, '.tensorflow.Feature'))
  features.field.add(
    **_message_field('feature', 1, '.tensorflow.Features.FeatureEntry'),
    label=field.LABEL_REPEATED,
  )
  example = file.message_type.add(name='Example')
  example.field.add(**_message_field('features', 1, '.tensorflow.Features'))
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
    pool.FindMessageTypeByName('tensorflow.Example')
  )


def _message_field(name: str, number: int, kind: str) -> dict[str, Any]:
  return {
    'name': name,
    'number': number,
    'type': descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
    'type_name': kind,
  }
