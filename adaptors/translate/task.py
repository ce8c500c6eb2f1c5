"""Translates a whole Lingvo task: its model and how it is trained."""

import dataclasses

from absl import logging

from adaptors.translate import registry, training
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, Report
from pax_compat import config as config_lib
from pax_compat import errors, tasks_lib


@dataclasses.dataclass(frozen=True)
class TranslatedTask:
  """A Lingvo task in JAX.

  Attributes:
    config: the config of a `tasks_lib.SingleTask`.
    variables: which JAX variable is which of the task's theta.
    notes: fields that were set in Lingvo and have no effect in JAX.
  """

  config: config_lib.Config
  variables: VariableMap
  notes: tuple[str, ...]


def translate_task(params, name: str) -> TranslatedTask:
  """Translates the Params of a Lingvo `BaseTask`.

  Args:
    params: the task's Params; they are not changed.
    name: of the experiment, for messages.

  Returns:
    The task in JAX, with its variables.

  Raises:
    UserError: something has no translation; the message lists every such
      field, with its path, class and value.
  """
  report = Report()
  view = ParamsView(params.Copy(), 'task', report)
  train_view = view.group('train')
  for field in _TASK_FIELDS_OF_TENSORFLOW:
    view.ignore("it concerns TensorFlow's programs only", field)
  view.get('input')  # The experiment reads it for each dataset.
  view.ignore('evaluations run over the whole of each dataset', 'eval')
  model = registry.translate(view)
  if 'max_lstm_gradient_norm' in train_view.params:
    train_view.require('max_lstm_gradient_norm', 0.0)
  train = training.train(train_view)
  if report.issues:
    raise errors.UserError(_describe(name, report))
  for note in report.notes:
    logging.info('%s: %s', name, note)
  config = tasks_lib.SingleTask.config(
    name=name, model=model.config, train=train
  )
  return TranslatedTask(config, model.variables, tuple(report.notes))


_TASK_FIELDS_OF_TENSORFLOW = ('defer_global_step_update', 'ml_perf')


def _describe(name: str, report: Report) -> str:
  issues = sorted(set(map(str, report.issues)))
  return '\n'.join(
    [
      f'{name} cannot be translated to JAX, for {len(issues)} reason(s):',
      *(f'  {issue}' for issue in issues),
    ]
  )
