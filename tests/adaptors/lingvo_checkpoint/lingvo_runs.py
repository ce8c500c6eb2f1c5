"""Runs of a tiny task in Lingvo that leave real TensorFlow checkpoints."""

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from tests.adaptors.translate import lingvo_steps, tiny_model

# Steps for which optimizing the graph does not pay off.
_FEW = 20


def train(
  task_params,
  data,
  folder,
  *,
  restored=None,
  every=1,
  static_shapes=False,
  loop_steps=None,
) -> dict[int, dict]:
  """Trains in graph mode and saves checkpoints, as Lingvo.

  Args:
    task_params: of Lingvo.
    data: a batch for each step.
    folder: of the checkpoints.
    restored: prefix of the checkpoint to start from; None for new weights.
    every: the number of steps between checkpoints.
    static_shapes: whether Lingvo needs the shapes of the batches.
    loop_steps: as of `lingvo_steps.optimizer_steps`; a loop starts anew.

  Returns:
    The variables at each checkpoint, by theta path, by the number of steps.
  """
  with fed_task.build(
    task_params,
    data[0],
    static_shapes=static_shapes,
    optimized=len(data) > _FEW,
  ) as made:
    variables = dict(made.task.vars.FlattenItems())
    saver = _Saver(made.session, variables, folder, restored, every)
    end = []
    if loop_steps:
      py_utils = lingvo_runtime.module('lingvo.core.py_utils')
      [learner] = made.task.learners
      end = lingvo_steps.preconditioned(
        learner.optimizer, py_utils.GetGlobalStep()
      )
    made.start()
    for i, batch in enumerate(data):
      ops = [made.task.train_op]
      if loop_steps and (i + 1) % loop_steps == 0:
        ops += end
      saver.step(ops, made.feed_dict(batch))
  return saver.values


def train_several(
  model_params, data, folder, *, restored=None
) -> dict[int, dict]:
  """Trains a model of several tasks, as `train`.

  Args:
    model_params: of `tiny_model`.
    data: the task and the batch of each step.
    folder: of the checkpoints.
    restored: as of `train`.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  built = tiny_model.built_in_lingvo(model_params, data[0][1])
  with (
    built as (model, feeds),
    fed_task.session(optimized=False) as session,
  ):
    saver = _Saver(session, tiny_model.variables(model), folder, restored)
    session.run(tf.global_variables_initializer())
    for task, batch in data:
      feed = {feeds[task][k]: batch[k] for k in batch}
      saver.step([model.GetTask(task).train_op], feed)
  return saver.values


class _Saver:
  """Makes steps, and checkpoints.

  Attributes:
    values: of variables at each checkpoint, by the number of steps.
  """

  def __init__(self, session, variables, folder, restored, every=1):
    tf = lingvo_runtime.module('lingvo.compat')
    self.values = {}
    self._session = session
    self._variables = variables
    self._folder = folder
    self._restored = restored
    self._every = every
    self._saver = tf.train.Saver(
      sharded=True, max_to_keep=None, pad_step_number=True
    )
    self._step = 0

  def step(self, ops, feed):
    """Makes a step, with ops in turn, and a checkpoint if it is time."""
    if self._restored:
      self._saver.restore(self._session, self._restored)
      self._restored = None
    for op in ops:
      self._session.run(op, feed)
    self._step += 1
    if self._step % self._every:
      return
    self._saver.save(
      self._session, str(self._folder / 'ckpt'), global_step=self._step
    )
    self.values[self._step] = self._session.run(self._variables)


def train_eagerly(task_params, batch, folder, version) -> tuple[dict, int]:
  """Trains in eager mode for two steps and saves a checkpoint.

  Args:
    task_params: of Lingvo.
    batch: of both steps.
    folder: of the checkpoint.
    version: 'V1', by names, or 'V2', by objects.

  Returns:
    The weights after the last step, by theta path, and the global step, which
    all runs of a process share in eager mode.
  """
  base_model = lingvo_runtime.module('lingvo.core.base_model')

  def made():
    params = task_params.Copy()
    params.input = _fed_eagerly(task_params.input, batch)
    return base_model.SingleTaskModel.Params(params).Instantiate()

  def variables(model):
    return dict(model.GetTask().vars.FlattenItems())

  return _train_eagerly(made, variables, folder, version)


def train_several_eagerly(
  model_params, batch, folder, version
) -> tuple[dict, int]:
  """Trains a model of several tasks, all in each step, as `train_eagerly`."""

  def made():
    params = model_params.Copy()
    for task, data in list(params.input.IterParams()):
      params.input.Set(**{task: _fed_eagerly(data, batch)})
    return params.Instantiate()

  return _train_eagerly(made, tiny_model.variables, folder, version)


def _fed_eagerly(data, batch):
  """Returns Params of an input that gives a batch."""
  tf = lingvo_runtime.module('lingvo.compat')
  constants = {k: tf.constant(v) for k, v in batch.items()}
  return fed_task.fed_input(data, constants)


def _train_eagerly(made, variables, folder, version):
  """Trains what `made` makes, and saves it; see `train_eagerly`."""
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  checkpointer = lingvo_runtime.module('lingvo.core.checkpointer')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(True, test_mode=True)
  try:
    with lingvo_runtime.cluster():
      model = made()
      step = tf.function(model.ConstructFPropBPropGraph, autograph=False)
      step()
      step()
      saver = getattr(checkpointer, f'EagerCheckpointer{version}')(
        str(folder), [model], train_params=model.params.train
      )
      saver.Save(gsteps=2)
      weights = {path: v.numpy() for path, v in variables(model).items()}
      return weights, int(py_utils.GetGlobalStep().numpy())
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)
