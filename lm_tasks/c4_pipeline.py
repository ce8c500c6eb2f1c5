"""The SeqIO tasks of C4, from text to rows of tokens.

They are those of `paxml.tasks.lm.params.c4`: documents of a TFDS dataset are
tokenized by SentencePiece, concatenated without a separator, and split into
rows. `seqio_cache_tasks` can write their tokens to files (see docs/c4.md).

`lm_tasks.c4_tasks` registers them; `lm_tasks.c4_data` reads them.
"""

import dataclasses
import functools
import posixpath
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.seqio_input import preprocessors
from pax_compat import errors

# The folder of MLPerf's copy of C4, and the vocabulary in a data folder.
DATA_DIR = 'gs://mlperf-llm-public2'
VOCABULARY_FILE = 'vocab/c4_en_301_5Mexp2_spm.model'
# The number of pieces of that vocabulary.
VOCABULARY_SIZE = 50257


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
  """What makes up a task.

  Attributes:
    tfds_name: the TFDS dataset, with its version.
    feature: the feature with the text, or with the ids of a tokenized one.
    is_tokenized: whether the feature has ids, each example being a row.
    concatenated: number of documents that are concatenated.
    shuffle_buffer_size: rows in the shuffle buffer; None: never shuffled.
  """

  tfds_name: str
  feature: str = 'text'
  is_tokenized: bool = False
  concatenated: int = 4096
  shuffle_buffer_size: int | None = None

  @property
  def version(self) -> str:
    """The version of the dataset."""
    return self.tfds_name.partition(':')[2]


TASKS = {
  'c4_lm_v301_gpt': TaskSpec(
    tfds_name='c4/en:3.0.4', shuffle_buffer_size=10_000
  ),
  'c4_lm_v301_gpt_eval_tokenized': TaskSpec(
    tfds_name='c4/en:3.0.5', feature='ids', is_tokenized=True
  ),
  # The same validation data as text, as Pax read it before April 2023: its
  # split is `validation_24567exp`.
  'c4_lm_v301_gpt_eval': TaskSpec(tfds_name='c4/en:3.0.4', concatenated=24567),
}


def make_source(
  spec: TaskSpec, *, tfds_data_dir: str | None, tfds_name: str | None = None
) -> Any:
  """Returns the `seqio.TfdsDataSource` of a task.

  Args:
    spec: the task.
    tfds_data_dir: folder of the TFDS dataset; None for `DATA_DIR`.
    tfds_name: another TFDS dataset with the same feature.
  """
  return lingvo_runtime.seqio().TfdsDataSource(
    tfds_name or spec.tfds_name,
    tfds_data_dir=tfds_data_dir or DATA_DIR,
    # Otherwise TFDS would download and prepare a missing dataset.
    read_only=True,
  )


def check_source(source: Any):
  """Raises a UserError if the TFDS dataset of a source cannot be read."""
  dataset = source.tfds_dataset
  try:
    _ = dataset.builder
  except Exception as e:  # Of TFDS, TensorFlow or a file system.
    raise errors.UserError(
      f'C4: the TFDS dataset {dataset.name} in {dataset.data_dir} cannot be'
      ' read; expected its folder in --tfds_data_dir (python -m'
      f' lm_tasks.make_c4_stand_in makes a small one). {errors.one_line(e)}'
    ) from e


def make_task(name: str, spec: TaskSpec, *, source: Any, vocabulary: Any):
  """Returns a `seqio.Task`. It is not registered.

  Args:
    name: its name.
    spec: what makes it up.
    source: the `seqio.DataSource` of its documents.
    vocabulary: the `seqio.Vocabulary` of text; not used if it is tokenized.
  """
  seqio = lingvo_runtime.seqio()
  steps = [
    functools.partial(
      seqio.preprocessors.rekey,
      key_map={'inputs': None, 'targets': spec.feature},
    ),
    functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
  ]
  if spec.is_tokenized:
    vocabulary = seqio.PassThroughVocabulary(size=VOCABULARY_SIZE)
  else:
    steps += [
      seqio.CacheDatasetPlaceholder(),
      functools.partial(
        preprocessors.reduce_concat_tokens, batch_size=spec.concatenated
      ),
      preprocessors.split_tokens_to_targets_length,
    ]
  return seqio.Task(
    name,
    source=source,
    preprocessors=steps,
    output_features={
      'targets': seqio.Feature(vocabulary=vocabulary, add_eos=False)
    },
    metric_fns=[],
    shuffle_buffer_size=spec.shuffle_buffer_size,
  )


def vocabulary_in(tfds_data_dir: str) -> str:
  """Returns the path of the vocabulary that belongs to a data folder.

  It is the folder's own `VOCABULARY_FILE`. Without such a file, it is that
  of `DATA_DIR`, with a log line.
  """
  path = posixpath.join(tfds_data_dir, VOCABULARY_FILE)
  public = posixpath.join(DATA_DIR, VOCABULARY_FILE)
  if path == public or lingvo_runtime.tensorflow().io.gfile.exists(path):
    return path
  logging.info('C4: %s is missing; the vocabulary is %s', path, public)
  return public


def read_vocabulary(path: str, *, at_first_use: bool = False) -> Any:
  """Returns a `seqio.SentencePieceVocabulary`.

  Args:
    path: its file.
    at_first_use: whether the file is not read now.

  Raises:
    UserError: the file cannot be read, or is not a SentencePiece model.
  """
  vocabulary = lingvo_runtime.seqio().SentencePieceVocabulary(path)
  if at_first_use:
    return vocabulary
  try:
    vocabulary.load_model()
  except Exception as e:  # Of TensorFlow, protobuf or SentencePiece.
    raise errors.UserError(
      f'C4: the vocabulary {path} cannot be read: {errors.one_line(e)};'
      ' expected a SentencePiece model (VOCABULARY_PATH of the experiment, or'
      f' {VOCABULARY_FILE} in its data folder)'
    ) from e
  return vocabulary
