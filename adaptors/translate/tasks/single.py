"""Translates a Lingvo task: its model and its training."""

import dataclasses
from collections.abc import Callable, Mapping

from adaptors.translate import registry
from adaptors.translate.training import (
  data_sources,
  learners,
  train_params,
  variational_noise,
)
from adaptors.translate.training.variable_layout import TaskFacts
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, Report, UntranslatedError
from pax_compat import config as config_lib
from pax_compat import tasks_lib

# Below this theta path a language model has its recurrent layers.
_LSTM_THETA = 'lm.rnns'
_LSTM_NORM = 'max_lstm_gradient_norm'


@dataclasses.dataclass(frozen=True)
class TranslatedTask:
  """A Lingvo task in JAX.

  Attributes:
    config: the config of a `tasks_lib.SingleTask`.
    variables: maps the JAX variables to the task's theta.
    notes: for the user: fields that were set in Lingvo and have no effect in
      JAX, or why the whole task is bridged.
    early_stop: config of the early stopping; None for none. The caller sets its
      `split` to the dataset's name.
    early_stop_job: Lingvo's name of the evaluation whose metric it reads.
  """

  config: config_lib.Config
  variables: VariableMap
  notes: tuple[str, ...]
  early_stop: config_lib.Config | None = None
  early_stop_job: str = ''


def translate_task(
  params,
  name: str,
  *,
  path: str = 'task',
  scope: str = '',
  bridge_part: Callable | None = None,
  bridges: Mapping[str, Callable] | None = None,
) -> TranslatedTask:
  """Translates the Params of a Lingvo `BaseTask`.

  Args:
    params: the task's Params; they are not changed.
    name: of the experiment, for messages.
    path: of the task's Params, for messages.
    scope: prefix of Lingvo's variable names, such as `tag/`, if the task is one
      of several.
    bridge_part: see `Report`.
    bridges: see `Report`.

  Returns:
    The task in JAX, with its variables.

  Raises:
    UserError: something cannot be translated; the message lists every such
      field with its path, class and value.
  """
  report = Report(bridge_part=bridge_part, bridges=bridges or {})
  view = ParamsView(params.Copy(), path, report)
  train_view = view.group('train')
  view.ignore("it concerns TensorFlow's programs only", 'ml_perf')
  view.ignore('evaluations run over the whole of each dataset', 'eval')
  for field in ('vn', 'input', 'defer_global_step_update'):
    view.get(field)  # `facts_of` and `variational_noise` read them.
  for field in ('vn_std', 'vn_start_step'):
    train_view.get(field)
  model = registry.translate(view)
  variables = VariableMap() if model is None else model.variables
  trained = variables.only(is_trainable=True)
  names = VariableNames(params, trained, scope, report)
  facts = facts_of(view, names, variables)
  try:
    batches = train_params.batches_per_step(train_view, facts.defers_steps)
    train = train_params.train(train_view, facts)
    noise = variational_noise.translate(view, train_view, names, batches)
  except Exception as error:
    # An error caused by an earlier issue is not reported again.
    if not report.issues:
      train_view.issue('', registry.unreadable(error))
  if report.issues:
    raise UntranslatedError(describe(name, report), report.issues)
  report.log(name)
  config = tasks_lib.SingleTask.config(
    name=name, model=model.config, train=train.config
  )
  if noise is not None:
    config.set(vn=noise)
  return TranslatedTask(
    config=config,
    variables=variables,
    notes=tuple(report.notes),
    early_stop=train.early_stop,
    early_stop_job=train.early_stop_job,
  )


def facts_of(
  view: ParamsView, names: VariableNames, variables: VariableMap
) -> TaskFacts:
  """Returns the metadata of a task that its learners need.

  Args:
    view: the task's Params; its input and `train` are read.
    names: of its weights.
    variables: all of its variables.
  """
  train = view.group('train')
  norm = train.get(_LSTM_NORM) if _LSTM_NORM in train.params else 0
  return TaskFacts(
    names=names,
    clipped_theta=_LSTM_THETA,
    clipped_norm=float(norm),
    defers_steps=_defers_steps(view, train),
    sparse_tables=frozenset(v.jax for v in names.variables if v.is_sparse),
    may_have_others=view.report.bridge_part is not None,
    trained_by_source=data_sources.trained_weights(view, names),
    not_trained=variables.only(is_trainable=False),
  )


def _defers_steps(view: ParamsView, train: ParamsView) -> bool:
  """Whether the global step counts only updates of weights."""
  defers = view.get('defer_global_step_update')
  if defers and min(learners.all_micro_batches(train.params)) <= 1:
    view.issue(
      'defer_global_step_update',
      'the global step never grows unless the optimizer has num_micro_batches'
      ' above 1',
    )
  return defers


def describe(name: str, report: Report) -> str:
  """Returns the message with all issues of a report."""
  issues = sorted(set(map(str, report.issues)))
  return '\n'.join(
    [
      f'{name} cannot be translated to JAX, for {len(issues)} reason(s):',
      *(f'  {issue}' for issue in issues),
    ]
  )
