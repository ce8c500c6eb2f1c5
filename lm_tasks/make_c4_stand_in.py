"""Makes a small stand-in for the C4 corpus, without a download.

    python -m lm_tasks.make_c4_stand_in --folder=/tmp/c4

The folder then has what the C4 experiments read from MLPerf's copy of C4, made
of Python's documentation: the TFDS datasets `c4/en` 3.0.4 (text, split `train2`
and `validation_24567exp`) and 3.0.5 (token ids of the latter, split
`validation_tokenized_5662seqs`), and a SentencePiece model in `vocab/`. Train
on it with `--tfds_data_dir=/tmp/c4`.

It has about 290,000 characters: enough to see that a loss falls, not to compare
models. The text differs between Python versions.
"""

import io
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags, logging

from adaptors import lingvo_runtime
from lm_tasks import c4_data, c4_pipeline, python_docs_text
from pax_compat import errors
from pax_compat.cli import command_line, experiment_flags
from pax_compat.runs import files

_FOLDER = flags.DEFINE_string('folder', None, 'New or empty folder to write.')
_PIECES = flags.DEFINE_integer(
  'pieces', 2000, 'Vocabulary size of the SentencePiece model.', lower_bound=300
)

# Written last; what it is for those who find it.
_MARKER = 'README.txt'
_NOTE = (
  'A small stand-in for the C4 corpus, made of the documentation of Python by'
  ' python -m lm_tasks.make_c4_stand_in\n'
)
_LINES_OF_DOCUMENT = 12
_SHARDS = 4
# Tokens of a row of the tokenized validation split. In C4 they are 2,048.
_EVAL_ROW = 256


def main(argv: list[str]):
  """Writes the folder; see the module."""
  command_line.no_arguments(argv)
  experiment_flags.require(_FOLDER)
  make(_FOLDER.value, pieces=_PIECES.value)


def make(folder: str | pathlib.Path, *, pieces: int = 2000):
  """Writes the datasets and the vocabulary, unless they are there.

  Args:
    folder: the data folder, new or empty.
    pieces: size of the vocabulary, at least 300.

  Raises:
    UserError: the folder has other files or cannot be written, or this Python
      comes without its documentation.
  """
  folder = pathlib.Path(folder).expanduser()
  try:
    if (folder / _MARKER).exists():
      logging.info('%s has a stand-in for C4; nothing to do', folder)
      return
    if folder.exists() and any(folder.iterdir()):
      raise errors.UserError(
        f'{folder} has files; expected a new or empty folder'
      )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, pieces)
    files.replace(folder / _MARKER, _NOTE.encode())
  except OSError as e:
    raise errors.UserError(f'cannot write to {folder}: {e}') from e


def _write(folder: pathlib.Path, pieces: int):
  text = python_docs_text.corpus().splits
  train, held_out = _documents(text['train']), _documents(text['dev'])
  path = folder / c4_pipeline.VOCABULARY_FILE
  path.parent.mkdir(parents=True, exist_ok=True)
  files.replace(path, _trained_model(text['train'], pieces))
  rows = _rows(c4_pipeline.read_vocabulary(str(path)), held_out)
  features = lingvo_runtime.tensorflow_datasets().features
  _store(
    folder,
    '3.0.4',
    {'text': features.Text()},
    {c4_data.TRAIN_SPLIT: train, 'validation_24567exp': held_out},
  )
  _store(
    folder,
    '3.0.5',
    {'ids': features.Tensor(shape=(None,), dtype=np.int32)},
    {c4_data.EVAL_SPLIT: rows},
  )
  logging.info(
    'wrote %s: %d documents for training, %d rows of %d tokens for evaluation,'
    ' a vocabulary of %d pieces',
    folder,
    len(train),
    len(rows),
    _EVAL_ROW,
    pieces,
  )


def _documents(lines: Sequence[str]) -> list[str]:
  """Returns documents of some lines each, as C4 has them."""
  starts = range(0, len(lines), _LINES_OF_DOCUMENT)
  return ['\n'.join(lines[i : i + _LINES_OF_DOCUMENT]) for i in starts]


def _trained_model(lines: Sequence[str], pieces: int) -> bytes:
  """Returns a SentencePiece model: 0 is padding, 1 the end, 2 unknown."""
  import sentencepiece  # An optional dependency.

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    model_type='unigram',
    vocab_size=pieces,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    num_threads=1,
    minloglevel=2,
  )
  return model.getvalue()


def _rows(vocabulary: Any, documents: Sequence[str]) -> list[np.ndarray]:
  """Returns the concatenated tokens of documents as rows of `_EVAL_ROW`."""
  tokens = np.concatenate([vocabulary.encode(x) for x in documents])
  starts = range(0, len(tokens), _EVAL_ROW)
  return [tokens[i : i + _EVAL_ROW].astype(np.int32) for i in starts]


def _store(
  folder: pathlib.Path,
  version: str,
  features: dict[str, Any],
  splits: dict[str, Sequence[Any]],
):
  """Writes a version of `c4/en`; examples have one feature."""
  tfds = lingvo_runtime.tensorflow_datasets()
  tfds.disable_progress_bar()
  [name] = features
  tfds.dataset_builders.store_as_tfds_dataset(
    name='c4',
    config='en',
    version=version,
    data_dir=folder,
    features=tfds.features.FeaturesDict(features),
    split_datasets={
      split: [(i, {name: x}) for i, x in enumerate(examples)]
      for split, examples in splits.items()
    },
    description=_NOTE,
    download_config=tfds.download.DownloadConfig(num_shards=_SHARDS),
  )


if __name__ == '__main__':
  command_line.run(main)
