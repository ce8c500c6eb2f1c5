"""Models that a user composes with builders, translated whole.

Shapes: B batch, T time, D dims.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.builder.builder_parts import translates_part
from adaptors.translate.functions import translates_fn
from adaptors.translate.registry import Translated
from adaptors.translate.variables import Variable, VariableMap
from pax_compat import base_layer, base_model, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate import tiny_task
from tests.adaptors.translate.parity import check_layer

B, T, D = 2, 5, 8
RNG = np.random.default_rng(1)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [3]])).astype(np.float32)


@functools.cache
def _lingvo_classes():
  """Returns a user's layer and builder, in Lingvo."""
  tf = lingvo_runtime.module('lingvo.compat')
  lingvo_base = lingvo_runtime.module('lingvo.core.base_layer')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  builder = lingvo_runtime.module('lingvo.core.builder')
  layers = lingvo_runtime.module('lingvo.core.builder_layers')

  class Scale(lingvo_base.BaseLayer):
    """A layer of the user's own."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('start', 1.0, 'Its initial value.')
      return p

    def _CreateLayerVariables(self):
      super()._CreateLayerVariables()
      init = py_utils.WeightInit.Constant(self.params.start)
      self.CreateVariable('scale', py_utils.WeightParams([], init))

    def FProp(self, theta, inputs):
      return inputs * theta.scale

  class MyBuilder(builder.Base):
    """A stack of gated blocks with residual connections."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('dims', D, 'Of inputs and outputs.')
      p.Define('hidden', 12, 'Of the inner layer.')
      p.Define('bend', 0.5, 'What the gate adds.')
      return p

    def _Gate(self, name):
      bend = self.params.bend

      def Gated(x, y):
        return tf.nn.relu(x) * (tf.sigmoid(y) + bend)

      return self._Fn(name, Gated)

    def Block(self, name):
      p = self.params
      hidden = self._Seq(
        'hidden',
        self._LN('ln', p.dims),
        self._Par(
          'both',
          self._FC('x', p.dims, p.hidden, act='NONE'),
          self._FC('y', p.dims, p.hidden, act='TANH'),
        ),
        self._Gate('gate'),
        self._Linear('out', p.hidden, p.dims),
        Scale.Params().Set(name='scale', start=0.5),
      )
      return self._Graph(
        name,
        ['x'],
        ['y'],
        ('x->h', hidden),
        ('h->d', self._Dropout('drop', 1.0)),
        ('x,d->y', self._Fn('add', tf.add)),
      )

    def Stack(self, name):
      repeated = layers.RepeatLayer.Params().Set(
        name='repeated', repeat=3, body=self.Block('block')
      )
      return self._Seq(
        name,
        repeated,
        self._Rep('copies', 2, self._Rematerialize('again', self.Block('b'))),
        self._LN('ln', self.params.dims),
      )

  return Scale, MyBuilder


class Scale(base_layer.BaseLayer):
  """The user's layer here.

  Attributes:
    start: its initial value.
  """

  start: float = 1.0

  def setup(self):
    init = WeightInit.Constant(self.start)
    self.create_variable('scale', WeightHParams([], init))

  def __call__(self, inputs):
    return inputs * self.theta.scale


@translates_part(f'{__name__}._lingvo_classes.<locals>.Scale')
def translate_scale(view):
  view.get('params_init')  # The weight starts as a constant.
  config = Scale.config(start=view.get('start'))
  return Translated(config, VariableMap([Variable(('scale',), 'scale')]))


@translates_fn(
  f'{__name__}._lingvo_classes.<locals>.MyBuilder._Gate.<locals>.Gated'
)
def jax_gated(x, y, *, bend):
  return jnp.maximum(x, 0) * (1 / (1 + jnp.exp(-y)) + bend)


def _my_builder():
  _, builder = _lingvo_classes()
  return builder.Params().Set(bend=0.25).Instantiate()


