"""Strings by number, and strings of a batch split off and put back."""

import jax
import numpy as np
import pytest

from adaptors.pax_names.own import host_strings
from pax_compat import errors
from pax_compat.nested_map import NestedMap


def test_the_oldest_strings_are_removed():
  strings = host_strings.Repository(max_size=2)
  numbers = [strings.add(text) for text in 'abc']
  assert len(set(numbers)) == 3
  assert [strings.get(number) for number in numbers[1:]] == ['b', 'c']
  with pytest.raises(KeyError):
    strings.get(numbers[0])
  assert strings.pop(numbers[1]) and not strings.pop(numbers[1])
  assert strings.size == 1
  assert strings.add('d') not in numbers


def test_a_repository_for_each_namespace():
  first = host_strings.repository('first')
  assert host_strings.repository('first') is first
  assert host_strings.repository('second') is not first


def _batch():
  return NestedMap(
    ids=np.arange(2),
    key=np.array(['a', 'b']),
    nested=NestedMap(ids=np.arange(2), text=np.array([b'c', b'd'], object)),
    texts=NestedMap(only=np.array(['e', 'f'])),
  )


def test_strings_are_split_off_and_put_back():
  batch = _batch()
  spec = jax.tree.map(lambda _: 'spec', batch)
  kept, strings, kept_spec = host_strings.split_out_xla_unsupported_batch(
    batch, partitioning_spec=spec
  )
  assert [path for path, _ in kept.flatten_items()] == ['ids', 'nested.ids']
  assert kept_spec == {'ids': 'spec', 'nested': {'ids': 'spec'}}
  assert strings['nested'].keys() == {'text'}
  assert len(batch.flatten_items()) == len(spec.flatten_items()) == 5

  host_strings.merge_back_xla_unsupported_batch(kept, strings)
  for (path, found), (wanted, value) in zip(
    NestedMap.FromNestedDict(kept).flatten_items(),
    batch.flatten_items(),
    strict=True,
  ):
    assert path == wanted and found is value


def test_a_batch_without_strings_is_the_same_object():
  batch, spec = {'ids': np.arange(2)}, {'ids': 'spec'}
  found = host_strings.split_out_xla_unsupported_batch(batch, spec)
  assert found[0] is batch and found[2] is spec and not found[1]
  host_strings.merge_back_xla_unsupported_batch(batch, {})
  assert batch.keys() == {'ids'}
  _, strings, spec = host_strings.split_out_xla_unsupported_batch(_batch())
  assert strings and spec is None


def test_several_processes_are_refused(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(errors.UserError, match='strings .key, nested, texts.'):
    host_strings.split_out_xla_unsupported_batch(_batch())
