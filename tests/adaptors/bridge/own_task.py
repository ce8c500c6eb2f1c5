"""A custom task of a user, composed of Lingvo's layers.

It is an ordinary Lingvo module of a user and does not use JAX. It predicts the
next letter from embeddings, with a projection and batch norm. A non-trainable
variable counts the letters seen.

Shapes: B rows, T letters.
"""

import lingvo.compat as tf
from lingvo import model_registry
from lingvo.core import base_model, bn_layers, layers, py_utils

from lm_tasks.lingvo_params import python_docs

_DIMS = 8


class NextLetter(base_model.BaseTask):
  """Predicts the next letter from the last one."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('emb', layers.EmbeddingLayer.Params(), 'The letters.')
    p.Define('norm', bn_layers.BatchNormLayer.Params(), 'Of their vectors.')
    p.Define('hidden', layers.ProjectionLayer.Params(), 'In between.')
    p.Define('softmax', layers.SimpleFullSoftmax.Params(), 'The next letter.')
    p.Define('dropout', layers.DropoutLayer.Params(), 'Of hidden values.')
    p.train.Define('smoothing', 0.0, 'Added to the loss.')
    p.emb.Set(vocab_size=76, embedding_dim=_DIMS, max_num_shards=1)
    p.norm.Set(dim=_DIMS)
    p.hidden.Set(input_dim=_DIMS, output_dim=_DIMS, batch_norm=False)
    p.softmax.Set(input_dim=_DIMS, num_classes=76)
    return p

  def __init__(self, params):
    super().__init__(params)
    for name in ('emb', 'norm', 'hidden', 'softmax', 'dropout'):
      self.CreateChild(name, self.params.Get(name))

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    counter = py_utils.WeightParams(
      [], py_utils.WeightInit.Constant(0.0), tf.float32
    )
    self.CreateVariable('letters_seen', counter, trainable=False)

  def ComputePredictions(self, theta, batch):
    x = self.emb.EmbLookup(theta.emb, batch.ids)
    x = self.norm.FProp(theta.norm, x, batch.paddings[:, :, None])
    x = self.hidden.FProp(theta.hidden, x)
    return self.dropout.FProp(theta.dropout, x)

  def ComputeLoss(self, theta, predictions, batch):
    outputs = self.softmax.FProp(
      theta.softmax,
      [predictions],
      class_weights=batch.weights[:, :, None],
      class_ids=batch.labels[:, :, None],
    )
    loss = outputs.avg_xent + self.params.train.smoothing
    if not self.do_eval:
      counted = tf.assign_add(self.vars.letters_seen, outputs.total_weight)
      with tf.control_dependencies([counted]):
        loss = tf.identity(loss)
    each = tf.reduce_sum(
      tf.reshape(outputs.per_example_xent, tf.shape(batch.ids)) * batch.weights,
      1,
    )
    metrics = {
      'loss': (loss, outputs.total_weight),
      'log_pplx': (outputs.avg_xent, outputs.total_weight),
    }
    return metrics, {'xent': each}


@model_registry.RegisterSingleTaskModel
class Tiny(python_docs.TransformerLmTiny):
  """The task on the documentation of Python."""

  # One shape of batches, which is compiled once.
  BUCKET_UPPER_BOUND = (60,)
  BUCKET_BATCH_LIMIT = (8,)

  def Task(self):
    p = NextLetter.Params().Set(name='next_letter')
    known = super().Task().train
    for name in [name for name, _ in p.train.IterParams()]:
      if name in known:
        p.train.Set(**{name: known.Get(name)})
    p.train.Set(max_steps=8, save_interval_steps=4, summary_interval_steps=1)
    p.eval.samples_per_summary = 0
    return p
