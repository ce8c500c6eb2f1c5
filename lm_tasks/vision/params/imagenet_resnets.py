"""ResNet-50 on ImageNet, as in "ImageNet in 1 Hour".

The experiment of `paxml.tasks.vision.params.imagenet_resnets`, with its
numbers, https://arxiv.org/abs/1706.02677:

    python -m pax_compat.main \
      --exp=tasks.vision.params.imagenet_resnets.ResNet50Pjit \
      --attr=IMAGENET_DATA_DIR=/data/imagenet --job_log_dir=/data/run1

Hardware: 8 devices on one host; `--attr=MESH_SHAPE=[1,1,1]` for one. ImageNet
has to be converted to TFRecord files, see `lm_tasks.vision.imagenet_input`.
Time: 90 epochs are 225,180 steps of 512 images; not measured here.
Metric: `accuracy` on the validation images; the paper has 76.3% for this
network. Not measured here.

The differences to the paper are those of Pax: the statistics of the batch
normalisation are those of the batch of all devices, and the learning rate rises
from 0.
"""

from lm_tasks.vision import imagenet_input
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
from pax_compat.base_layer import WeightInit
from pax_compat.config import Config
from pax_compat.nested_map import NestedMap


class ImageClassificationInputSpecsProvider(base_input.BaseInputSpecsProvider):
  """Provides the shapes of batches of images.

  Attributes:
    height: height of the images; must be `width`.
    width: width of the images.
    num_color_channels: channels of the images; must be 3.
    num_classes: number of classes.
    batch_size: images in a batch of a process.
  """

  height: int = 224
  width: int = 224
  num_color_channels: int = 3
  num_classes: int = 1000
  batch_size: int = 1

  def __post_init__(self):
    self.check(
      self.height == self.width and self.num_color_channels == 3,
      f'images of {self.height} x {self.width} x {self.num_color_channels};'
      ' expected a height that is the width, and 3 channels',
    )

  def get_input_specs(self) -> NestedMap:
    return imagenet_input.specs(self.batch_size, self.height, self.num_classes)


