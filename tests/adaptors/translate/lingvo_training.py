"""Trains a Lingvo task for real, in Lingvo's own graph mode, on fixed batches.

So tests have the numbers that a legacy run would have.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task


@dataclasses.dataclass
class Trained:
  """What a real Lingvo run gave.

  Attributes:
    first: the initial weights, by theta path.
    gradients: of the first step's loss, before any clipping, by theta path.
    losses: of each step, before the step.
    learning_rates: of each step.
    grad_norms: of each step, as Lingvo's learner measures them.
    last: the weights after the last step.
    eval_metrics: of the first batch at the initial weights, {name: value}.
  """

  first: dict[str, np.ndarray]
  gradients: dict[str, np.ndarray]
  losses: list[float]
  learning_rates: list[float]
  grad_norms: list[float]
  last: dict[str, np.ndarray]
  eval_metrics: dict[str, float]


def keep_gradients(kept: dict[str, Any], task: Any):
  """Keeps the gradients of a task's step, before any clipping.

  Others of the loss would be a second backward pass, which takes Lingvo as long
  to build as the first one.

  Args:
    kept: gets them, by theta path, when the task's graph is built.
    task: with one learner.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  clusters = lingvo_runtime.module('lingvo.core.cluster_factory')
  clusters.Current().params.add_summary = False
  [learner] = task.learners
  compute = learner.optimizer.ComputeGradients

  def computed(*args, **kwargs):
    found = compute(*args, **kwargs)
    for path, pair in found.FlattenItems():
      kept[path] = tf.convert_to_tensor(pair.grad)
    return found

  learner.optimizer.ComputeGradients = computed


def train(task_params, batches, *, static_shapes: bool = False) -> Trained:
  """Trains a task for one step on each batch.

  Args:
    task_params: Params of a Lingvo task; its `input` has the tokenizer.
    batches: dicts of numpy arrays, all with the same keys.
    static_shapes: whether Lingvo needs their shapes.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  gradients = {}
  with fed_task.build(
    task_params,
    batches[0],
    static_shapes=static_shapes,
    optimized=False,
    prepare=functools.partial(keep_gradients, gradients),
  ) as made:
    task, run = made.task, made.session.run
    variables = dict(task.vars.FlattenItems())
    # What layers tell from within a loop cannot be fetched.
    metrics = {
      k: value
      for k, (value, _) in task.eval_metrics.items()
      if getattr(value, 'graph', tf.get_default_graph())
      is tf.get_default_graph()
    }
    made.start()
    first = run(variables)
    at_first = run(
      {'metrics': metrics, 'gradients': gradients}, made.feed_dict(batches[0])
    )
    for path, variable in variables.items():
      if '/' in path:  # A module of TensorFlow Hub has updated its statistics.
        variable.load(first[path], made.session)
    each = [
      task.loss,
      metrics['learning_rate/loss'],
      metrics['grad_norm/all/loss'],
      task.train_op,
    ]
    steps = [run(each, made.feed_dict(batch))[:3] for batch in batches]
    last = run(variables)
  losses, rates, norms = (list(map(float, s)) for s in zip(*steps, strict=True))
  return Trained(
    first=first,
    gradients=at_first['gradients'],
    losses=losses,
    learning_rates=rates,
    grad_norms=norms,
    last=last,
    eval_metrics={k: float(v) for k, v in at_first['metrics'].items()},
  )
