"""A user's Lingvo code: tasks, layers, cells, optimizers and inputs.

It is an ordinary Lingvo module and does not use JAX.

Shapes: B rows, T positions, D dims.
"""

import lingvo.compat as tf
from lingvo.core import (
  base_input_generator,
  base_layer,
  base_model,
  base_model_params,
  bn_layers,
  conv_layers_with_time_padding,
  datasource,
  generic_input,
  layers,
  optimizer,
  py_utils,
  rnn_cell,
  rnn_layers,
  schedule,
)

DIMS, HIDDEN, CLASSES, IDS = 4, 6, 2, 7


def dense(inputs, outputs, activation='TANH', **fields):
  """Returns Params of a layer of Lingvo's with a bias."""
  return layers.ProjectionLayer.Params().Set(
    input_dim=inputs,
    output_dim=outputs,
    activation=activation,
    batch_norm=False,
    has_bias=True,
    **fields,
  )


class Scores(base_model.BaseTask):
  """Scores rows of numbers by two layers, against targets."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.name = 'scores'
    p.Define('hidden', dense(DIMS, HIDDEN), 'Of numbers [B, D].')
    p.Define('out', dense(HIDDEN, CLASSES, 'NONE'), 'The scores.')
    return p

  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('hidden', self.params.hidden)
    self.CreateChild('out', self.params.out)

  def ComputePredictions(self, theta, batch):
    hidden = self.hidden.FProp(theta.hidden, self.Numbers(theta, batch))
    return self.out.FProp(theta.out, hidden)

  def Numbers(self, theta, batch):
    return batch.x

  def ComputeLoss(self, theta, predictions, batch):
    errors = tf.reduce_sum(tf.square(predictions - batch.targets), -1)
    rows = tf.cast(tf.shape(errors)[0], tf.float32)
    metrics = {
      'loss': (tf.reduce_mean(errors), rows),
      'size': (tf.reduce_mean(tf.abs(predictions)), rows),
    }
    return metrics, {'error': errors}


class WordScores(Scores):
  """Scores the mean of embeddings, whose gradients are sparse."""

  @classmethod
  def Params(cls):
    p = super().Params()
    table = layers.EmbeddingLayer.Params().Set(
      vocab_size=IDS, embedding_dim=DIMS, max_num_shards=1
    )
    p.Define('emb', table, 'The table.')
    return p

  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('emb', self.params.emb)

  def Numbers(self, theta, batch):
    return tf.reduce_mean(self.emb.EmbLookup(theta.emb, batch.ids), 1)


class SequenceScores(Scores):
  """Scores the last state of a cell, or any layer of sequences [T, B, D]."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('cell', None, 'A cell.')
    p.Define('normalized', True, 'Whether batch norm comes first.')
    p.Define('norm', bn_layers.BatchNormLayer.Params(), 'It.')
    p.norm.Set(dim=DIMS)
    return p

  def __init__(self, params):
    super().__init__(params)
    frnn = rnn_layers.FRNN.Params().Set(name='frnn', cell=self.params.cell)
    self.CreateChild('frnn', frnn)
    if self.params.normalized:
      self.CreateChild('norm', self.params.norm)

  def Numbers(self, theta, batch):
    x = batch.frames
    if self.params.normalized:
      x = self.norm.FProp(theta.norm, x, batch.paddings[:, :, None])
    outputs, _ = self.frnn.FProp(
      theta.frnn,
      tf.transpose(x, [1, 0, 2]),
      tf.transpose(batch.paddings)[:, :, None],
    )
    return outputs[-1]


class OwnCell(rnn_cell.LSTMCellSimple):
  """Has a softer gate than its base class."""

  def _Gates(self, xmw, theta, state0, inputs):
    gates = super()._Gates(0.5 * xmw, theta, state0, inputs)
    return gates


