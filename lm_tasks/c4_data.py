"""The C4 corpus for language models, as in `paxml.tasks.lm.params.c4`.

`C4UnsupervisedDataset` is a mixin of experiments: it has `datasets()`, and the
class attributes of Pax's class of that name.

    class C4SpmdAdam(TransformerLmSpmdAdam, c4_data.C4UnsupervisedDataset):
      MAX_SEQ_LEN = 2048

An experiment that does not inherit from it calls `train_input` and
`eval_input`. Importing this module loads neither SeqIO nor TensorFlow.
"""

from typing import Any

import jax

from adaptors.seqio_input import LanguageModelFeatures, SeqIOInput
from lm_tasks import c4_pipeline
from pax_compat import base_experiment, errors
from pax_compat.config import Config

TRAIN_MIXTURE = 'c4_lm_v301_gpt'
EVAL_MIXTURE = 'c4_lm_v301_gpt_eval_tokenized'
TRAIN_SPLIT = 'train2'
EVAL_SPLIT = 'validation_tokenized_5662seqs'

# The first id of a row, and the last label.
_BOS_ID, _EOS_ID = 0, 1


class C4Input(SeqIOInput):
  """Reads a task of `c4_pipeline.TASKS`, or any other of SeqIO.

  Attributes:
    tfds_data_dir: folder of the TFDS dataset; None for
      `c4_pipeline.DATA_DIR`, or for that of another task's source.
    tfds_name: a TFDS dataset with its version, instead of that of the task.
    vocabulary_path: the SentencePiece model that tokenizes the text; None for
      the one that belongs to the data folder (`c4_pipeline.vocabulary_in`).

  Raises:
    UserError: the dataset or the vocabulary cannot be read, or another task has
      `tfds_name` or `vocabulary_path`.
  """

  tfds_name: str | None = None
  vocabulary_path: str | None = None

  def find_task(self) -> Any:
    """Returns the task; one of C4 is made from the fields."""
    spec = c4_pipeline.TASKS.get(self.mixture_name)
    if spec is None:
      self._refuse_fields()
      return super().find_task()
    source = c4_pipeline.make_source(
      spec, tfds_data_dir=self.tfds_data_dir, tfds_name=self.tfds_name
    )
    if not self.use_cached:
      c4_pipeline.check_source(source)
    vocabulary = None
    if not spec.is_tokenized:
      vocabulary = c4_pipeline.read_vocabulary(
        self.vocabulary_path
        or c4_pipeline.vocabulary_in(source.tfds_dataset.data_dir),
        # Cached tokens can be read without the vocabulary.
        at_first_use=self.use_cached,
      )
    return c4_pipeline.make_task(
      self.mixture_name, spec, source=source, vocabulary=vocabulary
    )

  def _refuse_fields(self):
    for field in ('tfds_name', 'vocabulary_path'):
      if getattr(self, field) is not None:
        raise errors.UserError(
          f'{self.name}: {field} is for the tasks'
          f' {", ".join(c4_pipeline.TASKS)}, not for {self.mixture_name!r}'
        )


