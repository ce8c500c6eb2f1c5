"""Runs Lingvo's optimizers and schedules for real, without a task."""

import itertools

import numpy as np

from adaptors import lingvo_runtime

# Shampoo's preconditioners are kept for the process, by names of variables.
_scopes = itertools.count()


def optimizer_steps(
  params, weights, gradients, rate, *, loss_weights=None, loop_steps=None
) -> list[dict]:
  """Returns the weights after each step of a Lingvo optimizer.

  Args:
    params: Params of the optimizer.
    weights: the initial weights, numpy arrays by name.
    gradients: for each step arrays like `weights`.
    rate: the learning rate, or Params of a schedule of it.
    loss_weights: for each step what its loss weighs, where it matters.
    loop_steps: after how many steps a loop on a TPU ends, after which Shampoo
      computes preconditioners, here before the next step.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with tf.Graph().as_default(), lingvo_runtime.cluster():
      with tf.variable_scope(f'run_{next(_scopes)}'):
        variables = py_utils.NestedMap(
          {k: tf.get_variable(k, initializer=v) for k, v in weights.items()}
        )
      feeds = {
        k: tf.placeholder(tf.float32, v.shape) for k, v in variables.items()
      }
      # Lingvo's train step counts after its optimizer; some ask for the count.
      count = py_utils.GetOrCreateGlobalStepVar()
      optimizer = params.Instantiate()
      if not isinstance(rate, float):
        rate = optimizer.GetLrScheduleValue(rate.Instantiate().Value)
      weight = tf.placeholder_with_default(1.0, [])
      step = optimizer.Apply(
        rate,
        py_utils.NestedMap(
          {k: py_utils.VarGrad(variables[k], feeds[k]) for k in variables}
        ),
        weight,
      )
      counted = tf.assign_add(count, 1)
      end_of_loop = preconditioned(optimizer, count) if loop_steps else []
      with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        results = []
        for i, gradient in enumerate(gradients):
          fed = {feeds[k]: gradient[k] for k in feeds}
          if loss_weights:
            fed[weight] = loss_weights[i]
          session.run(step, fed)
          session.run(counted)
          if loop_steps and (i + 1) % loop_steps == 0:
            for op in end_of_loop:
              session.run(op)
          results.append(session.run(dict(variables)))
        return results
  finally:
    py_utils.SetEagerMode(True, test_mode=True)


def preconditioned(optimizer, count) -> list:
  """Returns the two ops of the end of Shampoo's loop, to be run in turn.

  In Lingvo they run side by side, the first in the background, so that it is a
  race from when on preconditioners are used.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  made = optimizer._optimizer
  made._synchronous_preconditioning = True
  return [
    made.invoke_async_preconditioner_computation(tf.cast(count, tf.int32)),
    made.assign_preconditioner_to_host_vars(),
  ]


def schedule_values(params, steps) -> np.ndarray:
  """Returns the values of a Lingvo schedule at each of the steps.

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
