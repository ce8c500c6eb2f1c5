"""A character Transformer on Python's documentation, as a Lingvo experiment.

An ordinary Lingvo params module, without JAX. Its data comes with Python (see
`lm_tasks.python_docs_text`), so it runs without a download. Once installed it
is `lingvo.tasks.lm.params.python_docs`. Train it with:

    python -m pax_compat.main --exp=lm.python_docs.TransformerLmTiny \
      --job_log_dir=/tmp/python_docs

or with Lingvo's own trainer:

    python -m adaptors.lingvo_trainer --model=lm.python_docs.TransformerLmTiny \
      --logdir=/tmp/python_docs --mode=sync --run_locally=cpu

Hardware: any; written for two CPU cores.
Time: about three minutes for 400 steps, with Lingvo's own trainer, too.
Metric: `loss` on Dev falls from 5.0 nats per character to about 1.85 after 400
steps (3.2 from letter frequencies alone); `docs/results.md` has the band.
"""

import bisect
import collections

from lingvo import model_registry
from lingvo.core import (
  base_model_params,
  optimizer,
  program,
  schedule,
  tokenizers,
)
from lingvo.tasks.lm import input_generator, layers, model

from lm_tasks import python_docs_text


@model_registry.RegisterSingleTaskModel
class TransformerLmTiny(base_model_params.SingleTaskModelParams):
  """A decoder of four layers and 0.8 million parameters, one token a letter."""

  # The letters, digits and punctuation of AsciiTokenizer, and its special ids.
  VOCAB_SIZE = 76
  # LmInput buckets lines by words, whose number bounds the characters.
  BUCKET_UPPER_BOUND = tuple(words for words, _ in python_docs_text.SIZES)
  BUCKET_BATCH_LIMIT = (64, 32, 16)
  # The longest line and its end of sequence.
  MAX_LENGTH = python_docs_text.MAX_CHARACTERS + 1

  MODEL_DIM = 128
  HIDDEN_DIM = 512
  NUM_HEADS = 4
  NUM_LAYERS = 4

  LEARNING_RATE = 0.5
  WARMUP_STEPS = 100
  MAX_STEPS = 400
  STEPS_PER_EVAL = 100

  def Train(self):
    """Returns the training input: all lines, reshuffled each epoch."""
    return self._Input('train').Set(
      # More than the number of lines, so that all of them are shuffled.
      file_buffer_size=10_000,
      file_parallelism=1,
      num_batcher_threads=1,
    )

  def Dev(self):
    """Returns the input for evaluations during training."""
    return self._HeldOut('dev')

  def Test(self):
    """Returns the input for the final evaluation."""
    return self._HeldOut('test')

  def _HeldOut(self, split):
    return self._Input(split).Set(
      file_buffer_size=1,
      file_parallelism=1,
      num_batcher_threads=1,
      num_samples=python_docs_text.describe(split).lines,
    )

  def _Input(self, split):
    return input_generator.LmInput.Params().Set(
      name=f'python_docs_{split}',
      file_pattern=f'text:{python_docs_text.files()[split]}',
      tokenizer=tokenizers.AsciiTokenizer.Params().Set(
        vocab_size=self.VOCAB_SIZE
      ),
      bucket_upper_bound=list(self.BUCKET_UPPER_BOUND),
      bucket_batch_limit=list(self.BUCKET_BATCH_LIMIT),
      target_max_length=self.MAX_LENGTH,
    )

  def Task(self):
    """Returns the language model and how it is trained."""
    p = model.LanguageModel.Params().Set(name='python_docs_lm')
    p.lm = layers.TransformerLm.CommonParams(
      model_dim=self.MODEL_DIM,
      hidden_dim=self.HIDDEN_DIM,
      num_heads=self.NUM_HEADS,
      num_layers=self.NUM_LAYERS,
      learning_rate=self.LEARNING_RATE,
      warmup_steps=self.WARMUP_STEPS,
      vocab_size=self.VOCAB_SIZE,
      # No dropout, so that two runs on the same batches can be compared.
      residual_dropout_prob=0.0,
    )
    # A vocabulary this small needs no shards.
    p.lm.emb.max_num_shards = 1
    p.lm.softmax.num_shards = 1

    # CommonParams ignores the rate and the warmup.
    p.train.Set(
      learning_rate=self.LEARNING_RATE,
      lr_schedule=schedule.TransformerSchedule.Params().Set(
        warmup_steps=self.WARMUP_STEPS, model_dim=self.MODEL_DIM
      ),
      optimizer=optimizer.Adam.ParamsB(),
      clip_gradient_norm_to_value=1.0,
      grad_norm_to_clip_to_zero=0.0,
      l2_regularizer_weight=None,
      max_steps=self.MAX_STEPS,
      tpu_steps_per_loop=self.STEPS_PER_EVAL,
      save_interval_steps=self.STEPS_PER_EVAL,
      summary_interval_steps=20,
    )
    # Evaluate the whole of a held-out set.
    p.eval.samples_per_summary = 0
    return p

  def ProgramSchedule(self):
    """Returns a schedule that evaluates Dev every hundred steps."""
    return program.SimpleProgramScheduleForTask(
      train_dataset_name='Train',
      train_steps_per_loop=self.STEPS_PER_EVAL,
      eval_dataset_names=['Dev'],
      eval_steps_per_loop=self._NumBatches('dev'),
      decode_steps_per_loop=0,
    )

  def _NumBatches(self, split):
    """Returns the number of batches of a split."""
    lines = python_docs_text.corpus().splits[split]
    buckets = collections.Counter(
      bisect.bisect_left(self.BUCKET_UPPER_BOUND, len(line.split()))
      for line in lines
    )
    return sum(
      -(-count // self.BUCKET_BATCH_LIMIT[i]) for i, count in buckets.items()
    )