class C4UnsupervisedDataset(base_experiment.BaseExperiment):
  """Packed training rows of C4, and the tokenized validation rows of MLPerf.

  The class of this name in `paxml.tasks.lm.params.c4`.

  Attributes:
    PERCORE_BATCH_SIZE: rows of a batch per device; may be a fraction.
    PERCORE_EVAL_BATCH_SIZE: the same in evaluation; None for
      `PERCORE_BATCH_SIZE`.
    MAX_SEQ_LEN: tokens of a row.
    TRAINING_SEED: seed of shuffling.
    TRAINING_NUM_BATCHES_TO_SKIP: batches skipped at the start of training.
    TRAIN_MIXTURE: SeqIO task or mixture for training.
    EVAL_MIXTURE: the same for evaluation.
    TRAIN_SPLIT: split for training.
    EVAL_SPLIT: the same for evaluation.
    TFDS_DATA_DIR: folder of the TFDS datasets; None for that of each task,
      which is `c4_pipeline.DATA_DIR`. The flag `--tfds_data_dir` has priority.
    TRAIN_TFDS_NAME: TFDS dataset, such as 'c4/en:3.1.0', instead of that of the
      task.
    EVAL_TFDS_NAME: the same for evaluation.
    VOCABULARY_PATH: SentencePiece model; None for that of the data folder.
    CACHE_DIR: folder of `seqio_cache_tasks` with the tokens of the training
      data; None: they are made from the text.
  """

  PERCORE_BATCH_SIZE: float = 1
  PERCORE_EVAL_BATCH_SIZE: float | None = None
  MAX_SEQ_LEN = 1024
  TRAINING_SEED = 9876
  TRAINING_NUM_BATCHES_TO_SKIP: int | None = None
  TRAIN_MIXTURE = TRAIN_MIXTURE
  EVAL_MIXTURE = EVAL_MIXTURE
  TRAIN_SPLIT = TRAIN_SPLIT
  EVAL_SPLIT = EVAL_SPLIT
  TFDS_DATA_DIR: str | None = None
  TRAIN_TFDS_NAME: str | None = None
  EVAL_TFDS_NAME: str | None = None
  VOCABULARY_PATH: str | None = None
  CACHE_DIR: str | None = None

  def datasets(self) -> list[Config]:
    """Returns the training and the validation data."""
    return [self._dataset_common(is_training=x) for x in (True, False)]

  def _dataset_common(self, is_training: bool) -> Config:
    """Returns the training data or the validation data."""
    common = dict(seq_len=self.MAX_SEQ_LEN, tfds_data_dir=self.TFDS_DATA_DIR)
    if is_training:
      return train_input(
        mixture_name=self.TRAIN_MIXTURE,
        split_name=self.TRAIN_SPLIT,
        tfds_name=self.TRAIN_TFDS_NAME,
        vocabulary_path=self.VOCABULARY_PATH,
        use_cached=self.CACHE_DIR is not None,
        additional_cache_dirs=[self.CACHE_DIR] if self.CACHE_DIR else [],
        input_random_seed=self.TRAINING_SEED,
        num_batches_to_skip=self.TRAINING_NUM_BATCHES_TO_SKIP,
        **common,
        **batch_sizes(self.PERCORE_BATCH_SIZE),
      )
    batch_size = self.PERCORE_EVAL_BATCH_SIZE
    if batch_size is None:
      batch_size = self.PERCORE_BATCH_SIZE
    is_eval_of_c4 = self.EVAL_MIXTURE in c4_pipeline.TASKS
    return eval_input(
      mixture_name=self.EVAL_MIXTURE,
      split_name=self.EVAL_SPLIT,
      tfds_name=self.EVAL_TFDS_NAME,
      vocabulary_path=self.VOCABULARY_PATH if is_eval_of_c4 else None,
      **common,
      **batch_sizes(batch_size),
    )


def train_input(*, seq_len: int, **fields) -> Config:
  """Returns the config of the training data: packed, shuffled, endless.

  Args:
    seq_len: tokens of a row.
    **fields: other fields of the input, such as `batch_size`.
  """
  return _input(pack=True, seq_len=seq_len).set(
    **{
      'name': 'C4Train',
      'mixture_name': TRAIN_MIXTURE,
      'split_name': TRAIN_SPLIT,
      'is_training': True,
      'repeat': True,
      'drop_remainder': True,
      'input_random_seed': C4UnsupervisedDataset.TRAINING_SEED,
      **fields,
    }
  )


def eval_input(*, seq_len: int, **fields) -> Config:
  """Returns the config of the validation data: one example per row, once.

  Args:
    seq_len: tokens of a row.
    **fields: other fields of the input, such as `batch_size`.
  """
  return _input(pack=False, seq_len=seq_len).set(
    **{
      'name': 'C4Validation',
      'mixture_name': EVAL_MIXTURE,
      'split_name': EVAL_SPLIT,
      'is_training': False,
      'repeat': False,
      'drop_remainder': False,
      'reset_for_eval': True,
      'input_random_seed': 4321,
      **fields,
    }
  )


def _input(*, pack: bool, seq_len: int) -> Config:
  return C4Input.config(
    task_feature_lengths={'targets': seq_len},
    feature_converter=LanguageModelFeatures(
      pack=pack,
      bos_id=_BOS_ID,
      reverse_bos_padding=True,
      eos_id=_EOS_ID,
      labels_cross_segments=True,
    ),
    use_cached=False,
    annotate_padding_fields=True,
  )


def batch_sizes(percore_batch_size: float) -> dict[str, int]:
  """Returns `batch_size` and `num_infeed_hosts` of an input.

  Their product is the global batch: `percore_batch_size` times the number of
  devices, at least one row.

  Args:
    percore_batch_size: rows per device. A fraction means that devices share
      rows: 0.5 is one row for two devices.

  Raises:
    UserError: the processes do not divide the rows.
  """
  processes = jax.process_count()
  rows = max(int(percore_batch_size * jax.device_count() + 1e-6), 1)
  if rows % processes:
    raise errors.UserError(
      f'PERCORE_BATCH_SIZE {percore_batch_size} on {jax.device_count()} devices'
      f' makes a global batch of {rows} rows, which cannot be divided over'
      f' {processes} processes; expected a multiple'
    )
  return {'batch_size': rows // processes, 'num_infeed_hosts': processes}