@functools.cache
def _task_class():
  """Returns a task whose network a builder has made, in Lingvo."""
  tf = lingvo_runtime.module('lingvo.compat')
  base = lingvo_runtime.module('lingvo.core.base_model')

  class BuiltTask(base.BaseTask):
    """Predicts targets."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('network', _my_builder().Stack('network'), 'The network.')
      return p

    def __init__(self, params):
      super().__init__(params)
      self.CreateChild('network', self.params.network)

    def ComputePredictions(self, theta, batch):
      return tf.function(self.network.FProp)(theta.network, batch.x)

    def ComputeLoss(self, theta, predictions, batch):
      loss = tf.reduce_mean(tf.square(predictions - batch.targets))
      return {'loss': (loss, 1.0)}, {}

  registry.translates(f'{__name__}._task_class.<locals>.BuiltTask')(
    _translate_task
  )
  return BuiltTask


class BuiltModel(base_model.BaseModel):
  """The same here.

  Attributes:
    network_tpl: the network.
  """

  network_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('network', self.network_tpl)

  def compute_predictions(self, input_batch):
    return self.network(input_batch.x)

  def compute_loss(self, predictions, input_batch):
    loss = jnp.mean(jnp.square(predictions - input_batch.targets))
    return {'loss': (loss, 1.0)}, {}


def _translate_task(view):
  network = registry.translate(view.child('network'))
  if network is None:
    return None
  return Translated(
    BuiltModel.config(network_tpl=network.config),
    network.variables.under('network', 'network'),
  )


@pytest.mark.parametrize('do_eval', [False, True])
def test_the_network_of_a_users_builder(do_eval):
  function = lingvo_runtime.module('tensorflow').function
  check_layer(
    _my_builder().Stack('network'),
    [X],
    fprop=lambda layer, theta, x: function(layer.FProp)(theta, x),
    call=lambda layer, x: layer(x),
    do_eval=do_eval,
  )


def built_task(optimizer, **fields):
  """Returns Params of the task, whose optimizer has the given fields."""
  task = _task_class().Params().Set(name='built')
  task.input = tiny_task.params().input
  task.train.Set(
    learning_rate=0.01, optimizer=tiny_task.optimizer(optimizer, **fields)
  )
  task.train.lr_schedule = tiny_task.schedule('Constant')
  return task


def test_some_steps_of_a_task_that_uses_it():
  # Some gradients are so small that with its usual epsilon Adam makes whole
  # steps of their rounding errors.
  task = built_task('Adam', epsilon=1e-3)
  task.train.clip_gradient_norm_to_value = 1.0
  batches = [
    NestedMap(x=x, targets=np.sin(3 * x))
    for x in RNG.normal(size=(3, B, T, D)).astype(np.float32)
  ]
  run = tiny_task.check(task, batches)
  assert all(tiny_task.moved(run).values())


def test_stacks_that_an_optimizer_treats_in_different_ways():
  """Adafactor goes by variables, which are of one layer each, or of several."""
  layers = lingvo_runtime.module('lingvo.core.builder_layers')
  builder = _my_builder()
  apart, together = (
    layers.RepeatLayer.Params().Set(
      name=name,
      repeat=2,
      body=builder._Linear('linear', D, D),
      per_layer_vars=name == 'apart',
    )
    for name in ('apart', 'together')
  )
  task = built_task('XLAShardingAdafactor')
  task.network = builder._Seq('network', apart)
  tiny_task.translate(task)
  task.network = builder._Seq('network', apart, together)
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(task)
  assert 'network.together.body.w has several layers' in str(error.value)


def _batch_major(method, **fields):
  module = lingvo_runtime.module('lingvo.core.batch_major_attention')
  builder = module.Builder.Params().Set(
    model_dim=D, num_heads=2, ff_hidden_dim=12, **fields
  )
  return getattr(builder.Instantiate(), method)


@pytest.mark.parametrize(
  ('method', 'args', 'fields'),
  [
    ('TransformerEncoderStack', {'num_layers': 2}, {}),
    (
      'TransformerEncoderStack',
      {'num_layers': 1},
      {
        'ff_activation_fn': 'SWISH',
        'selfatten_add_unnormalized_input': False,
        'enable_per_dim_scale': False,
        'ln_use_bias': False,
        'ff_residual_weight': 0.5,
      },
    ),
    ('TransformerEncoderLayer', {'stride': 2}, {}),
    ('TransformerEncoderLayer', {}, {'packed_input': True}),
    ('GatedGeluFeedforward', {}, {'ff_use_paddings': False}),
  ],
)
def test_networks_of_the_attention_builder(method, args, fields):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  segments = np.array([[1, 1, 2, 2, 2], [1, 2, 2, 0, 0]])
  apart = segments[:, None, :, None] != segments[:, None, None, :]
  names = ['vec', 'paddings', 'segment_mask']
  inputs = [X, PADDINGS, np.where(apart, np.float32(-1e30), 0)]
  count = len(inputs) if fields.get('packed_input') else 2
  check_layer(
    _batch_major(method, **fields)('network', **args),
    inputs[:count],
    fprop=lambda layer, theta, *arrays: {
      'vec': layer.FProp(
        theta, py_utils.NestedMap(zip(names, arrays, strict=False))
      ).vec
    },
    call=lambda layer, *arrays: {
      'vec': layer(NestedMap(zip(names, arrays, strict=False))).vec
    },
    do_eval=False,
  )
