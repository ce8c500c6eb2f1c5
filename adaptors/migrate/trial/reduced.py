"""A reduced copy of a Lingvo experiment, on synthetic batches."""

import dataclasses
from typing import Any

from adaptors.experiments.lingvo_experiment import LingvoExperiment
from adaptors.lingvo_parity import synthetic
from adaptors.params import shrinking
from pax_compat import base_input
from pax_compat.config import Config
from pax_compat.experiments import resolved
from pax_compat.inputs import multi_task_input
from pax_compat.nested_map import NestedMap

# The name of the dataset to evaluate.
HELD_OUT = 'Synthetic'


class SyntheticInput(base_input.BaseInput):
  """Returns synthetic batches of a Lingvo task in turn, without an end.

  Attributes:
    task_params: Params of the task, with its input.
    count: the number of different batches.
  """

  task_params: Any = None
  count: int = 1

  def __post_init__(self):
    super().__post_init__()
    self._batches: list[NestedMap] = []
    self._next = 0

  def get_next(self) -> NestedMap:
    if not self._batches:
      self._batches = synthetic.batches(self.task_params, self.count)
    self._next += 1
    return NestedMap(self._batches[(self._next - 1) % self.count])

  def reset(self):
    self._next = 0


def resolve(
  experiment: LingvoExperiment, name: str, steps: int
) -> resolved.ResolvedExperiment:
  """Returns a reduced experiment as the trainer takes it.

  It differs from the experiment in its sizes, in its data, and in the number of
  its steps; the task is evaluated once, after the last one.

  Args:
    experiment: the experiment.
    name: its name.
    steps: number of training steps.

  Raises:
    UserError: the experiment cannot run here.
  """
  small = experiment.reduced(shrinking.Sizes())
  found = resolved.resolve(small, name=name)
  task = found.task.clone()
  task.train.set(
    num_train_steps=steps,
    eval_interval_steps=0,
    eval_during_training=None,
    decode_interval_steps=None,
    summary_interval_steps=1,
  )
  task.set(early_stopping_fn=None)
  inputs = {
    own: SyntheticInput.config(
      name=own or 'Train', task_params=params, count=steps, is_training=True
    )
    for own, params in small.tasks().items()
  }
  [training] = found.train_datasets
  train = _training(training, inputs)
  held_out = tuple(_held_out(own, data) for own, data in inputs.items())
  return dataclasses.replace(
    found,
    task=task,
    datasets=(train, *held_out),
    train_datasets=(train,),
    eval_datasets=held_out,
    decode_datasets=(),
  )


def _training(config: Config, inputs: dict[str, Config]) -> Config:
  """Returns the training input, that of the experiment for several tasks."""
  if '' in inputs:
    return inputs['']
  return config.clone().set(inputs=inputs)


def _held_out(task: str, training: Config) -> Config:
  """Returns the input that is evaluated: the first batch of a task."""
  data = training.clone().set(
    name=f'{HELD_OUT}_{task}' if task else HELD_OUT,
    is_training=False,
    reset_for_eval=True,
    eval_loop_num_batches=1,
  )
  if not task:
    return data
  return multi_task_input.TaskInput.config(
    name=data.name, task=task, input=data
  )
