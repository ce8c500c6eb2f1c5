"""Runs of a tiny task in Lingvo that leave real TensorFlow checkpoints."""

from adaptors import lingvo_fed_task, lingvo_runtime


def train(task_params, data, folder) -> dict[int, dict]:
  """Trains in graph mode; a checkpoint after each step, as Lingvo writes it.

  Args:
    task_params: of Lingvo.
    data: a batch for each step.
    folder: of the checkpoints.

  Returns:
    The weights after each number of steps, by theta path.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  weights = {}
  with lingvo_fed_task.build(task_params, data[0]) as made:
    variables = dict(made.task.vars.FlattenItems())
    saver = tf.train.Saver(
      sharded=True, max_to_keep=len(data), pad_step_number=True
    )
    made.start()
    for step, batch in enumerate(data, 1):
      made.session.run(made.task.train_op, made.fed(batch))
      saver.save(made.session, str(folder / 'ckpt'), global_step=step)
      weights[step] = made.session.run(variables)
  return weights


def train_eagerly(task_params, batch, folder, version) -> dict:
  """Trains in eager mode for two steps and saves a checkpoint.

  Args:
    task_params: of Lingvo.
    batch: of both steps.
    folder: of the checkpoint.
    version: 'V1', by names, or 'V2', by objects.

  Returns:
    The weights after the last step, by theta path.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  checkpointer = lingvo_runtime.module('lingvo.core.checkpointer')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(True, test_mode=True)
  try:
    with lingvo_runtime.cluster():
      params = task_params.Copy()
      params.input = lingvo_fed_task.fed_input(
        task_params.input, {k: tf.constant(v) for k, v in batch.items()}
      )
      model = base_model.SingleTaskModel.Params(params).Instantiate()
      step = tf.function(model.ConstructFPropBPropGraph, autograph=False)
      step()
      step()
      saver = getattr(checkpointer, f'EagerCheckpointer{version}')(
        str(folder), [model], train_params=params.train
      )
      saver.Save(gsteps=2)
      variables = model.GetTask().vars.FlattenItems()
      return {path: v.numpy() for path, v in variables}
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)
