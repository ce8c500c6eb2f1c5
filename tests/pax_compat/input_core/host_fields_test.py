"""Tests of host fields."""

import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap


def _objects(*items):
  x = np.empty(len(items), object)
  x[:] = items
  return x


_BATCH = NestedMap(
  ids=np.zeros([2, 3], np.int32),
  src=NestedMap(text=np.array(['a', 'bc']), x=np.ones(2)),
  only=NestedMap(raw=_objects(b'\xff\0', b'')),
  parts=[np.array([b'x', b'y']), np.arange(2)],
  none=None,
)


def test_strings_are_split_from_a_batch():
  rest, host = host_fields.split(_BATCH, base_input.BaseInput().is_host_field)
  assert rest.flatten_items() == [
    ('ids', _BATCH.ids),
    ('parts.0', _BATCH.parts[1]),
    ('src.x', _BATCH.src.x),
  ]
  assert isinstance(rest.src, NestedMap) and rest.none is None
  assert list(host) == ['src.text', 'only.raw', 'parts.0']
  assert host['only.raw'] is _BATCH.only.raw
  assert 'only' in _BATCH and len(_BATCH.parts) == 2


def test_a_batch_without_strings_is_not_changed():
  batch = NestedMap(ids=np.zeros(3), empty=NestedMap())
  rest, host = host_fields.split(batch, base_input.BaseInput().is_host_field)
  assert rest is batch and not host


class Chosen(base_input.BaseInput):
  def is_host_field(self, path, leaf):
    return path.startswith('src.') and leaf.ndim == 1


def test_an_input_defines_its_host_fields():
  rest = host_fields.for_devices(_BATCH, Chosen().is_host_field)
  assert sorted(rest) == ['ids', 'none', 'only', 'parts']


@pytest.mark.parametrize(
  ('x', 'want'),
  [
    (np.array([1, 2], np.int8), [1, 2, 7]),
    (np.array(['ab', 'c']), ['ab', 'c', '']),
    (np.array([b'ab', b'c']), [b'ab', b'c', b'']),
    (_objects(b'ab', b'c'), [b'ab', b'c', b'']),
    (_objects('ab', 'c'), ['ab', 'c', '']),
    (_objects(3, 4), [3, 4, None]),
  ],
)
def test_arrays_are_extended(x, want):
  found = host_fields.extended(x, 1, value=7)
  assert found.dtype == x.dtype and found.tolist() == want
  wide = host_fields.extended(np.stack([x, x]), 1, axis=1, value=7)
  assert wide.tolist() == [want, want]
  assert host_fields.extended(x, 0).tolist() == x.tolist()


class Texts(base_input.BaseInput):
  def get_next(self):
    return NestedMap(text=_objects(b'a', b'b'), x=np.ones([2, 2]))


def test_padding_rows_have_empty_strings():
  batch = Texts(batch_padding_size=2).get_next_padded()
  assert batch.text.tolist() == [b'a', b'b', b'', b'']
  assert batch.eval_sample_weights.tolist() == [1, 1, 0, 0]


def test_bytes_and_back():
  fields = {
    'raw': _objects(b'\xff\0', b'', None, 'é\0', 3, 2.5),
    'texts': np.array([['a', 'bc\0d'], ['', 'é']]),
    'number': np.array([2**60, -1]),
    'ragged': _objects(np.arange(3), np.zeros([0, 2], np.float32)),
    'empty': np.zeros([0, 2], object),
  }
  found = host_fields.from_bytes(host_fields.to_bytes(fields))
  assert found.keys() == fields.keys()
  for name in ('raw', 'texts', 'number', 'empty'):
    assert found[name].tolist() == fields[name].tolist()
    assert found[name].shape == fields[name].shape
  assert found['number'].dtype == np.int64
  for one, other in zip(found['ragged'], fields['ragged'], strict=True):
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype and one.shape == other.shape


def test_other_objects_are_refused():
  with pytest.raises(errors.UserError, match="'odd' .* contains a object;"):
    host_fields.to_bytes({'odd': _objects(object())})


def test_equal_strings_have_equal_bytes():
  one, other = (_objects(''.join(['a'] * count)) for count in (9, 9))
  assert one[0] is not other[0]
  assert host_fields.canonical_bytes(one) == host_fields.canonical_bytes(other)
  assert host_fields.canonical_bytes(one) != host_fields.canonical_bytes(
    _objects('b')
  )
  x = np.arange(6).reshape(2, 3)
  assert host_fields.canonical_bytes(x.T) == x.T.tobytes()
