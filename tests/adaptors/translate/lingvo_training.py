"""Trains a Lingvo task for real, in Lingvo's own graph mode, on fixed batches.

So tests have the numbers that a legacy run would have.
"""

import dataclasses

import numpy as np

from adaptors import lingvo_runtime


@dataclasses.dataclass
class Trained:
  """What a real Lingvo run gave.

  Attributes:
    first: the first weights, by theta path.
    gradients: of the first step's loss, before any clipping, by theta path.
    losses: of each step, before the step.
    learning_rates: of each step.
    grad_norms: of each step, as Lingvo's learner measures them.
    last: the weights after the last step.
    eval_metrics: of the first batch at the first weights, {name: value}.
  """

  first: dict[str, np.ndarray]
  gradients: dict[str, np.ndarray]
  losses: list[float]
  learning_rates: list[float]
  grad_norms: list[float]
  last: dict[str, np.ndarray]
  eval_metrics: dict[str, float]


def train(task_params, batches) -> Trained:
  """Trains a task for one step on each batch.

  Args:
    task_params: Params of a Lingvo task; its `input` tells the tokenizer.
    batches: dicts of numpy arrays, all with the same keys.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with tf.Graph().as_default(), lingvo_runtime.cluster():
      tf.random.set_seed(1)
      feeds = {
        k: tf.placeholder(v.dtype, [None] * v.ndim, k)
        for k, v in batches[0].items()
      }
      params = task_params.Copy()
      params.input = _fed_input(task_params.input, feeds)
      model = base_model.SingleTaskModel.Params(params).Instantiate()
      model.ConstructFPropBPropGraph()
      return _run(tf, model.GetTask(), feeds, batches)
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def _fed_input(params, feeds):
  """Returns Params of an input that gives what is fed to placeholders."""
  base = lingvo_runtime.module('lingvo.core.base_input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class FedInput(base.BaseSequenceInputGenerator):
    """Gives placeholders instead of reading files."""

    def CreateDatasource(self):
      pass

    def _InputBatch(self):
      return py_utils.NestedMap(feeds)

  return FedInput.Params().Set(
    name='fed', tokenizer=params.tokenizer.Copy(), file_pattern='none'
  )


def _run(tf, task, feeds, batches) -> Trained:
  variables = dict(task.vars.FlattenItems())
  loss = task.loss
  gradients = {
    path: tf.convert_to_tensor(g)
    for path, g in zip(
      variables, tf.gradients(loss, list(variables.values())), strict=True
    )
    if g is not None
  }
  metrics = task.eval_metrics
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())

    def fed(batch):
      return {feeds[k]: batch[k] for k in feeds}

    first = session.run(variables)
    first_gradients = session.run(gradients, fed(batches[0]))
    evaluated = session.run(
      {k: v[0] for k, v in metrics.items()}, fed(batches[0])
    )
    steps = [
      session.run(
        [
          loss,
          metrics['learning_rate/loss'][0],
          metrics['grad_norm/all/loss'][0],
          task.train_op,
        ],
        fed(batch),
      )[:3]
      for batch in batches
    ]
    last = session.run(variables)
  losses, rates, norms = (list(map(float, s)) for s in zip(*steps, strict=True))
  return Trained(
    first=first,
    gradients=first_gradients,
    losses=losses,
    learning_rates=rates,
    grad_norms=norms,
    last=last,
    eval_metrics={k: float(v) for k, v in evaluated.items()},
  )
