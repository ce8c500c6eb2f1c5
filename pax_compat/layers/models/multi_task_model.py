"""A model of several tasks, with a separate model for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from pax_compat import base_model, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.input_core import host_fields
from pax_compat.layer_core import child_layers
from pax_compat.layer_core.task_scopes import scope_of
from pax_compat.nested_map import NestedMap

_LOSS = 'loss'


class MultiTaskModel(base_model.BaseModel):
  """The models of several tasks.

  Tasks do not share layers. A variable that several tasks have in common exists
  once for each, with the same value; see `tied`.

  A batch is {task: batch of the task} for one task; initialisation takes a
  batch of every task. `inputs.multi_task` has inputs of such batches, and
  `learners.MultiTaskLearner` trains the task of the batch; the other tasks skip
  the step. A step is compiled for each task.

  Metrics and per-example outputs are named `<task>/<name>`; `loss` is that of
  the batch's task.

  Attributes:
    tasks: the tasks' models by name. A name has letters, digits and `_`.
    tied: groups of names of variables, such as `params/task_a/encoder/w`, that
      have the same value. The learner must have the same groups.

  Raises:
    UserError: a name has other characters, or two models share a config, and
      so a layer.
  """

  tasks: Mapping[str, Config] = REQUIRED
  tied: Sequence[Sequence[str]] = ()

  def setup(self):
    seen: dict[int, str] = {}
    for task, tpl in self.tasks.items():
      if not task.replace('_', '').isalnum():
        raise errors.UserError(
          f'MultiTaskModel.tasks has {task!r}; only letters, digits and _ are'
          ' allowed in a name'
        )
      if id(tpl) in seen:
        raise errors.UserError(
          f'MultiTaskModel.tasks: {seen[id(tpl)]!r} and {task!r} are one'
          ' config, and so one layer, but tasks cannot share weights; use its'
          ' clone() for a separate model'
        )
      seen[id(tpl)] = task
      child_layers.keep_apart(self, scope_of(task), tpl)
      self.create_child(scope_of(task), tpl)

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    if len(input_batch) != 1 and not self.is_initializing():
      raise errors.UserError(
        'a batch of a MultiTaskModel has'
        f' {", ".join(sorted(input_batch)) or "no task"}'
        '; expected one task'
      )
    predictions = {
      task: self._model_of(task).compute_predictions(batch)
      for task, batch in input_batch.items()
    }
    if self.is_initializing():
      self._tie()
    else:
      for task in set(self.tasks) - set(input_batch):
        self._model_of(task).skip_step()
    return predictions

  def _tie(self):
    """Makes the initial values of tied variables equal."""
    for first, *others in self.tied:
      collection, *path = first.split('/')
      value = self._scope_of(path).get_variable(collection, path[-1])
      for other in others:
        collection, *path = other.split('/')
        self._scope_of(path).put_variable(collection, path[-1], value)

  def _scope_of(self, path: Sequence[str]):
    scope = self.scope
    for name in path[:-1]:
      scope = scope.push(name, reuse=True)
    return scope

  def after_update(self, input_batch: NestedMap):
    for task, batch in input_batch.items():
      self._model_of(task).after_update(batch)

  def compute_loss(self, predictions: Any, input_batch: NestedMap):
    metrics, per_example = {}, {}
    for task, batch in input_batch.items():
      model = self._model_of(task)
      of_task, outputs = model.compute_loss(predictions[task], batch)
      if self.is_initializing() and not of_task:
        continue  # A bridged model only creates its variables.
      if _LOSS not in of_task:
        raise errors.UserError(
          f'the model of the task {task!r} has no metric {_LOSS!r}, which is'
          f' minimised{errors.did_you_mean(_LOSS, of_task)}'
        )
      metrics |= _named(task, of_task) | {_LOSS: of_task[_LOSS]}
      per_example |= _named(task, outputs)
    return metrics, per_example

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    [(task, batch)] = input_batch.items()
    weighted, decoded, clu = self._model_of(task).decode(batch)
    return _named(task, weighted), decoded, _named(task, clu)

  def process_decode_out(self, input_obj, decode_out):
    task = input_obj.task
    model = self.tasks[task].build({})  # Without a parent.
    if host_fields.NAME in decode_out:
      own = decode_out[host_fields.NAME].items()
      own = {path.removeprefix(f'{task}.'): x for path, x in own}
      decode_out = NestedMap({**decode_out, host_fields.NAME: NestedMap(own)})
    weighted, pairs, clu = model.process_decode_out(
      input_obj.source, decode_out
    )
    return _named(task, weighted), pairs, _named(task, clu)

  @property
  def counts_padding_rows(self):
    """Whether a task's metrics may; see `BaseModel`."""
    return any(
      tpl.Instantiate().counts_padding_rows for tpl in self.tasks.values()
    )

  def _model_of(self, task: str) -> base_model.BaseModel:
    if task not in self.tasks:
      raise errors.UserError(
        f'a batch is of the task {task!r}, which is not in MultiTaskModel.tasks'
        + errors.did_you_mean(task, self.tasks)
      )
    return getattr(self, scope_of(task))


def _named(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
  return {f'{task}/{name}': value for name, value in values.items()}
