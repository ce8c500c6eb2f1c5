"""A small ResNet on drawn digits, without a download.

    python -m pax_compat.main --exp=tasks.vision.params.digits.DrawnDigits \
      --job_log_dir=/tmp/digits

Hardware: any; written for two CPU cores.
Time: about a minute for 200 steps of 64 images, with two evaluations.
Metric: `accuracy` on 1024 held-out images, at least 0.99 after 200 steps.
"""

from lm_tasks.vision import drawn_digits
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


@experiment_registry.register
class DrawnDigits(base_experiment.BaseExperiment):
  """A ResNet of three blocks on images of 20x20 pixels.

  Class attributes:
    BATCH_SIZE: images in a batch of a process.
    CHANNELS: output channels of each stage.
    BLOCKS: blocks of each stage.
  """

  BATCH_SIZE = 64
  IMAGE_SIZE = 20
  NUM_TRAIN_IMAGES = 100_000
  NUM_TEST_IMAGES = 1024
  CHANNELS = (32, 64, 128)
  BLOCKS = (1, 1, 1)
  LEARNING_RATE = 0.1
  WARMUP_STEPS = 20
  NUM_TRAIN_STEPS = 200
  EVAL_INTERVAL_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 20

  def datasets(self) -> list[Config]:
    """Returns the images to train on, and others to evaluate on."""
    common = dict(batch_size=self.BATCH_SIZE, image_size=self.IMAGE_SIZE)
    return [
      drawn_digits.DrawnDigitsInput.config(
        name='train',
        is_training=True,
        num_images=self.NUM_TRAIN_IMAGES,
        drawing_seed=0,
        **common,
      ),
      drawn_digits.DrawnDigitsInput.config(
        name='test',
        reset_for_eval=True,
        num_images=self.NUM_TEST_IMAGES,
        drawing_seed=1,
        **common,
      ),
    ]

  def get_input_specs_provider_params(self) -> Config:
    """Returns the provider of batch shapes, so that no batch is read."""
    return base_input.DatasetInputSpecsProvider.config(
      input_p=self.training_dataset()
    )

  def task(self) -> Config:
    """Returns the classifier and its training settings."""
    network = layers.ResNet.config(
      strides=(1, *[2] * (len(self.CHANNELS) - 1)),
      channels=self.CHANNELS,
      blocks=self.BLOCKS,
      kernels=[3] * len(self.CHANNELS),
      entryflow_conv_kernel=(3, 3, 1),
      entryflow_conv_stride=(1, 1),
      entry_max_pool=False,
    )
    model = layers.ClassificationModel.config(
      name='classifier', network_tpl=network
    )
    model.softmax_tpl.set(
      input_dims=self.CHANNELS[-1], num_classes=drawn_digits.NUM_CLASSES
    )
    task = tasks_lib.SingleTask.config(name='digits', model=model)
    task.train.set(
      learner=self._learner(),
      num_train_steps=self.NUM_TRAIN_STEPS,
      eval_interval_steps=self.EVAL_INTERVAL_STEPS,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      save_interval_steps=self.NUM_TRAIN_STEPS,
      eval_skip_train=True,
    )
    return task

  def _learner(self) -> Config:
    schedule = schedules.LinearRampupCosineDecay.config(
      warmup_steps=self.WARMUP_STEPS,
      decay_start=self.WARMUP_STEPS + 1,
      decay_end=self.NUM_TRAIN_STEPS,
      min_ratio=0.01,
      max=1.0,
    )
    return learners.Learner.config(
      loss_name='total_loss',
      optimizer=optimizers.ShardedSgd.config(
        momentum=0.9,
        nesterov=True,
        learning_rate=self.LEARNING_RATE,
        l2_regularizer_weight=1e-4,
        skip_lp_1d_vectors=True,
        lr_schedule=schedule,
      ),
    )
