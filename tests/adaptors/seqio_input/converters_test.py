"""Converters against a computation of their fields, and SeqIO's own.

Shapes: T tokens of a row.
"""

import doctest

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input import converters as converters
from pax_compat import config as config_lib
from pax_compat import errors

_PROMPTED = [
  {'inputs': [7, 8, 5, 1], 'targets': [3, 9, 1]},
  {'inputs': [8, 4, 9, 3, 1], 'targets': [4, 1]},
  {'inputs': [6], 'targets': [5, 5, 5, 5, 1]},
  {'inputs': [2, 2, 2, 2, 2, 2, 2], 'targets': [9]},
]
_PLAIN = [{'targets': x['targets']} for x in _PROMPTED]
# Negative ids are read, and not predicted.
_MARKED = [{'targets': [-7, -8, 5, 1]}, {'targets': [3, -9, 1]}]
_LENGTHS = {'inputs': 7, 'targets': 8}


def _dataset(examples: list[dict]):
  tf = lingvo_runtime.tensorflow()
  return tf.data.Dataset.from_generator(
    lambda: iter(examples),
    output_signature={
      name: tf.TensorSpec([None], tf.int32) for name in examples[0]
    },
  )


def _converted(converter, examples, lengths=None) -> list[dict]:
  wanted = {
    name: length
    for name, length in (lengths or _LENGTHS).items()
    if name in examples[0]
  }
  data = converter(_dataset(examples), task_feature_lengths=wanted)
  return list(data.as_numpy_iterator())


def _padded(row: list, length: int, value=0) -> np.ndarray:
  return np.array([*row, *[value] * (length - len(row))])


def _of_language_model(
  rows: list[list[dict]], length: int, *, packed: bool, targets_only, bos_id=0
) -> list[dict[str, np.ndarray]]:
  """Returns the fields of rows, each of which holds some examples."""
  expected = []
  for row in rows:
    fields = {name: [] for name in ('labels', 'ids', 'weights', 'at', 'of')}
    indicator = []
    for number, example in enumerate(row, 1):
      prompt = example.get('inputs', [])
      tokens = [*prompt, *example['targets']]
      fields['labels'] += tokens
      fields['ids'] += [bos_id, *tokens[:-1]]
      for place, token in enumerate(tokens):
        counts = {
          None: token >= 0,
          True: token >= 0 and place >= len(prompt),
          False: True,
        }
        fields['weights'].append(float(counts[targets_only]))
      fields['at'] += list(range(len(tokens)))
      fields['of'] += [number] * len(tokens)
      indicator += [int(i <= len(prompt)) for i in range(len(tokens))]
    if not packed:  # What is behind the last token reads it.
      fields['ids'].append(fields['labels'][-1])
    one = {
      'labels': abs(_padded(fields['labels'], length)),
      'ids': abs(_padded(fields['ids'][:length], length)),
      'weights': _padded(fields['weights'], length),
      'paddings': _padded([0.0] * len(fields['labels']), length, 1.0),
      'segment_ids': _padded(fields['of'], length),
      'segment_pos': _padded(fields['at'], length),
    }
    if 'inputs' in row[0]:
      one['inputs_indicator'] = _padded(indicator, length)
    expected.append(one)
  return expected


def _assert_equal(found: list[dict], expected: list[dict]):
  assert len(found) == len(expected)
  for one, other in zip(found, expected, strict=True):
    assert one.keys() == other.keys()
    for name in one:
      np.testing.assert_array_equal(one[name], other[name], name)


@pytest.mark.parametrize('targets_only', [None, True, False])
@pytest.mark.parametrize('examples', [_PLAIN, _PROMPTED, _MARKED])
def test_language_model(examples, targets_only):
  converter = converters.LanguageModelFeatures(
    weights_on_targets_only=targets_only, bos_id=2
  )

  found = _converted(converter, examples)

  length = sum(_LENGTHS[name] for name in examples[0])
  rows = [[example] for example in examples]
  _assert_equal(
    found,
    _of_language_model(
      rows, length, packed=False, targets_only=targets_only, bos_id=2
    ),
  )
  assert {x.dtype.name for x in found[0].values()} == {'int32', 'float32'}


@pytest.mark.parametrize(
  ('examples', 'rows'),
  [
    (_PROMPTED, [_PROMPTED[:2], _PROMPTED[2:]]),
    (_PLAIN, [_PLAIN[:2], _PLAIN[2:]]),
  ],
)
def test_packed_language_model(examples, rows):
  converter = converters.LanguageModelFeatures(
    pack=True, weights_on_targets_only=True
  )

  found = _converted(converter, examples)

  length = sum(_LENGTHS[name] for name in examples[0])
  _assert_equal(
    found, _of_language_model(rows, length, packed=True, targets_only=True)
  )


