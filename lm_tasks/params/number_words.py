"""A small encoder-decoder that translates numbers from English into German.

"four thousand three hundred forty-two" becomes
"viertausenddreihundertzweiundvierzig". Nothing is downloaded:

    python -m pax_compat.main --exp=tasks.lm.params.number_words.NumberWords \
      --job_log_dir=/tmp/number_words

To train on your own pairs, give `datasets()` an input of yours; see
`lm_tasks.number_words.PairsInput`.

Hardware: any; written for two CPU cores.
Time: 1.6 minutes of CPU time for 300 steps of 64 pairs, with two evaluations
  and a beam search; 3 to 7 minutes on two busy cores.
Metric: `exact_match` of beam search on 256 held-out numbers,
  0.96 to 0.99 after 300 steps with three seeds.
"""

from lm_tasks import number_words
from pax_compat import (
  base_experiment,
  base_input,
  experiment_registry,
  layers,
  learners,
  optimizers,
  schedules,
  tasks_lib,
)
from pax_compat.config import Config
from pax_compat.layers import models


@experiment_registry.register
class NumberWords(base_experiment.BaseExperiment):
  """Two layers of encoder and of decoder, over bytes.

  Class attributes:
    BATCH_SIZE: pairs in a batch of a process.
    MAX_SEQ_LEN: bytes of a source or a target, with its end.
    BEAM_SIZE: hypotheses of the beam search.
  """

  BATCH_SIZE = 64
  MAX_SEQ_LEN = 48
  NUM_LAYERS = 2
  NUM_HEADS = 4
  MODEL_DIMS = 64
  HIDDEN_DIMS = MODEL_DIMS * 4
  BEAM_SIZE = 4
  LEARNING_RATE = 3e-3
  WARMUP_STEPS = 50
  NUM_TRAIN_STEPS = 300
  EVAL_INTERVAL_STEPS = 150
  SUMMARY_INTERVAL_STEPS = 20

  def datasets(self) -> list[Config]:
    """Returns the pairs to train on, and others to evaluate on."""
    return [
      self._input('train').set(is_training=True),
      self._input('test').set(reset_for_eval=True),
    ]

  def decoder_datasets(self) -> list[Config]:
    """Returns the pairs whose sources are translated."""
    return [self._input('test').set(reset_for_eval=True)]

  def _input(self, split: str) -> Config:
    return number_words.NumberWordsInput.config(
      name=split,
      split=split,
      batch_size=self.BATCH_SIZE,
      seq_len=self.MAX_SEQ_LEN,
    )

  def get_input_specs_provider_params(self) -> Config:
    """Returns the provider of batch shapes, so that no batch is read."""
    return base_input.DatasetInputSpecsProvider.config(
      input_p=self.training_dataset()
    )

  def task(self) -> Config:
    """Returns the model and its training settings."""
    network = layers.TransformerEncoderDecoder.config(
      model_dims=self.MODEL_DIMS,
      encoder_stacked_transformer_tpl=self._stack(),
      decoder_stacked_transformer_tpl=self._stack(),
    )
    network.softmax_tpl.set(
      num_classes=number_words.VOCAB_SIZE, scale_sqrt_depth=True
    )
    decoder = models.BeamSearchHParams(
      beam_size=self.BEAM_SIZE,
      eos_id=number_words.END_ID,
      seqlen=self.MAX_SEQ_LEN,
      max_decode_steps=self.MAX_SEQ_LEN - 1,
    )
    model = models.SequenceModel.config(
      name='translator', model_tpl=network, decoder_tpl=decoder
    )
    task = tasks_lib.SingleTask.config(name='number_words', model=model)
    task.train.set(
      learner=self._learner(),
      num_train_steps=self.NUM_TRAIN_STEPS,
      eval_interval_steps=self.EVAL_INTERVAL_STEPS,
      decode_interval_steps=self.NUM_TRAIN_STEPS,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      save_interval_steps=self.EVAL_INTERVAL_STEPS,
      eval_skip_train=True,
    )
    return task

  def _stack(self) -> Config:
    return layers.StackedTransformer.config(
      num_layers=self.NUM_LAYERS,
      num_heads=self.NUM_HEADS,
      hidden_dims=self.HIDDEN_DIMS,
    )

  def _learner(self) -> Config:
    schedule = schedules.LinearRampupCosineDecay.config(
      warmup_steps=self.WARMUP_STEPS,
      decay_start=self.WARMUP_STEPS + 1,
      decay_end=self.NUM_TRAIN_STEPS,
      min_ratio=0.05,
      max=1.0,
    )
    return learners.Learner.config(
      loss_name='total_loss',
      optimizer=optimizers.Adam.config(
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        learning_rate=self.LEARNING_RATE,
        lr_schedule=schedule,
      ),
    )
