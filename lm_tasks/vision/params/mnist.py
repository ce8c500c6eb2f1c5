"""A convolutional network on MNIST.

The experiment of `paxml.tasks.vision.params.mnist`, with its numbers:

    python -m pax_compat.main \
      --exp=tasks.vision.params.mnist.MnistExperiment \
      --tfds_data_dir=/data/mnist --job_log_dir=/tmp/mnist

Hardware: any; one device.
Time: 1000 steps of 1024 images, 17 epochs; not measured here.
Metric: `accuracy` on the 10,000 test images; not measured here, as the images
have to be downloaded. `lm_tasks.vision.params.digits` needs no download.
"""

import itertools

import jax
import jax.numpy as jnp

from lm_tasks.vision import mnist_input
from pax_compat import (
  base_experiment,
  base_layer,
  base_model,
  experiment_registry,
  learners,
  optimizers,
  schedules,
  tasks_lib,
)
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import activations, linears, poolings
from pax_compat.layers.convolutions import conv
from pax_compat.nested_map import NestedMap

MnistDatasetInput = mnist_input.MnistDatasetInput
_CHANNELS = (1, 32, 64)
_HIDDEN_DIMS = 256


class CNN(base_layer.BaseLayer):
  """Two convolutions with poolings, then two dense layers.

  Attributes:
    height: H of the images.
    width: W of the images.
    num_classes: number of classes.
    kernel_size: height and width of the kernels.
    activation_tpl: the activation after all layers but the last.
  """

  height: int = 28
  width: int = 28
  num_classes: int = 10
  kernel_size: int = 3
  activation_tpl: Config = sub_config_field(activations.ReLU)

  def setup(self):
    for i, channels in enumerate(itertools.pairwise(_CHANNELS), 1):
      convolution = conv.ConvBNAct.config(
        filter_shape=(self.kernel_size, self.kernel_size, *channels),
        filter_stride=(1, 1),
        batch_norm_tpl=None,
        activation_tpl=self.activation_tpl.clone(),
        bias=True,
      )
      self.create_child(f'conv{i}', convolution)
      pooling = poolings.Pooling.config(
        window_shape=(2, 2), window_stride=(2, 2), pooling_type='AVG'
      )
      self.create_child(f'pooling{i}', pooling)
    # Each pooling halves height and width, and rounds up.
    features = -(-self.height // 4) * -(-self.width // 4) * _CHANNELS[-1]
    dense = [
      linears.FeedForward.config(
        input_dims=features,
        output_dims=_HIDDEN_DIMS,
        activation_tpl=self.activation_tpl.clone(),
      ),
      linears.Linear.config(
        input_dims=_HIDDEN_DIMS, output_dims=self.num_classes
      ),
      linears.Bias.config(dims=self.num_classes),
    ]
    self.create_children('dense', dense)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps images [B, H, W, 1] to logits [B, num_classes]."""
    outputs, _ = self.pooling1(self.conv1(inputs))
    outputs, _ = self.pooling2(self.conv2(outputs))
    outputs = jnp.reshape(outputs, [inputs.shape[0], -1])
    for layer in self.dense:
      outputs = layer(outputs)
    return outputs


class CNNModel(base_model.BaseModel):
  """Classifies `inputs` [B, H, W, 1] as one of the `labels` [B] int.

  Metrics are the `loss`, the cross entropy in nats, and the `accuracy`. Padding
  rows, of `eval_sample_weights` 0, do not count.

  Attributes:
    network_tpl: maps images to logits.
  """

  network_tpl: Config = sub_config_field(CNN)

  def setup(self):
    self.create_child('network', self.network_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> jax.Array:
    """Returns the logits [B, num_classes]."""
    return self.network(input_batch.inputs)

  def compute_loss(self, predictions: jax.Array, input_batch: NestedMap):
    """Returns the weighted metrics, and the logits."""
    labels = input_batch.labels
    ones = jnp.ones(labels.shape, jnp.float32)
    weights = input_batch.get('eval_sample_weights', ones)
    count = jnp.sum(weights)
    logp = jax.nn.log_softmax(predictions)
    losses = -jnp.take_along_axis(logp, labels[:, jnp.newaxis], 1)[:, 0]
    hits = jnp.argmax(predictions, axis=-1) == labels
    metrics = NestedMap(
      {
        name: (jnp.sum(x * weights) / jnp.maximum(count, 1e-6), count)
        for name, x in (('loss', losses), ('accuracy', hits))
      }
    )
    return metrics, NestedMap(predictions=predictions)


@experiment_registry.register
class MnistExperiment(base_experiment.BaseExperiment):
  """Two convolutions and two dense layers on MNIST.

  Class attributes:
    BATCH_SIZE: images in a batch of a process.
    ICI_MESH_SHAPE: devices along the axes replica, data and mdl.
  """

  BATCH_SIZE = 1024
  MOMENTUM = 0.1
  LEARNING_RATE = 0.01
  TRAIN_STEPS = 1000
  HEIGHT = 28
  WIDTH = 28
  NUM_CLASSES = 10
  KERNEL_SIZE = 3

  MESH_AXIS_NAMES = ('replica', 'data', 'mdl')
  ICI_MESH_SHAPE = [1, 1, 1]

  def task(self) -> Config:
    """Returns the classifier and its training settings."""
    network = CNN.config(
      name='mnist_model',
      height=self.HEIGHT,
      width=self.WIDTH,
      num_classes=self.NUM_CLASSES,
      kernel_size=self.KERNEL_SIZE,
    )
    model = CNNModel.config(
      network_tpl=network,
      ici_mesh_shape=self.ICI_MESH_SHAPE,
      mesh_axis_names=self.MESH_AXIS_NAMES,
    )
    optimizer = optimizers.ShardedSgd.config(
      momentum=self.MOMENTUM,
      learning_rate=self.LEARNING_RATE,
      lr_schedule=schedules.Constant.config(value=1),
    )
    task = tasks_lib.SingleTask.config(name='mnist_task', model=model)
    task.train.set(
      learner=learners.Learner.config(loss_name='loss', optimizer=optimizer),
      num_train_steps=self.TRAIN_STEPS,
      eval_skip_train=True,
    )
    return task

  def datasets(self) -> list[Config]:
    """Returns the training images, and the test images for evaluation."""
    common = dict(batch_size=self.BATCH_SIZE)
    return [
      MnistDatasetInput.config(name='train', is_training=True, **common),
      MnistDatasetInput.config(name='test', reset_for_eval=True, **common),
    ]