def test_the_example():
  result = doctest.testmod(converters)
  assert result.attempted == 5 and not result.failed
  [packed] = _converted(
    converters.LanguageModelFeatures(pack=True),
    [{'targets': [4, 1]}, {'targets': [6, 9, 1]}],
    {'targets': 8},
  )
  drawn = {
    line.split()[0]: [int(x) for x in line.split()[1:]]
    for line in converters.LanguageModelFeatures.__doc__.splitlines()
    if line.startswith('      ') and line.split()[0] in packed
  }
  assert len(drawn) == 4
  for name, row in drawn.items():
    assert packed[name].tolist() == row


def test_tokens_that_are_not_shifted():
  converter = converters.LanguageModelFeatures(
    reverse_bos_padding=True, eos_id=6
  )

  first, full = _converted(
    converter,
    [{'targets': [3, 9, 1]}, {'targets': [4, 5, 7, 1]}],
    {'targets': 4},
  )

  assert first['ids'].tolist() == [3, 9, 1, 0]
  assert first['labels'].tolist() == [9, 1, 0, 6]
  assert first['weights'].tolist() == [1, 1, 0, 0]
  assert first['paddings'].tolist() == [0, 0, 1, 1]
  assert full['labels'].tolist() == [5, 7, 1, 6]
  assert full['weights'].tolist() == [1, 1, 1, 0]


def test_no_label_is_of_the_next_example_in_the_row():
  converter = converters.LanguageModelFeatures(
    reverse_bos_padding=True, eos_id=6, pack=True
  )

  [row] = _converted(
    converter, [{'targets': [3, 9, 1]}, {'targets': [4, 5]}], {'targets': 7}
  )

  assert row['ids'].tolist() == [3, 9, 1, 4, 5, 0, 0]
  assert row['labels'].tolist() == [9, 1, 6, 5, 0, 0, 6]
  assert row['weights'].tolist() == [1, 1, 0, 1, 0, 0, 0]
  assert row['paddings'].tolist() == [0, 0, 1, 0, 1, 1, 1]
  assert row['segment_ids'].tolist() == [1, 1, 1, 2, 2, 0, 0]


def test_only_the_suffix_counts():
  examples = [
    {'inputs': [9, 4, 6], 'targets': [3, 9], 'suffixes': [2, 1]},
    {'inputs': [3, 2], 'targets': [4], 'suffixes': [8]},
  ]
  lengths = {'inputs': 4, 'targets': 3, 'suffixes': 3}
  converter = converters.LanguageModelFeatures(target_has_suffix=True)

  found = _converted(converter, examples, lengths)

  assert found[0]['labels'].tolist() == [9, 4, 6, 3, 9, 2, 1, 0, 0, 0]
  assert found[0]['weights'].tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
  assert found[1]['weights'].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
  with pytest.raises(errors.UserError, match='has no suffixes'):
    _converted(converter, _PROMPTED)


def test_passthrough_features():
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  spec = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
  converter = converters.LanguageModelFeatures(
    passthrough_features={'extra': spec}
  )
  examples = [{**x, 'extra': [5, 6]} for x in _PROMPTED]

  found = _converted(converter, examples, {**_LENGTHS, 'extra': 2})

  assert [x['extra'].tolist() for x in found] == [[5, 6]] * 4
  assert converters.passthrough_of(converter) == ('extra',)


@pytest.mark.parametrize(('packed', 'bos_id'), [(False, 2), (True, 0)])
def test_encoder_and_decoder(packed, bos_id):
  rows = [[x] for x in _PROMPTED]
  if packed:
    rows = [_PROMPTED[:1], _PROMPTED[1:3], _PROMPTED[3:]]
  converter = converters.SequenceModelFeatures(pack=packed, bos_id=bos_id)

  found = _converted(converter, _PROMPTED)

  targets = [[{'targets': x['targets']} for x in row] for row in rows]
  sources = [[{'targets': x['inputs']} for x in row] for row in rows]
  options = {'packed': packed, 'targets_only': None, 'bos_id': bos_id}
  _assert_equal(
    [x['tgt'] for x in found], _of_language_model(targets, 8, **options)
  )
  expected = [
    {
      'ids': x['labels'],
      **{k: x[k] for k in ('paddings', 'segment_ids', 'segment_pos')},
    }
    for x in _of_language_model(sources, 7, **options)
  ]
  _assert_equal([x['src'] for x in found], expected)


