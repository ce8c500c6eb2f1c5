"""Lingvo's stock inputs, held against an independent reading of their data."""

import collections
import functools

import numpy as np
import pytest

from adaptors.lingvo_input import (
  eval_adaptors,
  input_adaptor,
)
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing
from tests.adaptors.lingvo_input import stock_data as stock

LENGTH = stock.LENGTH

_TOKENIZERS = ('ascii', 'vocab', 'wpm', 'bpe', 'sentencepiece')


@pytest.fixture(name='train')
def _train(adapt):
  """Builds training adaptors that are closed at the end of the test."""
  return functools.partial(
    adapt, is_training=True, allow_fixed_file_random_seed=True
  )


@pytest.fixture(name='evaluate')
def _evaluate():
  """Returns the batches of an evaluation, over all of its hosts."""

  def batches(params, hosts=1, batch_size=4, **fields):
    found = []
    for host in range(hosts):
      adaptor = eval_adaptors.LingvoEvalAdaptor(
        input=params,
        batch_size=batch_size,
        reset_for_eval=True,
        num_infeed_hosts=hosts,
        infeed_host_index=host,
        **fields,
      )
      found.append(testing.drain(adaptor))
      adaptor.close()
    assert len({len(of_host) for of_host in found}) == 1
    return [b for of_host in found for b in of_host]

  return batches


def _real(batch) -> np.ndarray:
  return np.flatnonzero(batch.eval_sample_weights)


def _decoded(adaptor, labels, paddings, key=None) -> list[str]:
  lengths = (paddings < 0.5).sum(axis=1) - 1  # Without the end symbol.
  found = adaptor.ids_to_strings(labels, np.maximum(lengths, 0), key)
  return [text.rstrip() for text in found]  # BPE leaves a space.


def _rows(batches, *names) -> collections.Counter:
  """Counts the real rows of batches, by these leaves."""
  counts = collections.Counter()
  for batch in batches:
    leaves = dict(batch.flatten_items())
    for row in _real(batch):
      counts[tuple(_told(leaves[name][row]) for name in names)] += 1
  return counts


def _told(value):
  if isinstance(value, bytes):
    return value.decode()
  value = np.asarray(value)
  return tuple(value.ravel().tolist()) if value.ndim else value.item()


@pytest.mark.parametrize('kind', _TOKENIZERS)
def test_tokenizers(train, tmp_path, kind):
  lines = stock.texts(13)
  generators = stock.module('lingvo.tasks.lm.input_generator')
  params = stock.sequences(
    generators.LmInput.Params(),
    stock.text_file(tmp_path, 'a.txt', lines),
    tokenizer=stock.tokenizer(kind, tmp_path),
  )
  adaptor = train(params)
  found = set()
  for _ in range(12):
    batch = adaptor.get_next()
    found.update(_decoded(adaptor, batch.labels, batch.paddings))
  assert found == set(lines)
  held_out = eval_adaptors.LingvoEvalAdaptor(
    input=params, batch_size=4, reset_for_eval=True
  )
  for _ in range(2):
    texts = []
    for batch in testing.drain(held_out):
      decoded = _decoded(held_out, batch.labels, batch.paddings)
      texts += [decoded[row] for row in _real(batch)]
    assert sorted(texts) == sorted(lines)
    held_out.reset()
  held_out.close()


def _pairs(count: int) -> list[str]:
  # The words of both languages are the same, as the tokenizers know no others.
  texts = stock.texts(2 * count)
  return [f'{texts[i]}\t{texts[count + i]}' for i in range(count)]


def _text_packed(tmp_path, pairs, **fields):
  generators = stock.module('lingvo.tasks.mt.input_generator')
  return stock.sequences(
    generators.TextPackedInput.Params(),
    stock.text_file(tmp_path, 'pairs.tsv', pairs),
    **fields,
  )


