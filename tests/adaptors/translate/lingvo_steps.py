"""Runs Lingvo's optimizers and schedules for real, without a task."""

import numpy as np

from adaptors import lingvo_runtime


def optimizer_steps(params, weights, gradients, rate) -> list[dict]:
  """Returns the weights after each step of a Lingvo optimizer.

  Args:
    params: Params of the optimizer.
    weights: the first weights, numpy arrays by name.
    gradients: for each step arrays like `weights`.
    rate: the learning rate, or Params of a schedule of it.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with tf.Graph().as_default(), lingvo_runtime.cluster():
      variables = py_utils.NestedMap(
        {k: tf.get_variable(k, initializer=v) for k, v in weights.items()}
      )
      feeds = {
        k: tf.placeholder(tf.float32, v.shape) for k, v in variables.items()
      }
      # Lingvo's train step counts after its optimizer; some ask for the count.
      count = py_utils.GetOrCreateGlobalStepVar()
      if not isinstance(rate, float):
        rate = rate.Instantiate().Value()
      step = params.Instantiate().Apply(
        rate,
        py_utils.NestedMap(
          {k: py_utils.VarGrad(variables[k], feeds[k]) for k in variables}
        ),
      )
      counted = tf.assign_add(count, 1)
      with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        results = []
        for gradient in gradients:
          session.run(step, {feeds[k]: gradient[k] for k in feeds})
          session.run(counted)
          results.append(session.run(dict(variables)))
        return results
  finally:
    py_utils.SetEagerMode(True, test_mode=True)


def schedule_values(params, steps) -> np.ndarray:
  """Returns what a Lingvo schedule says at each of the steps.

  Args:
    params: Params of the schedule.
    steps: whole numbers.
  """
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with lingvo_runtime.cluster():
    schedule = params.Instantiate()
    values = []
    for step in steps:
      # As the global step, because some parts of schedules read only that.
      with py_utils.GlobalStepContext(tf.constant(step, tf.int64)):
        values.append(float(schedule.Value()))
    return np.array(values)
