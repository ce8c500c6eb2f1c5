"""LeNet5 for MNIST, as the stock experiment, in small."""

import numpy as np

from adaptors import lingvo_runtime

LEARNS_LIKE = 'lenet5_batch_norm'

_SHAPE = 8, 8, 1


def task_params(batch_norm=False):
  """Returns Params of the task, whose convolutions may have batch norm."""
  classifier = lingvo_runtime.module('lingvo.tasks.image.classifier')
  inputs = lingvo_runtime.module('lingvo.tasks.image.input_generator')
  p = classifier.ModelV1.Params().Set(
    name='lenet5',
    filter_shapes=[(3, 3, 1, 4), (3, 3, 4, 6)],
    window_shapes=[(2, 2), (2, 2)],
    batch_norm=batch_norm,
  )
  p.softmax.Set(input_dim=12, num_classes=10)
  p.input = inputs.MnistTrainInput.Params().Set(data_shape=_SHAPE)
  p.train.save_interval_seconds = 10
  p.eval.samples_per_summary = 0
  return p


def batch(seed):
  """Returns eight random images, of which one is padding.

  Labels are floats, as those of Lingvo's own input are.
  """
  rng = np.random.default_rng(seed)
  raw = rng.integers(0, 256, (8, *_SHAPE), np.uint8)
  weight = np.ones(8, np.float32)
  weight[-1] = 0
  return {
    'raw': raw,
    'data': ((raw - 127.5) / 74).astype(np.float32),
    'label': rng.integers(0, 10, 8).astype(np.float32),
    'weight': weight,
    'sample_ids': np.arange(8, dtype=np.int32),
  }