@pytest.mark.parametrize('kind', ['ascii', 'sentencepiece'])
def test_text_packed_input(train, evaluate, tmp_path, log, kind):
  pairs = _pairs(9)
  params = _text_packed(
    tmp_path, pairs, tokenizer=stock.tokenizer(kind, tmp_path)
  )
  adaptor = train(params)
  batch = adaptor.get_next()
  assert 'strs' not in batch.src
  assert 'no device takes them: src.strs, tgt.strs' in log()
  source = adaptor.ids_to_strings(
    batch.src.ids, (batch.src.paddings < 0.5).sum(axis=1) - 1
  )
  target = _decoded(adaptor, batch.tgt.labels, batch.tgt.paddings)
  assert {f'{a}\t{b}' for a, b in zip(source, target, strict=True)} <= set(
    pairs
  )
  for hosts in (1, 2):
    batches = evaluate(params, hosts=hosts, batch_size=2)
    found = _rows(batches, 'src.strs', 'tgt.strs')
    assert found == collections.Counter(tuple(p.split('\t')) for p in pairs)
    for b in batches:
      for row in _real(b):
        string = b.src.strs[row].decode()
        [text] = adaptor.ids_to_strings(
          b.src.ids[[row]], (b.src.paddings[[row]] < 0.5).sum(axis=1) - 1
        )
        assert text == string


def test_two_sentence_pieces_stay_apart(train, tmp_path, log):
  params = _text_packed(
    tmp_path,
    _pairs(9),
    tokenizer=None,
    tokenizer_dict={
      'src': stock.sentence_pieces(tmp_path, 15),
      'tgt': stock.sentence_pieces(tmp_path, 20),
    },
  )
  adaptor = train(params)
  batch = adaptor.get_next()
  lengths = (batch.src.paddings < 0.5).sum(axis=1) - 1
  source = adaptor.ids_to_strings(batch.src.ids, lengths, key='src')
  target = _decoded(adaptor, batch.tgt.labels, batch.tgt.paddings, key='tgt')
  found = {f'{a}\t{b}' for a, b in zip(source, target, strict=True)}
  assert found <= set(_pairs(9))
  assert 'replaced the SentencePiece model' in log()


def test_packed_rows_hold_whole_pairs(train, tmp_path):
  pairs = _pairs(20)
  params = _text_packed(
    tmp_path,
    pairs,
    tokenizer=stock.sentence_pieces(tmp_path, 20),
    packing_factor=2.0,
    source_max_length=48,
    target_max_length=48,
  )
  adaptor = train(params)
  batch = adaptor.get_next()
  assert batch.src.segment_ids.max() > 1
  for row in range(4):
    for segment in range(1, int(batch.src.segment_ids[row].max()) + 1):
      texts = []
      for side, ids in ((batch.src, 'ids'), (batch.tgt, 'labels')):
        own = side.segment_ids[row] == segment
        tokens = side[ids][row][own]
        texts += adaptor.ids_to_strings(tokens[None], [len(tokens) - 1])
      assert '\t'.join(texts) in pairs


