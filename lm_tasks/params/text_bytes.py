"""Small byte-level language models, without TensorFlow.

The text is Python's documentation, so nothing is downloaded:

    python -m pax_compat.main --exp=tasks.lm.params.text_bytes.TextBytes \
      --job_log_dir=/tmp/text_bytes

To train on your own text, define a class:

    class MyText(text_bytes.TextBytes):
      FILES = {'train': '/data/train.txt', 'dev': '/data/dev.txt'}

Hardware: any; written for two CPU cores.
Time: less than a minute for 300 steps.
Metric: `loss` on dev falls from 8 nats per byte to about 2.45 after 300 steps
(3.2 from letter frequencies alone); `docs/results.md` has the band.
"""

import math

import jax
import jax.numpy as jnp

from lm_tasks import model_params, python_docs_text, text_bytes
from pax_compat import (
  base_input,
  config,
  experiment_registry,
  schedules,
)
from pax_compat.config import Config


@experiment_registry.register
class TextBytes(model_params.TransformerLmSpmdAdafactor):
  """Two layers on the bytes of a text, trained with Adam, read with NumPy.

  `PERCORE_BATCH_SIZE` blocks of `MAX_SEQ_LEN` bytes per device.
  """

  # The files by split; None for Python's documentation.
  FILES: dict[str, str] | None = None
  PERCORE_BATCH_SIZE: float = 16
  MAX_SEQ_LEN = 128

  VOCAB_SIZE = text_bytes.VOCAB_SIZE
  NUM_LAYERS = 2
  NUM_HEADS = 4
  DIMS_PER_HEAD = None
  MODEL_DIMS = 128
  HIDDEN_DIMS = MODEL_DIMS * 4
  FPROP_DTYPE = jnp.float32
  COMBINE_QKV = False

  LEARNING_RATE = 3e-3
  WARMUP_STEPS = 30
  NUM_TRAIN_STEPS = 300
  CHECKPOINT_EVERY_N_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 20
  EVAL_INTERVAL_STEPS = 100

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.train.num_train_steps = self.NUM_TRAIN_STEPS
    model_params.set_default_adam(task, self.LEARNING_RATE, self.WEIGHT_DECAY)
    task.train.learner.optimizer.lr_schedule = (
      schedules.LinearRampupCosineDecay.config(
        warmup_steps=self.WARMUP_STEPS,
        decay_start=self.WARMUP_STEPS + 1,
        decay_end=self.NUM_TRAIN_STEPS,
        min_ratio=0.1,
        max=1.0,
      )
    )
    return task

  def datasets(self) -> list[Config]:
    """Returns the training text, and the held-out text for evaluation."""
    batch_size = math.ceil(self.PERCORE_BATCH_SIZE * jax.local_device_count())
    files = self.FILES or python_docs_text.files()
    return [
      self._input(files['train']).set(
        name='train', is_training=True, batch_size=batch_size
      ),
      self._input(files['dev']).set(
        name='dev', reset_for_eval=True, batch_size=batch_size
      ),
    ]

  def _input(self, path: str) -> Config:
    return text_bytes.BytesInput.config(path=path, seq_len=self.MAX_SEQ_LEN)

  def get_input_specs_provider_params(self) -> Config:
    """Returns the provider of batch shapes, so that no batch is read."""
    return base_input.DatasetInputSpecsProvider.config(
      input_p=self.training_dataset()
    )


@experiment_registry.register
class TextBytesGrain(TextBytes):
  """TextBytes with a Grain dataset."""

  def _input(self, path: str) -> Config:
    blocks = config.Config(
      text_bytes.blocks, path=path, seq_len=self.MAX_SEQ_LEN
    )
    return text_bytes.GrainBytesInput.config(dataset_fn=blocks)