@experiment_registry.register
class ResNet50Pjit(base_experiment.BaseExperiment):
  """ResNet-50 on ImageNet, on 8 devices.

  Class attributes:
    IMAGENET_DATA_DIR: folder of the TFRecord files.
    TRAIN_BATCH_SIZE, EVAL_BATCH_SIZE: images in a batch of a process.
    MESH_SHAPE: devices along the axes replica, data and mdl.
  """

  IMAGENET_DATA_DIR: str | None = None
  IMAGE_SIZE = 224
  TRAIN_BATCH_SIZE = 512
  EVAL_BATCH_SIZE = 512

  LOSS_NAME = 'avg_xent'
  NUM_EPOCHS = 90
  LEARNING_RATE = (TRAIN_BATCH_SIZE / 256) * 0.1
  L2_REGULARIZER_WEIGHT = 1e-4
  BPROP_VARIABLE_EXCLUSION: list[str] = []
  CLIP_GRADIENT_NORM_TO_VALUE = 0.0
  EMA_DECAY = 0.0

  SAVE_MAX_TO_KEEP = 1_000
  SAVE_INTERVAL_STEPS = 5_000
  SUMMARY_INTERVAL_STEPS = 1_000
  EVAL_INTERVAL_STEPS = 1_000
  DECODE_INTERVAL_STEPS = 5_000

  MESH_AXIS_NAMES = ('replica', 'data', 'mdl')
  BATCH_SPLIT_AXES = ('replica', 'data')
  MESH_SHAPE: list[int] | None = [1, 8, 1]

  def get_input_specs_provider_params(self) -> Config:
    """Returns the provider of batch shapes, so that no batch is read."""
    return ImageClassificationInputSpecsProvider.config(
      batch_size=self.TRAIN_BATCH_SIZE,
      height=self.IMAGE_SIZE,
      width=self.IMAGE_SIZE,
    )

  def _dataset_train(self) -> Config:
    """Returns the images to train on."""
    return self._dataset('train', self.TRAIN_BATCH_SIZE).set(is_training=True)

  def _dataset_test(self) -> Config:
    """Returns the validation images, of which each counts once."""
    data = self._dataset('validation', self.EVAL_BATCH_SIZE)
    return data.set(reset_for_eval=True)

  def _dataset(self, split: str, batch_size: int) -> Config:
    return imagenet_input.ImageNetInput.config(
      name=f'imagenet_{split}',
      data_dir=self.IMAGENET_DATA_DIR,
      split=split,
      image_size=self.IMAGE_SIZE,
      batch_size=batch_size,
    )

  def datasets(self) -> list[Config]:
    """Returns the images to train on and those to evaluate on."""
    return [self._dataset_train(), self._dataset_test()]

  def _network(self) -> Config:
    """Returns the network; its blocks begin as their shortcuts."""
    block = layers.ResNetBlock.config(zero_init_residual=True)
    return layers.ResNet.HParamsResNet50().set(block_params=block)

  def _optimizer(self) -> Config:
    return optimizers.ShardedSgd.config(momentum=0.9, nesterov=True)

  @property
  def _steps_per_epoch(self) -> int:
    return imagenet_input.TRAIN_EXAMPLES // self.TRAIN_BATCH_SIZE

  def _lr_schedule(self) -> Config:
    epochs = 5, 30, 60, 80, 90
    return schedules.LinearRampupPiecewiseConstant.config(
      boundaries=[self._steps_per_epoch * epoch for epoch in epochs],
      values=[1, 0.1, 0.01, 0.001, 0.0],
    )

  def _learner(self) -> Config:
    optimizer = self._optimizer().set(
      lr_schedule=self._lr_schedule(),
      learning_rate=self.LEARNING_RATE,
      skip_lp_1d_vectors=True,
    )
    if optimizer.l2_regularizer_weight is None:
      optimizer.l2_regularizer_weight = self.L2_REGULARIZER_WEIGHT
    if optimizer.clip_gradient_norm_to_value == 0.0:
      optimizer.clip_gradient_norm_to_value = self.CLIP_GRADIENT_NORM_TO_VALUE
    if optimizer.ema_decay == 0.0:
      optimizer.ema_decay = self.EMA_DECAY
    return learners.Learner.config(
      loss_name=self.LOSS_NAME,
      optimizer=optimizer,
      bprop_variable_exclusion=list(self.BPROP_VARIABLE_EXCLUSION),
    )

  def _configure_task(self, task: Config) -> Config:
    """Sets learner, sharding and intervals of a task."""
    train = task.train
    train.learner = self._learner()
    if self.MESH_SHAPE is not None:
      task.model.set(
        ici_mesh_shape=self.MESH_SHAPE,
        dcn_mesh_shape=None,
        mesh_axis_names=self.MESH_AXIS_NAMES,
      )
      train.inputs_split_mapping = NestedMap(
        {
          f'map_{rank}d': (self.BATCH_SPLIT_AXES, *[None] * (rank - 1))
          for rank in range(1, 6)
        }
      )
    train.set(
      num_train_steps=self._steps_per_epoch * self.NUM_EPOCHS,
      eval_interval_steps=self._steps_per_epoch,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      save_interval_steps=self.SAVE_INTERVAL_STEPS,
      decode_interval_steps=self.DECODE_INTERVAL_STEPS,
      save_max_to_keep=self.SAVE_MAX_TO_KEEP,
      summary_accumulate_interval_steps=1,
      variable_norm_summary=True,
      eval_skip_train=True,
    )
    return task

  def task(self) -> Config:
    """Returns the classifier and its training settings."""
    network = self._network()
    model = layers.ClassificationModel.config(
      name='classifier', network_tpl=network
    )
    model.softmax_tpl = layers.FullSoftmax.config(
      params_init=WeightInit.Gaussian(scale=0.01),
      input_dims=network.channels[-1],
      num_classes=1000,
    )
    task = tasks_lib.SingleTask.config(name='classifier_task', model=model)
    return self._configure_task(task)
