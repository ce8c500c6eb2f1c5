"""Tests of JSON lines of examples."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.metrics import example_outputs
from pax_compat.nested_map import NestedMap


def _written(tmp_path, **fields):
  path = tmp_path / 'out' / 'x.jsonl'
  with example_outputs.example_writer(path) as writer:
    writer.write(**fields)
    assert writer.count == 1
  [line] = path.read_text().splitlines()
  return json.loads(line, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(
  ('value', 'read'),
  [
    (1, 1),
    (True, True),
    (None, None),
    ('ä', 'ä'),
    (b'\xc3\xa4\xff', 'ä\ufffd'),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (jnp.bfloat16(2), 2.0),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array(['a', 'b']), ['a', 'b']),
    (np.array([b'a', 'é'.encode()], object), ['a', 'é']),
    (jnp.array([jnp.nan, jnp.inf, -jnp.inf]), ['nan', 'inf', '-inf']),
    (float('nan'), 'nan'),
    (NestedMap(a=(1, jnp.float32(2)), b=[None]), {'a': [1, 2.0], 'b': [None]}),
  ],
)
def test_values_come_back(tmp_path, value, read):
  assert _written(tmp_path, key='k', value=value) == {'key': 'k', 'value': read}


@pytest.mark.parametrize(
  'value', [{1, 2}, 1j, np.array([object()]), {'a': [Exception()]}]
)
def test_what_json_has_not(tmp_path, value):
  path = tmp_path / 'x.jsonl'
  with pytest.raises(errors.UserError, match='contain a .*, which JSON cannot'):
    with example_outputs.example_writer(path) as writer:
      writer.write(value=value)
  assert not path.exists()


def test_a_file_is_whole_or_as_it_was(tmp_path):
  path = tmp_path / 'x.jsonl'
  path.write_text('old')
  with pytest.raises(KeyError):
    with example_outputs.example_writer(path) as writer:
      writer.write(a=1)
      assert path.read_text() == 'old'
      raise KeyError
  assert [p.name for p in tmp_path.iterdir()] == ['x.jsonl']
  assert path.read_text() == 'old'
  with example_outputs.example_writer(path) as writer:
    writer.write(a=1)
    writer.write(a=2)
  assert path.read_text() == '{"a": 1}\n{"a": 2}\n'
