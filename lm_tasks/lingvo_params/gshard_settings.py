"""Common settings of the experiments with Lingvo's gshard layers.

Device meshes, training settings and schedules for `synthetic_packed_input` and
`wiki_bert`.
"""

import numpy as np
from lingvo.core import gshard_utils, optimizer, program, schedule

# Devices are ordered by the mesh, not by their ids.
_DEVICE_ORDER_OF_MESH = 2


def mesh_by_rows(rows, columns):
  """Returns a device mesh with consecutive ids in rows."""
  return np.arange(rows * columns).reshape(rows, columns)


def mesh_by_columns(rows, columns):
  """Returns a device mesh with consecutive ids in columns."""
  return mesh_by_rows(columns, rows).T


def mesh_of_torus(rows, columns):
  """Returns a device mesh of rings, for a pod slice of two-core chips."""
  return gshard_utils.GetNonPod2dMesh([rows, columns], [rows, columns // 2, 2])


def train_with_adafactor(task, *, warmup_steps, max_steps, beta1=0.0):
  """Sets a task's training: Adafactor, with rate 1 / sqrt(step).

  Args:
    task: Params of the task.
    warmup_steps: number of first steps with a constant rate.
    max_steps: number of training steps.
    beta1: decay of the first moment; 0 for no first moment.
  """
  task.train.Set(
    tpu_device_order_mode=_DEVICE_ORDER_OF_MESH,
    learning_rate=1.0,
    lr_schedule=schedule.SqrtDecay.Params().Set(warmup_steps=warmup_steps),
    optimizer=optimizer.XLAShardingAdafactor.Params().Set(
      beta1=beta1,
      beta2=0.99,
      clipping_threshold=1.0,
      decay_exponent_pow=0.8,
    ),
    max_steps=max_steps,
  )


def program_schedule(*, steps_per_loop, loops_per_eval, eval_steps=None):
  """Returns a schedule of loops on the devices, partitioned by XLA.

  Args:
    steps_per_loop: training steps per loop on the devices.
    loops_per_eval: loops between evaluations.
    eval_steps: steps of an evaluation, by dataset.
  """
  eval_steps = eval_steps or {}
  p = program.SimpleProgramScheduleForTask(
    train_dataset_name='Train',
    train_steps_per_loop=steps_per_loop,
    eval_dataset_names=list(eval_steps),
    eval_steps_per_loop=list(eval_steps.values()) or 0,
    decode_steps_per_loop=0,
  )
  p.train_program.spmd = True
  p.train_executions_per_eval = loops_per_eval
  return p