@pytest.mark.parametrize(
  ('ready', 'own', 'theirs'),
  [
    (
      converters.PackedLanguageModelFeatures,
      converters.LanguageModelFeatures,
      'DecoderFeatureConverter',
    ),
    (
      converters.PackedSequenceModelFeatures,
      converters.SequenceModelFeatures,
      'EncDecFeatureConverter',
    ),
  ],
)
@pytest.mark.parametrize('packed', [False, True])
def test_examples_that_are_converted_already(ready, own, theirs, packed):
  seqio = getattr(lingvo_runtime.seqio(), theirs)(pack=packed)
  packed_before = seqio(_dataset(_PROMPTED), _LENGTHS)

  data = ready()(packed_before, task_feature_lengths=_LENGTHS)

  flat = [_flat(x) for x in data.as_numpy_iterator()]
  _assert_equal(
    flat, [_flat(x) for x in _converted(own(pack=packed), _PROMPTED)]
  )


def _flat(fields: dict) -> dict:
  flat = {}
  for name, value in fields.items():
    inner = value if isinstance(value, dict) else {'': value}
    flat |= {f'{name} {key}': x for key, x in inner.items()}
  return flat


def test_task_ids_are_kept():
  converter = converters.SequenceModelFeaturesWithTaskInfo()
  for name, kept in (
    ('task_ids', {'src', 'tgt'}),
    ('tgt_task_ids', {'tgt'}),
  ):
    examples = [{**x, name: [4, 5]} for x in _PROMPTED]

    found = _converted(converter, examples, {**_LENGTHS, name: 2})

    plain = _converted(converters.SequenceModelFeatures(), _PROMPTED)
    for one, other in zip(found, plain, strict=True):
      for coder in ('src', 'tgt'):
        ids = one[coder].pop('task_ids', None)
        assert (ids is not None) == (coder in kept)
        assert ids is None or ids.tolist() == [4, 5]
      _assert_equal([_flat(one)], [_flat(other)])
  with pytest.raises(errors.UserError, match="'tgt_task_ids' has the shape"):
    converter(_dataset(examples), task_feature_lengths=_LENGTHS)


@pytest.mark.slow
def test_task_ids_of_packed_examples():
  converter = converters.SequenceModelFeaturesWithTaskInfo(pack=True)
  examples = [{**x, 'task_ids': [i, 7]} for i, x in enumerate(_PROMPTED, 1)]

  found = _converted(
    converter, examples, {'inputs': 10, 'targets': 8, 'task_ids': 5}
  )

  ids = [x['src'].pop('task_ids').tolist() for x in found]
  assert ids == [[1, 7, 2, 7, 0], [3, 7, 4, 7, 0]]
  assert [x['tgt'].pop('task_ids').tolist() for x in found] == ids
  plain = _converted(
    converters.SequenceModelFeatures(pack=True),
    _PROMPTED,
    {'inputs': 10, 'targets': 8},
  )
  _assert_equal([_flat(x) for x in found], [_flat(x) for x in plain])


def test_a_converter_with_a_method_of_pax():
  class Reversed(converters.LanguageModelFeatures):
    def _to_pax(self, b):
      fields = super()._to_pax(b)
      fields.reversed = fields.labels[::-1]
      return fields

  [found, *_] = _converted(Reversed(), _PROMPTED)
  assert found['reversed'].tolist() == found['labels'][::-1].tolist()
  with pytest.raises(errors.UserError, match='_convert_example would never'):
    type('Mine', (converters.SequenceModelFeatures,), {'_convert_example': 1})


def test_provenance_is_dropped():
  examples = [{'src/ids': [1], 'provenance/name': [2], 'targets': [3]}]

  [plain] = _converted(converters.RemoveProvenance(), examples)
  [nested] = _converted(converters.UnflattenAndRemoveProvenance(), examples)

  assert {k: v.tolist() for k, v in plain.items()} == {
    'src/ids': [1],
    'targets': [3],
  }
  assert nested['src']['ids'].tolist() == [1]
  assert nested.keys() == {'src', 'targets'}


def test_configs_are_built_and_converters_are_not_changed():
  config = converters.LanguageModelFeatures.config(pack=True)
  theirs = lingvo_runtime.seqio().LMFeatureConverter(pack=False)

  assert converters.built(config).pack
  assert converters.built(theirs) is theirs
  built = config_lib.Config(type(theirs), pack=True)
  assert converters.built(built).pack


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (
      lambda: converters.LanguageModelFeatures(use_custom_packing_ops=True),
      'use_custom_packing_ops is True; expected False',
    ),
    (
      lambda: converters.LanguageModelFeatures(
        pack=True, passthrough_features={'x': None}
      ),
      'pack is True with passthrough_features',
    ),
    (
      lambda: converters.PackedLanguageModelFeatures(pack=True),
      'packed already',
    ),
    (lambda: converters.built('lm'), "feature_converter is 'lm'; expected"),
  ],
)
def test_invalid_fields(make, message):
  with pytest.raises(errors.UserError, match=message):
    make()
