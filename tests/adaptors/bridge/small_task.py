"""A Lingvo task with a few numbers, with functions given by a test.

Shapes: B rows of a batch.
"""

import functools

import numpy as np

from adaptors import lingvo_runtime
from tests.adaptors.translate import tiny_task


@functools.cache
def _task_class():
  tf = lingvo_runtime.module('lingvo.compat')
  base = lingvo_runtime.module('lingvo.core.base_model')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class SmallTask(base.BaseTask):
    """Has the weights `w` and `table`, and a non-trainable counter."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('compute', None, 'From the task, theta, batch to the metrics.')
      p.Define('build', None, 'Is called with the task while it is built.')
      p.Define('update', None, 'Is called with it after a training step.')
      return p

    def _CreateLayerVariables(self):
      super()._CreateLayerVariables()
      for name, shape, trainable in (
        ('w', [3], True),
        ('table', [5, 3], True),
        ('count', [], False),
      ):
        init = py_utils.WeightInit.Constant(0.0 if shape == [] else 1.0)
        params = py_utils.WeightParams(shape, init, tf.float32)
        self.CreateVariable(name, params, trainable=trainable)
      if self.params.build:
        self.params.build(self)

    def ComputePredictions(self, theta, batch):
      return None

    def ComputeLoss(self, theta, predictions, batch):
      return self.params.compute(self, theta, batch), {}

    def PostTrainingStepUpdate(self):
      done = super().PostTrainingStepUpdate()
      if self.params.update:
        own = self.params.update(self)
        done = done if own is None else tf.group(done, own)
      return done

  return SmallTask


def product(task, theta, batch):
  """Returns the loss of a linear model, for `compute`."""
  tf = lingvo_runtime.module('lingvo.compat')
  return {'loss': (tf.reduce_mean(batch.x * tf.cast(theta.w, tf.float32)), 1.0)}


def params(compute=product, **fields):
  """Returns Params of the task.

  Args:
    compute: from the task, its theta and a batch to its metrics.
    **fields: further fields.
  """
  p = _task_class().Params().Set(name='small', compute=compute, **fields)
  p.input = tiny_task.params().input
  p.train.Set(
    learning_rate=0.1,
    optimizer=tiny_task.optimizer('SGD'),
    lr_schedule=tiny_task.schedule('Constant'),
  )
  return p


def means():
  """Returns Params of a task that decodes rows to their mean."""
  tf = lingvo_runtime.module('lingvo.compat')
  library = lingvo_runtime.module('lingvo.core.metrics')
  small = params()

  class Means(small.cls):
    """Returns the mean of each row and of all rows."""

    def DecodeWithTheta(self, theta, input_batch):
      py_utils = lingvo_runtime.module('lingvo.core.py_utils')
      noise = tf.random.uniform([], seed=self.params.random_seed)
      names = tf.strings.as_string(input_batch.ids)
      if 'info' in input_batch:
        names += input_batch.info.name
      return {
        'means': tf.reduce_mean(input_batch.x * theta.w, 1),
        'names': names,
        'step': py_utils.GetGlobalStep(),
        'noise': noise,
      }

    def CreateDecoderMetrics(self):
      return {
        'mean': library.AverageMetric(),
        'step': library.AverageMetric(),
        'noise': library.AverageMetric(),
      }

    def PostProcessDecodeOut(self, decode_out_dict, decode_metrics_dict):
      for mean in decode_out_dict['means']:
        decode_metrics_dict['mean'].Update(mean)
      for name in ('step', 'noise'):
        decode_metrics_dict[name].Update(decode_out_dict[name])
      means = map(float, decode_out_dict['means'])
      return zip(decode_out_dict['names'], means, strict=True)

  made = Means.Params().Set(name='means', compute=product)
  made.input, made.train = small.input, small.train
  return made


def batch():
  """Returns a batch by name: `x` [B, 3] and `ids` [B]."""
  return {
    'x': np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 5.0]], np.float32),
    'ids': np.array([4, 4], np.int32),
  }


def values():
  """Returns values of the task's variables, by theta path."""
  return {
    'w': np.array([0.5, -1.0, 2.0], np.float32),
    'table': np.arange(15, dtype=np.float32).reshape(5, 3),
    'count': np.float32(7),
  }
