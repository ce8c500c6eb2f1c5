"""A Lingvo model of two tiny tasks, `tag` and `words`, trained in turn."""

import contextlib

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from tests.adaptors.translate import tiny_task


def scheduler(name, **fields):
  """Returns Params of a task scheduler of Lingvo's."""
  module = lingvo_runtime.module('lingvo.core.task_scheduler')
  return getattr(module, name).Params().Set(**fields)


def params(schedule=None, *, train=None, **tasks):
  """Returns Params of the model.

  Args:
    schedule: the task schedule; None draws both by weight.
    train: fields of the model's and both tasks' `train`.
    **tasks: further fields of the tasks' `train`, by the tasks' names.
  """
  base = lingvo_runtime.module('lingvo.core.base_model')
  hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')
  model = base.MultiTaskModel.Params().Set(name='both', task_schedule=schedule)
  model.train.Set(**(train or {}))
  model.input = hyperparams.Params()
  for task in ('tag', 'words'):
    made = tiny_task.params(**(train or {}), **tasks.get(task, {}))
    model.input.Define(task, made.input, '')
    model.task_params.Define(task, made.Set(input=None), '')
    model.task_probs.Define(task, 0.5, '')
  return model


@contextlib.contextmanager
def built_in_lingvo(model_params, batch):
  """Yields the model in its own training graph, and placeholders by task."""
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with tf.Graph().as_default(), lingvo_runtime.cluster():
      tf.random.set_seed(1)
      model_params, feeds = model_params.Copy(), {}
      for task, data in list(model_params.input.IterParams()):
        feeds[task] = {
          k: tf.placeholder(v.dtype, [None] * v.ndim, f'{task}_{k}')
          for k, v in batch.items()
        }
        fed = fed_task.fed_input(data, feeds[task])
        model_params.input.Set(**{task: fed})
      model = model_params.Instantiate()
      model.ConstructFPropBPropGraph()
      yield model, feeds
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def variables(model) -> dict:
  """Returns all variables, by theta path."""
  return {
    f'{name}.{path}': variable
    for name in model.task_names
    for path, variable in model.GetTask(name).vars.FlattenItems()
  }
