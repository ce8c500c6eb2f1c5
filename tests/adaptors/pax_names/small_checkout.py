"""A checkout of paxml with one experiment, which names what it needs of Pax."""

import pathlib

EXPERIMENT = '''"""An experiment as Pax's users write it."""

from paxml import base_experiment
from paxml import experiment_registry
from paxml import tasks_lib
from paxml.tasks.lm.params import own_layers
from praxis import base_input
from praxis import layers
from praxis import optimizers
from praxis import pax_fiddle
from praxis import py_utils
from praxis import schedules

import numpy as np


class Ones(base_input.BaseInput):

  def get_next(self):
    ids = np.ones([self.batch_size, 8], np.int32)
    ones = np.ones([self.batch_size, 8], np.float32)
    return py_utils.NestedMap(
      ids=ids, labels=ids, paddings=0 * ones, weights=ones,
      segment_ids=ids, segment_pos=ids * np.arange(8, dtype=np.int32),
    )


@experiment_registry.register(tags=['small'])
class Small(base_experiment.BaseExperiment):
  """A small decoder."""

  MODEL_DIMS = 8

  def datasets(self):
    return [pax_fiddle.Config(Ones, batch_size=2, is_training=True)]

  def task(self):
    task_p = pax_fiddle.Config(tasks_lib.SingleTask, name='small')
    task_p.model = pax_fiddle.Config(layers.LanguageModel, name='lm')
    lm_p = task_p.model.lm_tpl
    lm_p.model_dims = self.MODEL_DIMS
    lm_p.vocab_size = 4
    stack_p = lm_p.stacked_transformer_tpl
    stack_p.model_dims = self.MODEL_DIMS
    stack_p.hidden_dims = 16
    stack_p.num_heads = 2
    stack_p.num_layers = 1
    layer_p = stack_p.transformer_layer_params_tpl
    layer_p.tr_fflayer_tpl.activation_tpl = pax_fiddle.Config(own_layers.Cubed)
    lm_p.softmax_tpl.scale_sqrt_depth = True
    lp = task_p.train.learner
    lp.loss_name = 'total_loss'
    lp.optimizer = pax_fiddle.Config(optimizers.Adam, learning_rate=1e-2)
    lp.optimizer.lr_schedule = pax_fiddle.Config(schedules.Constant, value=1.0)
    task_p.train.num_train_steps = 2
    return task_p
'''

LAYERS = '''"""A layer as Pax's users write it."""

from praxis import base_layer
from praxis import pytypes
from praxis.layers import activations

JTensor = pytypes.JTensor


class Cubed(activations.BaseActivation):
  """The third power of a scaled input."""

  scale: float = 0.5

  def setup(self) -> None:
    self.create_variable(
      'w',
      base_layer.WeightHParams(
        shape=[1], init=base_layer.WeightInit.Constant(self.scale)
      ),
    )

  def __call__(self, inputs: JTensor) -> JTensor:
    return (self.theta.w * inputs) ** 3
'''


def write(root: pathlib.Path) -> pathlib.Path:
  """Writes the checkout, and returns its root."""
  folder = root / 'paxml' / 'tasks' / 'lm' / 'params'
  folder.mkdir(parents=True)
  (folder / 'small.py').write_text(EXPERIMENT)
  (folder / 'own_layers.py').write_text(LAYERS)
  return root