def _bert_records(count: int):
  """Returns serialized examples, and what the batches are to hold of each."""
  rng = np.random.default_rng(0)
  records, expected = [], []
  for _ in range(count):
    length = int(rng.integers(8, 17))
    original = np.zeros(16, int)
    original[:length] = rng.integers(4, 100, length)
    original[[length // 2, length - 1]] = 102
    masked = original.copy()
    masked[[1, 3]] = 103
    real = (np.arange(16) < length).astype(int)
    records.append(
      stock.example(
        input_ids=masked,
        input_mask=real,
        masked_lm_positions=[1, 3],
        masked_lm_ids=original[[1, 3]],
        masked_lm_weights=[1.0, 1.0],
      )
    )
    # Without the first end symbol, which stood between two sentences.
    kept = np.delete(np.arange(16), length // 2)
    expected.append(
      (
        (*original[kept].tolist(), 0),
        (*masked[kept].tolist(), 0),
        (*(1.0 - real[kept]).tolist(), 1.0),
      )
    )
  return records, expected


def _bert(tmp_path, records, **fields):
  generators = stock.module('lingvo.tasks.lm.input_generator')
  return generators.TFRecordBertInput.Params().Set(
    input_file=stock.record_file(tmp_path, 'bert.tfrecord', records),
    max_sequence_length=16,
    max_predictions_per_seq=2,
    batch_size=4,
    file_buffer_size=8,
    **fields,
  )


_BERT_LEAVES = ('ids', 'masked_ids', 'paddings')


def test_bert_input(train, evaluate, tmp_path):
  records, expected = _bert_records(11)
  params = _bert(tmp_path, records)
  for hosts in (1, 2):
    batches = evaluate(params, hosts=hosts, batch_size=2, cluster_do_eval=True)
    assert _rows(batches, *_BERT_LEAVES) == collections.Counter(expected)
  adaptor = train(params)
  found = _rows([adaptor.get_next() for _ in range(11)], *_BERT_LEAVES)
  assert found == collections.Counter(expected * 4)
  shuffled = train(_bert(tmp_path, records, shuffle=True))
  found = _rows([shuffled.get_next() for _ in range(20)], *_BERT_LEAVES)
  assert set(found) == set(expected)


def test_rows_that_bert_input_fills_up_with_do_not_count(tmp_path):
  records, expected = _bert_records(6)
  adaptor = input_adaptor.LingvoInputAdaptor(
    input=_bert(tmp_path, records), reset_for_eval=True, cluster_do_eval=True
  )
  batches = testing.drain(adaptor)
  adaptor.close()
  assert batches[1].eval_sample_weights.tolist() == [1, 1, 0, 0]
  assert batches[1].paddings[2:].all()
  assert _rows(batches, *_BERT_LEAVES) == collections.Counter(expected)


def test_packed_bert_rows_hold_whole_examples(train, tmp_path):
  records, expected = _bert_records(16)
  params = _bert(
    tmp_path, records, enable_packing=True, prepacking_batch_size=8
  )
  batch = train(params).get_next()
  whole = {tuple(x for x in ids if x) for ids, _, _ in expected}
  for row in range(4):
    for segment in range(1, int(batch.segment_ids[row].max()) + 1):
      assert tuple(batch.ids[row][batch.segment_ids[row] == segment]) in whole


def test_packed_rows_are_no_evaluation_of_each_example(tmp_path):
  texts = _text_packed(tmp_path, _pairs(3), packing_factor=2.0)
  packs = {'enable_packing': True, 'prepacking_batch_size': 8}
  bert = _bert(tmp_path, _bert_records(3)[0], **packs)
  for params, field in ((texts, 'packing_factor'), (bert, 'enable_packing')):
    with pytest.raises(
      errors.UserError, match=rf'input\.{field} is .* dropped'
    ):
      eval_adaptors.LingvoEvalAdaptor(
        input=params, batch_size=2, reset_for_eval=True
      )


def _translations(count: int):
  """Returns source and target ids of examples, of different lengths."""
  return [
    (list(range(5 + i, 8 + i + i % 4)), list(range(40 + i, 42 + i + i % 3)))
    for i in range(count)
  ]


def _nmt_record(source, target) -> bytes:
  one = {
    'source_id': source,
    'source_padding': [0.0] * len(source),
    'target_id': [1, *target[:-1]],
    'target_padding': [0.0] * len(target),
    'target_label': target,
    'target_weight': [1.0] * len(target),
  }
  mono = {f'mono_{name}': values for name, values in one.items()}
  return stock.example(**one, **mono, natural_order=[1])


def _mlperf_record(source, target) -> bytes:
  return stock.example(
    inputs=source,
    targets=target,
    inputs_position=range(len(source)),
    inputs_segmentation=[1] * len(source),
    targets_position=range(len(target)),
    targets_segmentation=[1] * len(target),
  )


@pytest.mark.parametrize(
  'name, fields',
  [
    ('NmtInput', {}),
    ('NmtInput', {'pad_to_max_seq_length': True}),
    ('NmtDoubleInput', {'pad_id': 0}),
    ('MlPerfInput', {}),
    ('MlPerfInput', {'packed_input': True}),
  ],
)
def test_translation_inputs(train, evaluate, tmp_path, name, fields):
  pairs = _translations(9)
  record = _mlperf_record if name == 'MlPerfInput' else _nmt_record
  path = stock.record_file(
    tmp_path, 'pairs.tfrecord', [record(*pair) for pair in pairs]
  )
  generators = stock.module('lingvo.tasks.mt.input_generator')
  params = stock.sequences(
    getattr(generators, name).Params(),
    f'tfrecord:{path}',
    tokenizer=stock.tokenizer('vocab', tmp_path),
    **fields,
  )

  def found(batches):
    return collections.Counter(
      (
        tuple(b.src.ids[row][b.src.paddings[row] < 0.5]),
        tuple(b.tgt.labels[row][b.tgt.paddings[row] < 0.5]),
      )
      for b in batches
      for row in _real(b)
    )

  expected = [(tuple(s), tuple(t)) for s, t in pairs]
  assert found(evaluate(params, hosts=2)) == collections.Counter(expected)
  adaptor = train(params)
  assert set(found([adaptor.get_next() for _ in range(9)])) == set(expected)


def test_asr_input(train, evaluate, tmp_path):
  rng = np.random.default_rng(0)
  frames = [rng.random((3 + i % 3, 4), np.float32) for i in range(7)]
  names = [f'utt{i}' for i in range(7)]
  records = [
    stock.example(uttid=name, transcript='hello', frames=x)
    for name, x in zip(names, frames, strict=True)
  ]
  generators = stock.module('lingvo.tasks.asr.input_generator')
  params = stock.sequences(
    generators.AsrInput.Params().Set(frame_size=4),
    f'tfrecord:{stock.record_file(tmp_path, "asr.tfrecord", records)}',
  )
  assert 'sample_ids' not in train(params).get_next()
  found = {}
  for batch in evaluate(params, hosts=2, batch_size=2):
    for row in _real(batch):
      [name] = batch.sample_ids[row]
      found[name.decode()] = batch.src.src_inputs[row, :, :, 0]
      assert batch.src.paddings[row].sum() < batch.src.paddings.shape[1]
  assert sorted(found) == names
  for name, x in zip(names, frames, strict=True):
    np.testing.assert_array_equal(found[name][: len(x)], x)
    assert not found[name][len(x) :].any()


def test_mnist_input_has_one_order_on_all_hosts(evaluate, tmp_path):
  tf = stock.module('tensorflow')
  images = np.random.default_rng(0).integers(0, 255, (11, 28, 28), np.uint8)
  checkpoint = tf.raw_ops.SaveV2(
    prefix=str(tmp_path / 'mnist'),
    tensor_names=['x_test', 'y_test'],
    shape_and_slices=['', ''],
    tensors=[images, np.arange(11, dtype=np.uint8)],
  )
  del checkpoint
  generators = stock.module('lingvo.tasks.image.input_generator')
  params = generators.MnistTestInput.Params().Set(
    ckpt=str(tmp_path / 'mnist'), batch_size=4, num_samples=11
  )
  batches = evaluate(params, hosts=2, batch_size=3)
  labels = [int(b.label[row]) for b in batches for row in _real(b)]
  assert sorted(labels) == list(range(11))
  for batch in batches:
    for row in _real(batch):
      image = images[int(batch.label[row])]
      np.testing.assert_array_equal(batch.raw[row, :, :, 0], image)
  adaptor = input_adaptor.LingvoInputAdaptor(input=params, reset_for_eval=True)
  weights = [b.eval_sample_weights.sum() for b in testing.drain(adaptor)]
  adaptor.close()
  assert weights == [4, 4, 3]


def test_a_missing_file_of_images(evaluate, tmp_path):
  generators = stock.module('lingvo.tasks.image.input_generator')
  params = generators.MnistTestInput.Params().Set(ckpt=str(tmp_path / 'mnist'))
  with pytest.raises(errors.UserError) as error:
    evaluate(params)
  assert str(error.value).startswith('MnistTestInput lacks a file: ')
  assert str(error.value).endswith(f'matching files for {tmp_path / "mnist"}')
  adaptor = input_adaptor.LingvoInputAdaptor.config(name='Train', input=params)
  with pytest.raises(errors.UserError) as early:
    adaptor.cls.check_files(adaptor)
  assert str(early.value) == str(error.value)


def test_punctuator_input(evaluate, tmp_path):
  lines = stock.texts(5)
  generators = stock.module('lingvo.tasks.punctuator.input_generator')
  params = generators.PunctuatorInput.Params().Set(
    tokenizer=stock.tokenizer('wpm', tmp_path),
    source_max_length=LENGTH,
    target_max_length=LENGTH,
    bucket_upper_bound=[LENGTH],
    bucket_batch_limit=[4],
  )
  pattern = stock.text_file(tmp_path, 'a.txt', lines)
  params.file_datasource.file_pattern = pattern.removeprefix('text:')
  batches = evaluate(params, hosts=1)
  pieces = (tmp_path / 'wpm.vocab').read_text().split('\n')
  found = []
  for b in batches:
    for row in _real(b):
      ids = b.tgt.labels[row][b.tgt.paddings[row] < 0.5][:-1]
      text = ''.join(pieces[i] for i in ids).replace('▁', ' ').strip()
      found.append(text)
  assert sorted(found) == sorted(lines)
