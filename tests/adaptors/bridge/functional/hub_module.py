"""A small module of TensorFlow Hub, as a file."""

import numpy as np

from adaptors import lingvo_runtime


def save(path: str, *, decay: float = 0.0):
  """Saves a module that maps images [B, H, W, 3] to features [B, 3].

  It puts means of pixels in a layer with a kind of batch norm.

  Args:
    path: of the new folder.
    decay: of its regularization loss, of the squares of its weight; 0 for none.
  """
  tf = lingvo_runtime.module('tensorflow')

  class Tower(tf.__internal__.tracking.AutoTrackable):
    """Has a weight and a moving mean."""

    def __init__(self):
      super().__init__()
      w = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
      self.w = tf.Variable(w, name='conv/kernel')
      self.mean = tf.Variable([0.1, 0.0, 0.0], False, name='bn/moving_mean')
      self.variables = [self.w, self.mean]
      self.trainable_variables = [self.w]
      self.regularization_losses = [self._squares] if decay else []

    @tf.function(input_signature=[])
    def _squares(self):
      return decay * tf.reduce_sum(tf.square(self.w))

    @tf.function
    def __call__(self, images, training=False):
      x = tf.tanh(tf.reduce_mean(images, [1, 2]) @ self.w)
      if not training:
        return x - self.mean
      mean = tf.reduce_mean(x, 0)
      self.mean.assign(0.9 * self.mean + 0.1 * mean)
      return x - mean

  tower = Tower()
  spec = tf.TensorSpec([None, None, None, 3])
  for training in (False, True):
    tower.__call__.get_concrete_function(spec, training=training)
  tf.saved_model.save(tower, path)
