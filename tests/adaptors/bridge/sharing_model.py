"""A Lingvo model of two tasks, `tag` and `words`, that share an encoder."""

import functools

from adaptors import lingvo_runtime
from tests.adaptors.translate import tiny_model, tiny_task


@functools.cache
def _sharing_class():
  """Returns a task whose encoder may be another one's."""
  tf = lingvo_runtime.module('lingvo.compat')
  base = lingvo_runtime.module('lingvo.core.base_model')
  layers = lingvo_runtime.module('lingvo.core.layers')

  class Sharing(base.BaseTask):
    """Puts ids through an encoder and a layer of its own."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('own', layers.ProjectionLayer.Params(), 'The second layer.')
      p.own.Set(input_dim=4, output_dim=2, batch_norm=False, activation='TANH')
      return p

    def __init__(self, params):
      super().__init__(params)
      for name in ('encoder', 'own'):
        if self.params.Get(name):
          self.CreateChild(name, self.params.Get(name))

    def ComputePredictions(self, theta, batch):
      x = self.encoder.FProp(theta.encoder, tf.one_hot(batch.ids, 4))
      return self.own.FProp(theta.own, x)

    def ComputeLoss(self, theta, predictions, batch):
      distance = tf.square(predictions - batch.targets) * batch.scale
      return {'loss': (tf.reduce_mean(distance), 1.0)}, {}

  return Sharing


def params(schedule=None, **train):
  """Returns Params of the model, of which `tag` has the encoder.

  Args:
    schedule: the task schedule; None draws both by weight.
    **train: fields of the model's and both tasks' `train`.
  """
  models = lingvo_runtime.module('lingvo.core.multitask_model')
  layers = lingvo_runtime.module('lingvo.core.layers')
  made = tiny_model.params(schedule, train=train)
  model = models.SharedEncoderModel.Params().Set(
    **{
      name: value
      for name, value in made.IterParams()
      if name not in ('cls', 'task_params')
    },
    encoder_to_share='tag',
  )
  for name, task in made.task_params.IterParams():
    own = _sharing_class().Params().Set(name=name)
    own.train = task.train.Copy().Set(
      # With slots of shared variables Lingvo's own graph cannot be built.
      optimizer=tiny_task.optimizer('SGD')
    )
    if name == 'tag':
      own.encoder = layers.ProjectionLayer.Params().Set(
        input_dim=4, output_dim=4, batch_norm=False, activation='TANH'
      )
    model.task_params.Define(name, own, '')
  return model
