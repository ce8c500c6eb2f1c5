"""Two toy tasks, whose steps are easy to work out by hand, for tests.

Shapes: B rows of a batch, D dims of a task's weight.
"""

import jax.numpy as jnp
import numpy as np

from pax_compat import (
  base_experiment,
  base_input,
  base_model,
  learners,
  optimizers,
  schedules,
  tasks_lib,
)
from pax_compat.base_layer import WeightHParams
from pax_compat.inputs import multi_task_input
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import MultiTaskModel
from pax_compat.nested_map import NestedMap
from pax_compat.tasks import task_schedules

DIMS = {'short': 2, 'long': 3}
RATE = 0.1
EMA = 0.9


class Distance(base_model.BaseModel):
  """How far a weight is from a batch's points, with a count of train steps.

  Attributes:
    dims: of the weight.
  """

  dims: int = 2

  def setup(self):
    self.create_variable('w', WeightHParams([self.dims]))
    zero = WeightHParams([], init=WeightInit.Constant(0.0))
    self.create_variable('steps', zero, trainable=False)

  def compute_predictions(self, input_batch):
    if not self.do_eval:
      self.update_var('steps', self.get_var('steps') + 1)
    return input_batch.points - self.theta.w

  def compute_loss(self, predictions, input_batch):
    squares = jnp.sum(jnp.square(predictions), -1)
    rows = float(len(squares))
    loss = (jnp.mean(squares), rows)
    return {'loss': loss, 'rows': (jnp.array(rows), 1.0)}, {'square': squares}

  def decode(self, input_batch):
    out = NestedMap(gap=self.compute_predictions(input_batch))
    return {'rows': (jnp.array(1.0), 1.0)}, out, {}

  def process_decode_out(self, input_obj, decode_out):
    gaps = decode_out.gap
    host = decode_out.get('host_fields', {})
    names = host.get('name', [input_obj.name] * len(gaps))
    return {}, list(zip(names, gaps, strict=True)), {}


class Points(base_input.BaseInput):
  """Random points.

  Attributes:
    dims: of the points.
    batch_size: how many a batch has.
  """

  dims: int = 2
  batch_size: int = 4

  def __post_init__(self):
    super().__post_init__()
    self.number = 0

  def get_next(self):
    self.number += 1
    return points(self.dims, self.number)

  def reset(self):
    self.number = 0

  def resume_at(self, step):
    self.number = step


def points(dims: int, number: int) -> NestedMap:
  """Returns the batch of a number, from 1; its last row only fills it.

  The loss is of all rows nevertheless.
  """
  rng = np.random.default_rng(number)
  return NestedMap(
    points=rng.normal(size=[4, dims]).astype(np.float32),
    eval_sample_weights=np.array([1, 1, 1, 0], np.float32),
  )


def learner(**fields):
  """Returns a task's learner: Adam, L2 of 0.01, a rate that goes by steps."""
  optimizer = optimizers.Adam.config(
    learning_rate=RATE,
    l2_regularizer_weight=0.01,
    ema_decay=EMA,
    lr_schedule=schedules.Linear.config(start=(0, 1.0), limit=(10, 0.0)),
  )
  return learners.Learner.config(optimizer=optimizer, **fields)


def task(**train):
  """Returns the task of both tasks.

  Args:
    **train: fields of `tasks_lib.Train`.
  """
  made = tasks_lib.SingleTask.config(
    model=MultiTaskModel.config(
      tasks={name: Distance.config(dims=n) for name, n in DIMS.items()}
    )
  )
  made.train.set(
    learner=learners.MultiTaskLearner.config(
      learners={name: learner() for name in DIMS}
    ),
    **train,
  )
  made.evaluate.write_per_example_out = True
  return made


class TwoTasks(base_experiment.BaseExperiment):
  """Both tasks, drawn by weight, each evaluated and decoded by itself."""

  STEPS = 8

  def task(self):
    return task(
      num_train_steps=self.STEPS,
      save_interval_steps=4,
      summary_interval_steps=1,
      eval_interval_steps=4,
      decode_interval_steps=4,
    )

  def datasets(self):
    return [
      multi_task_input.MultiTaskInput.config(
        name='train',
        inputs={name: Points.config(dims=n) for name, n in DIMS.items()},
        schedule=task_schedules.TasksByWeight.config(
          weights=dict.fromkeys(DIMS, 1.0)
        ),
      ),
      *(self._held_out(name) for name in DIMS),
    ]

  def decode_datasets(self):
    return [self._held_out('short')]

  def _held_out(self, name):
    data = Points.config(dims=DIMS[name], eval_loop_num_batches=2)
    return multi_task_input.TaskInput.config(
      name=f'dev_{name}', task=name, input=data
    )