class Bend(base_layer.BaseLayer):
  """A layer with one weight, from nothing that is translated."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('dim', HIDDEN, 'D.')
    p.Define('dense', dense(DIMS, HIDDEN), 'In front.')
    return p

  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('dense', self.params.dense)

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    init = py_utils.WeightInit.Uniform(0.3)
    self.CreateVariable('bend', py_utils.WeightParams([HIDDEN], init))

  def FProp(self, theta, inputs):
    x = self.dense.FProp(theta.dense, inputs)
    return x + theta.bend * tf.square(x)


class Counting(Bend):
  """Counts its calls in a variable that is not trained."""

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    init = py_utils.WeightInit.Constant(0.0)
    counter = py_utils.WeightParams([], init)
    self.CreateVariable('calls', counter, trainable=False)

  def FProp(self, theta, inputs):
    if not self.do_eval:
      self._calls = tf.assign_add(self.vars.calls, 1.0)
      with tf.control_dependencies([self._calls]):
        inputs = tf.identity(inputs)
    return super().FProp(theta, inputs)


class Noisy(Bend):
  """Adds unseeded noise in training."""

  def FProp(self, theta, inputs):
    x = super().FProp(theta, inputs)
    return x if self.do_eval else x + tf.random.normal(tf.shape(x))


class Looping(Bend):
  """Squares three times in a loop that has no bound but its condition."""

  def FProp(self, theta, inputs):
    _, x = tf.while_loop(
      lambda i, x: i < 3,
      lambda i, x: (i + 1, tf.tanh(x + self.dense.FProp(theta.dense, inputs))),
      (tf.constant(0), super().FProp(theta, inputs)),
    )
    return x


class Spelling(Scores):
  """Computes with strings, which no accelerator does."""

  def Numbers(self, theta, batch):
    words = tf.strings.length(tf.strings.as_string(batch.ids))
    lengths = tf.cast(tf.reduce_sum(words, 1, keepdims=True), tf.float32)
    return batch.x * lengths


class OwnTower(Scores):
  """Has its own forward pass, with a loss for each half of a batch."""

  def FPropTower(self, theta, batch):
    predictions = self.ComputePredictions(theta, batch)
    return self.ComputeLoss(theta, 2.0 * predictions, batch)


class OwnBProp(Scores):
  """Computes its own updates."""

  def BProp(self):
    return super().BProp()


class Averaging(Scores):
  """Moves a second copy of a weight after each step."""

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    init = py_utils.WeightInit.Constant(0.0)
    kept = py_utils.WeightParams([CLASSES], init)
    self.CreateVariable('kept', kept, trainable=False)

  def PostTrainingStepUpdate(self):
    moved = 0.5 * self.vars.kept + 0.5 * self.out.vars.b
    return tf.group(
      super().PostTrainingStepUpdate(), tf.assign(self.vars.kept, moved)
    )


class TwoLosses(Scores):
  """Has a second loss, for a second learner."""

  def ComputeLoss(self, theta, predictions, batch):
    metrics, per_example = super().ComputeLoss(theta, predictions, batch)
    metrics['second'] = (tf.reduce_mean(tf.square(predictions)), 1.0)
    return metrics, per_example


class Precise(Scores):
  """Has metrics of its own, one of them without a scalar weight."""

  def ComputeLoss(self, theta, predictions, batch):
    metrics, per_example = super().ComputeLoss(theta, predictions, batch)
    hits = tf.cast(tf.equal(tf.sign(predictions), 1.0), tf.float32)
    metrics['hits'] = (tf.reduce_mean(hits), tf.reduce_sum(hits))
    metrics['largest'] = (tf.reduce_max(predictions), tf.constant(1.0))
    return metrics, {**per_example, 'hits': hits}


class Reporting(Scores):
  """Handles the results of a step on the host."""

  def ProcessFPropResults(self, sess, global_step, metrics, per_example):
    del sess, global_step, metrics, per_example


class Convolving(Scores):
  """Scores frames after a convolution over time with batch norm."""

  @classmethod
  def Params(cls):
    p = super().Params()
    conv = conv_layers_with_time_padding.Conv2DLayerWithPadding.Params().Set(
      filter_shape=(3, 1, 1, 2), filter_stride=(1, 1)
    )
    p.Define('conv', conv, 'Over time.')
    p.hidden = dense(2 * DIMS, HIDDEN)
    return p

  def __init__(self, params):
    super().__init__(params)
    self.CreateChild('conv', self.params.conv)

  def Numbers(self, theta, batch):
    frames = batch.frames[:, :, :, None]
    x, paddings = self.conv.FProp(theta.conv, frames, batch.paddings)
    x = tf.reduce_mean(x * (1.0 - paddings)[:, :, None, None], 1)
    return tf.reshape(x, [-1, 2 * DIMS])


class Carefully(optimizer.SGD):
  """Takes half of a step: an optimizer of the user's."""

  def Apply(self, lr, var_grad, weight=None):
    return super().Apply(0.5 * lr, var_grad)


class Signed(optimizer.SGD):
  """Takes steps by the signs of gradients: another one of the user's."""

  def Apply(self, lr, var_grad, weight=None):
    signed = var_grad.Transform(
      lambda one: py_utils.VarGrad(one.var, tf.sign(one.grad))
    )
    return super().Apply(lr, signed)


class Sawtooth(schedule.BaseSchedule):
  """A schedule of the user's."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('period', 3, 'Steps of a tooth.')
    return p

  def Value(self, step=None):
    step = tf.cast(self.GetStep(step), tf.int64)
    part = tf.cast(step % self.params.period, tf.float32)
    return 1.0 - part / self.params.period


class NumbersInput(base_input_generator.BaseInputGenerator):
  """Makes up its rows, without an end."""

  def _InputBatch(self):
    rows = self.InfeedBatchSize()
    x = tf.reshape(tf.range(rows * DIMS, dtype=tf.float32), [rows, DIMS])
    return py_utils.NestedMap(x=x / 10, targets=x[:, :CLASSES] / 7)


class LinesInput(base_input_generator.BaseSequenceInputGenerator):
  """Reads lines of numbers, with a field per line of a varying length."""

  def _DataSourceFromFilePattern(self, file_pattern, **weights):
    def process(line):
      numbers = tf.strings.to_number(tf.strings.split([line]).values)
      features = py_utils.NestedMap(
        frames=numbers[:, None] * tf.ones([1, DIMS]),
        paddings=tf.zeros_like(numbers),
      )
      return features, 1

    batch, _ = generic_input.GenericInput(
      file_pattern=file_pattern,
      processor=process,
      dynamic_padding_dimensions=[0, 0],
      dynamic_padding_constants=[0, 1],
      **self.CommonInputOpArgs(),
      **weights,
    )
    rows = tf.shape(batch.paddings)[0]
    batch.x = tf.reduce_mean(batch.frames, 1)
    batch.targets = tf.ones([rows, CLASSES])
    return batch

  def _InputBatch(self):
    return self._BuildDataSource()


class NumbersSource(datasource.TFDatasetSource):
  """Rows of a tf.data set, again and again."""

  def GetDataset(self):
    def row(i):
      x = tf.cast(i, tf.float32) * tf.ones([DIMS])
      return py_utils.NestedMap(x=x / 9, targets=x[:CLASSES] / 5)

    return tf.data.Dataset.range(8).map(row).repeat().batch(4)


class OwnModel(base_model.SingleTaskModel):
  """Has its own training graph."""

  def ConstructFPropBPropGraph(self):
    super().ConstructFPropBPropGraph()


class ModelParams(base_model_params.SingleTaskModelParams):
  """The base of all experiments here."""
