"""A module of TensorFlow Hub in a bridged task, against Lingvo.

Shapes: B rows of a batch.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import layer as bridge_layer
from adaptors.bridge import task as bridge_task
from adaptors.translate.view import ParamsView, Report
from tests.adaptors.bridge import small_task, training_test
from tests.adaptors.bridge.functional import hub_module


@pytest.fixture(name='hub_layers')
def _hub_layers():
  return lingvo_runtime.module('lingvo.tasks.milan.tf_hub_layers')


@pytest.fixture(name='module')
def _module(tmp_path):
  """Returns the path of a module with a weight and a moving mean."""
  hub_module.save(str(tmp_path / 'module'))
  return str(tmp_path / 'module')


def _params(hub_layers, module):
  """Returns Params of a small task that puts images through the module."""
  tf = lingvo_runtime.module('lingvo.compat')

  def compute(task, theta, batch):
    y = task.image.FProp(theta.image, batch.images)
    loss = tf.reduce_mean(tf.square(y - batch.x * theta.w))
    return {'loss': (loss, 1.0)}

  params = small_task.params(compute)

  def init(self, params):
    super(own, self).__init__(params)
    image = hub_layers.ImageModuleV2.Params().Set(module_path=module)
    self.CreateChild('image', image)

  own = type('WithImages', (params.cls,), {'__init__': init})
  params.cls = own
  return params


def _batch(seed):
  images = np.random.default_rng(seed).normal(size=[2, 4, 4, 3])
  return {**small_task.batch(), 'images': images.astype(np.float32)}


def test_a_module_is_trained_as_in_lingvo(hub_layers, module):
  params = _params(hub_layers, module)
  data = [_batch(seed) for seed in range(3)]
  variables, _ = training_test.check(params, data)
  for name in ('conv/kernel', 'bn/moving_mean'):
    moved = [one[f'image.image_module_v2/{name}'] for one in variables]
    assert np.all(moved[0] != moved[-1])


def test_values_of_calls_and_initial_ones(hub_layers, module):
  tf = lingvo_runtime.module('tensorflow')
  made = bridge_task.bridge_task(_params(hub_layers, module), 'small')
  task = made.config.model.lingvo_task.at_evaluation
  values = {
    path: v.actual.numpy() if path in task._modules else np.ones(v.shape)
    for path, v in task.variables.items()
  }
  losses = []
  for factor in (1.0, 2.0, 1.0):
    path = 'image.image_module_v2/conv/kernel'
    given = values | {path: np.float32(factor) * values[path]}
    given = {k: tf.cast(v, task.variables[k].dtype) for k, v in given.items()}
    metrics, _, updates = task.forward(
      given, _batch(0), tf.constant(0), tf.constant([1, 2])
    )
    losses.append(float(metrics['loss'][0]))
    assert not updates
  assert losses[0] == losses[2] != losses[1]
  for path, value in values.items():
    if path in task._modules:
      np.testing.assert_array_equal(task.variables[path].actual, value)


def test_its_layer_is_not_bridged_without_the_task(hub_layers, module):
  report = Report()
  params = hub_layers.ImageModuleV2.Params().Set(module_path=module)
  view = ParamsView(params, 'image', report)
  assert bridge_layer.bridge_part(view) is None
  assert 'wraps a module' in report.issues[0].message
