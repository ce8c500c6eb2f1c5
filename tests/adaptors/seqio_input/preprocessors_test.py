"""Tests of the preprocessors against those of t5, as paxml uses them.

`testdata/c4_rows.npz` has 600 random documents, and what t5 0.9.4 and paxml's
`LanguageModelFeatures` (its public HEAD) make of them: 2 documents
concatenated, split to 32 tokens, packed.
"""

import pathlib

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input import converters, preprocessors
from pax_compat import errors

_FILE = pathlib.Path(__file__).parents[3] / 'testdata' / 'c4_rows.npz'
_LENGTHS = {'targets': 32}


@pytest.fixture(scope='module')
def recorded():
  with np.load(_FILE) as data:
    return dict(data)


def _features(*, add_eos: bool = False):
  seqio = lingvo_runtime.seqio()
  return {'targets': seqio.Feature(seqio.ByteVocabulary(), add_eos=add_eos)}


@pytest.fixture(scope='module')
def split(recorded):
  """The dataset of examples before they are packed."""
  tf = lingvo_runtime.tensorflow()
  rows = tf.RaggedTensor.from_row_lengths(
    recorded['documents'], recorded['lengths']
  )
  data = tf.data.Dataset.from_tensor_slices({'targets': rows})
  data = data.map(lambda x: x | {'other': tf.size(x['targets'])})
  whole = preprocessors.reduce_concat_tokens(data, batch_size=2)
  return preprocessors.split_tokens_to_targets_length(
    whole, _LENGTHS, _features()
  )


def test_documents_are_concatenated_and_split_as_by_t5(recorded, split):
  found = [example['targets'] for example in split.as_numpy_iterator()]
  np.testing.assert_array_equal(
    [len(x) for x in found], recorded['split_lengths']
  )
  np.testing.assert_array_equal(np.concatenate(found), recorded['split'])
  assert len(found) > 200
  assert split.element_spec.keys() == {'targets'}


def test_rows_are_packed_as_by_paxml(recorded, split):
  converter = converters.LanguageModelFeatures(
    pack=True,
    reverse_bos_padding=True,
    labels_cross_segments=True,
  )
  rows = list(converter(split, _LENGTHS).as_numpy_iterator())
  for name in rows[0]:
    found = np.stack([row[name] for row in rows])
    np.testing.assert_array_equal(found, recorded[f'row_{name}'], name)
  assert recorded['row_segment_ids'].max() > 1


def test_room_for_an_eos_is_left():
  tf = lingvo_runtime.tensorflow()
  whole = tf.data.Dataset.from_tensors({'targets': [5, 6, 7]})
  rows = preprocessors.split_tokens_to_targets_length(
    whole, {'targets': 3}, _features(add_eos=True)
  )
  found = [row['targets'].tolist() for row in rows.as_numpy_iterator()]
  assert found == [[5, 6], [7]]


def test_the_length_of_targets_is_required():
  with pytest.raises(
    errors.UserError, match='the length of targets is missing'
  ):
    preprocessors.split_tokens_to_targets_length(
      None, {'inputs': 4}, _features()
    )
