"""Batches with the one-hot index of their data source."""

import numpy as np
import pytest

from adaptors.lingvo_input import input_adaptor
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing

_FILTERS = ['emb', 'softmax', '']


@pytest.fixture
def mixed(tmp_path):
  """Params of an input of three files, whose lines are of one letter each."""

  def make(filters):
    entries = []
    for letter, own in zip('abc', filters, strict=True):
      lines = [letter * n for n in range(3, 9)] * 4
      path = testing.write_lines(tmp_path / f'{letter}.txt', lines)
      entries.append((path, 1.0, own))
    return testing.lm_params(entries, bucket_batch_limit=[3, 3, 3])

  return make


def _adaptor(params, **fields):
  return input_adaptor.LingvoInputAdaptor.config(
    name='mixed', input=params, **{'is_training': True, **fields}
  ).Instantiate()


def test_batches_say_their_source(mixed):
  adaptor = _adaptor(mixed(_FILTERS))
  seen = set()
  for _ in range(12):
    batch = adaptor.get_next()
    [letters] = {text[0] for text in _texts(adaptor, batch)}
    source = 'abc'.index(letters)
    seen.add(source)
    wanted = np.zeros([3, 3], np.float32)
    wanted[:, source] = 1.0
    np.testing.assert_array_equal(batch.source_selected, wanted)
  adaptor.close()
  assert len(seen) > 1


def _texts(adaptor, batch):
  """Returns the lines of a batch."""
  lengths = (1 - batch.paddings).sum(axis=1).astype(np.int32) - 1
  return adaptor.ids_to_strings(batch.labels, lengths)


@pytest.mark.parametrize(
  'filters,fields',
  [(['', '', ''], {}), (_FILTERS, {'is_training': False})],
)
def test_where_it_does_not_matter_they_do_not(mixed, filters, fields):
  adaptor = _adaptor(mixed(filters), **fields)
  assert 'source_selected' not in adaptor.get_next()
  adaptor.close()


def test_hosts_would_draw_from_different_sources(mixed):
  adaptor = _adaptor(mixed(_FILTERS), num_infeed_hosts=2)
  with pytest.raises(errors.UserError, match='expected one infeed host'):
    adaptor.get_next()
