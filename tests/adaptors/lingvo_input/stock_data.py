"""Small data for the stock inputs of Lingvo, and their Params."""

import io

import numpy as np
import pytest

from adaptors import lingvo_runtime

# Whatever a tokenizer does with them, each comes back as it was.
WORDS = ('hello', 'there', 'yellow', 'stone', 'tell', 'one', 'tone')
LENGTH = 24


def module(name: str):
  """Returns a module of Lingvo or TensorFlow."""
  return lingvo_runtime.module(name)


def texts(count: int) -> list[str]:
  """Returns different texts of three words."""
  n = len(WORDS)
  return [
    f'{WORDS[i % n]} {WORDS[i // n % n]} {WORDS[(i + i // n) % n]}'
    for i in range(count)
  ]


def tokenizer(kind: str, folder):
  """Returns Params of a tokenizer that knows all words, its files written."""
  tokenizers = module('lingvo.core.tokenizers')
  if kind == 'ascii':
    return tokenizers.AsciiTokenizer.Params()
  if kind == 'vocab':
    words = ['<S>', '</S>', '<UNK>', *WORDS]
    lines = [f'{word}\t{i}' for i, word in enumerate(words)]
    path = _file(folder, 'words.vocab', lines)
    return tokenizers.VocabFileTokenizer.Params().Set(
      token_vocab_filepath=path,
      target_sos_id=0,
      target_eos_id=1,
      target_unk_id=2,
    )
  if kind == 'wpm':
    letters = sorted(set(''.join(WORDS)))
    pieces = ['<unk>', '<s>', '</s>', '▁', *letters, 'll', '▁t', 'one', '▁h']
    path = _file(folder, 'wpm.vocab', pieces)
    return tokenizers.WpmTokenizer.Params().Set(vocab_filepath=path)
  if kind == 'bpe':
    letters = sorted(set(''.join(WORDS)))
    codes = ['<unk>', '<s>', '</s>']
    codes += [f'{x}@@ 1' for x in letters] + [f'{x} 1' for x in letters]
    ids = {line.split()[0]: i for i, line in enumerate(codes)}
    words = []
    for word in WORDS:
      pieces = [*(f'{x}@@' for x in word[:-1]), word[-1]]
      words.append(f'{word} {",".join(str(ids[p]) for p in pieces)}')
    return tokenizers.BpeTokenizer.Params().Set(
      codes_filepath=_file(folder, 'bpe.codes', codes),
      words_to_ids_filepath=_file(folder, 'bpe.words', words),
    )
  return sentence_pieces(folder, size=20)


def sentence_pieces(folder, size: int):
  """Returns Params of a SentencePiece tokenizer with so many pieces."""
  sentencepiece = pytest.importorskip('sentencepiece')
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts(60)),
    model_writer=model,
    vocab_size=size,
    minloglevel=2,
  )
  path = folder / f'{size}.model'
  path.write_bytes(model.getvalue())
  # Its model has the ids 0 for unknown, 1 and 2 for start and end.
  tokenizers = module('lingvo.core.tokenizers')
  return tokenizers.SentencePieceTokenizer.Params().Set(spm_model=str(path))


def _file(folder, name, lines) -> str:
  path = folder / name
  path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')
  return str(path)


def text_file(folder, name: str, lines) -> str:
  """Writes lines; returns their Lingvo pattern."""
  return f'text:{_file(folder, name, lines)}'


def example(**features) -> bytes:
  """Returns a serialized tf.Example; types are those of the values."""
  train = module('tensorflow').train
  made = {}
  for name, values in features.items():
    if isinstance(values, str):
      kind = {'bytes_list': train.BytesList(value=[values.encode()])}
    elif np.asarray(values).dtype.kind == 'f':
      kind = {'float_list': train.FloatList(value=np.ravel(values))}
    else:
      kind = {'int64_list': train.Int64List(value=np.ravel(values))}
    made[name] = train.Feature(**kind)
  return train.Example(
    features=train.Features(feature=made)
  ).SerializeToString()


def record_file(folder, name: str, records) -> str:
  """Writes records; returns the path of the TFRecord file."""
  path = str(folder / name)
  with module('tensorflow').io.TFRecordWriter(path) as writer:
    for record in records:
      writer.write(record)
  return path


def sequences(params, pattern: str, **fields):
  """Sets what the stock inputs of sequences have in common."""
  return params.Set(
    **{
      'file_pattern': pattern,
      'file_random_seed': 0,
      'file_buffer_size': 16,
      'file_parallelism': 1,
      'bucket_upper_bound': [LENGTH],
      'bucket_batch_limit': [4],
      'source_max_length': LENGTH,
      'target_max_length': LENGTH,
      **fields,
    }
  )
