"""Stock language-model experiments in small, with batches to feed them."""

import contextlib

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity import synthetic
from adaptors.lingvo_registry import lookup
from adaptors.params import shrinking
from pax_compat import experiment_sources

SIZES = shrinking.Sizes()


def find(name):
  """Returns an experiment of Lingvo's registry."""
  return lookup.find_model_params(name, experiment_sources.SourceOptions())


def task_params(name, sizes=SIZES):
  """Returns Params of a small task that computes in float32, and its input."""
  experiment = find(name)
  params = shrinking.in_float32(shrinking.shrink(experiment.Task(), sizes))
  params.input = shrinking.shrink(experiment.Train(), sizes)
  return params


def batch(params, seed=0, sizes=SIZES):
  """Returns a batch, numpy arrays by dotted name, such as a task's input gives.

  Args:
    params: of the task.
    seed: of the ids.
    sizes: that the task was shrunk to.
  """
  return synthetic.batch(
    params, sizes.batch_size, sizes.sequence_length, seed=seed
  )


@contextlib.contextmanager
def graph_of_lingvo():
  """Enters a graph of Lingvo's in which layers are made as in training.

  What it draws at random is the same each time.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with tf.Graph().as_default(), lingvo_runtime.cluster():
      tf.random.set_seed(1)
      yield tf
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def forward(params, arrays):
  """Runs a real Lingvo task forward, on new weights.

  Returns:
    Its metrics, {name: (value, weight)}, and the shapes of its weights by theta
    path.
  """
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with graph_of_lingvo() as tf, fed_task.session(optimized=False) as session:
    task = params.Instantiate()
    tensors = py_utils.NestedMap()
    for path, array in arrays.items():
      tensors.Set(path, tf.constant(array))
    metrics, _ = task.FPropTower(task.theta, tensors)
    session.run(tf.global_variables_initializer())
    shapes = {k: tuple(v.shape) for k, v in task.vars.FlattenItems()}
    # Some weights are plain numbers.
    values = {k: list(map(tf.convert_to_tensor, v)) for k, v in metrics.items()}
    return session.run(values), shapes
