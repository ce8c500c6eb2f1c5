"""A user's experiments, of every kind that the report distinguishes."""

import lingvo.compat as tf
from lingvo import model_registry
from lingvo.core import (
  base_layer,
  base_model,
  base_model_params,
  builder_layers,
  hyperparams,
  layers,
  layers_with_attention,
  multitask_model,
  optimizer,
)
from lingvo.tasks.lm import input_generator

from lm_tasks.lingvo_params import python_docs
from tests.adaptors.translate import tiny_task

VOCABULARY, DIMS = 32, 8
# A page must not run this.
SCRIPT = '<script>document.title = "mine"</script>'


class Louder(layers_with_attention.TransformerFeedForwardLayer):
  """Computes something other than its base class."""

  def FProp(self, theta, inputs, paddings):
    return 2.0 * super().FProp(theta, inputs, paddings)


class Scorer(base_model.BaseTask):
  """A custom task with layers of Lingvo."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('emb', layers.EmbeddingLayer.Params(), 'The table.')
    p.Define('hidden', layers.FCLayer.Params(), 'A layer.')
    p.Define('louder', Louder.Params(), 'A layer of our own.')
    p.emb.Set(vocab_size=VOCABULARY, embedding_dim=DIMS, max_num_shards=1)
    p.hidden.Set(input_dim=DIMS, output_dim=DIMS, activation='TANH')
    p.louder.Set(input_dim=DIMS, hidden_dim=2 * DIMS)
    return p

  def __init__(self, params):
    super().__init__(params)
    for name in ('emb', 'hidden', 'louder'):
      self.CreateChild(name, self.params.Get(name))

  def ComputePredictions(self, theta, batch):
    x = self.emb.EmbLookup(theta.emb, batch.ids)
    x = self.hidden.FProp(theta.hidden, x)
    return self.louder.FProp(theta.louder, x, batch.paddings)

  def ComputeLoss(self, theta, predictions, batch):
    loss = tf.reduce_mean(tf.square(predictions))
    return {'loss': (loss, 1.0)}, {}


@model_registry.RegisterSingleTaskModel
class Native(python_docs.TransformerLmTiny):
  """Has a translation."""

  def ProgramSchedule(self):
    schedule = super().ProgramSchedule()
    schedule.train_program.steps_per_loop = 50
    return schedule


@model_registry.RegisterSingleTaskModel
class OwnTask(python_docs.TransformerLmTiny):
  """Has a custom task."""

  def Task(self):
    train = super().Task().train
    return Scorer.Params().Set(name='scorer', train=train)


@model_registry.RegisterSingleTaskModel
class OwnLayer(python_docs.TransformerLmTiny):
  """Has a custom layer."""

  def Task(self):
    p = super().Task()
    known = p.lm.trans_tpl.tr_fflayer_tpl
    p.lm.trans_tpl.tr_fflayer_tpl = Louder.Params().Set(
      hidden_dim=known.hidden_dim
    )
    return p


@model_registry.RegisterSingleTaskModel
class OddValue(python_docs.TransformerLmTiny):
  """Has a field with an unknown value."""

  def Task(self):
    p = super().Task()
    p.lm.trans_tpl.tr_atten_tpl.residual_function = SCRIPT
    return p


@model_registry.RegisterSingleTaskModel
class Broken(python_docs.TransformerLmTiny):
  """Its Params cannot be made."""

  def Task(self):
    raise ValueError(f'no such thing as {SCRIPT}')


class Counting(Scorer):
  """Computes with an op that XLA does not compile."""

  def ComputeLoss(self, theta, predictions, batch):
    metrics, per_example = super().ComputeLoss(theta, predictions, batch)
    words = tf.strings.length(tf.strings.as_string(batch.ids))
    metrics['words'] = (tf.cast(tf.reduce_sum(words), tf.float32), 1.0)
    return metrics, per_example


@model_registry.RegisterSingleTaskModel
class Uncompilable(OwnTask):
  """Its task counts letters."""

  def Task(self):
    train = super().Task().train
    return Counting.Params().Set(name='counting', train=train)


@model_registry.RegisterSingleTaskModel
class Translated(python_docs.TransformerLmTiny):
  """The user has translated its task."""

  def Task(self):
    return tiny_task.params().Set(input=None)


class Doubling(base_layer.BaseLayer):
  """A component without a translation."""

  def FProp(self, theta, inputs):
    return 2.0 * inputs


@model_registry.RegisterSingleTaskModel
class Composed(Translated):
  """A component composed by its builder is custom."""

  def Task(self):
    p = super().Task()
    parts = [
      p.first.Copy().Set(name='known'),
      builder_layers.FnLayer.Params().Set(name='bent', fn=tf.nn.relu),
      Doubling.Params().Set(name='own'),
    ]
    p.first = builder_layers.SequentialLayer.Params().Set(sub=parts)
    return p


@model_registry.RegisterSingleTaskModel
class NoFiles(OwnTask):
  """Its files are missing."""

  def Train(self):
    return super().Train().Set(file_pattern='text:/nowhere/at/all*')


class Unfinished(input_generator.LmInput):
  """Has no batches."""

  def GetPreprocessedInputBatch(self):
    raise ValueError('not written yet')


@model_registry.RegisterSingleTaskModel
class NoBatches(OwnTask):
  """Its input has no batches."""

  def Train(self):
    return super().Train().Set(cls=Unfinished)


@model_registry.RegisterMultiTaskModel
class Several(base_model_params.MultiTaskModelParams):
  """Two tasks in turns, both with a translation."""

  TASKS = {'one': Native, 'other': Native}

  def Train(self):
    p = hyperparams.Params()
    for name, cls in self.TASKS.items():
      p.Define(name, cls().Train(), '')
    return p

  def Model(self):
    p = base_model.MultiTaskModel.Params().Set(name='several')
    for name, cls in self.TASKS.items():
      p.task_params.Define(name, cls().Task(), '')
      p.task_probs.Define(name, 0.5, '')
    return p


@model_registry.RegisterMultiTaskModel
class Mixed(Several):
  """One of its tasks has no translation."""

  TASKS = {'one': Native, 'other': OwnTask}


class Encoded(Scorer):
  """Has an encoder, which another task's may replace."""

  def __init__(self, params):
    super().__init__(params)
    if self.params.encoder:
      self.CreateChild('encoder', self.params.encoder)

  def ComputePredictions(self, theta, batch):
    x = self.emb.EmbLookup(theta.emb, batch.ids)
    x = self.encoder.FProp(theta.encoder, x)
    return self.louder.FProp(theta.louder, x, batch.paddings)


@model_registry.RegisterMultiTaskModel
class Sharing(Several):
  """Its tasks share an encoder, which neither has to know."""

  TASKS = {'one': OwnTask, 'other': OwnTask}

  def Model(self):
    p = multitask_model.SharedEncoderModel.Params().Set(name='sharing')
    p.encoder_to_share = 'one'
    for name, cls in self.TASKS.items():
      task = Encoded.Params().Set(name=name, train=cls().Task().train)
      task.train.optimizer = optimizer.SGD.Params()
      p.task_params.Define(name, task, '')
      p.task_probs.Define(name, 0.5, '')
    encoder = layers.FCLayer.Params()
    encoder.Set(input_dim=DIMS, output_dim=DIMS, activation='TANH')
    p.task_params.one.encoder = encoder
    return p
