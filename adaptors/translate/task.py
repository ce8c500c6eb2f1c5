"""Translates a whole Lingvo task: its model and how it is trained."""

import dataclasses

from absl import logging

from adaptors.translate import (
  learners,
  registry,
  training,
  variational_noise,
)
from adaptors.translate.as_in_lingvo import TaskFacts
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, Report
from pax_compat import config as config_lib
from pax_compat import errors, tasks_lib

# Below this theta path a language model has its recurrent layers.
_LSTM_THETA = 'lm.rnns'
_LSTM_NORM = 'max_lstm_gradient_norm'


@dataclasses.dataclass(frozen=True)
class TranslatedTask:
  """A Lingvo task in JAX.

  Attributes:
    config: the config of a `tasks_lib.SingleTask`.
    variables: which JAX variable is which of the task's theta.
    notes: fields that were set in Lingvo and have no effect in JAX.
    early_stop: config of what may end a run early; None for nothing. Its
      `split` is yet to be set, by the name that the dataset has here.
    early_stop_job: the evaluation that this goes by, as Lingvo calls it.
  """

  config: config_lib.Config
  variables: VariableMap
  notes: tuple[str, ...]
  early_stop: config_lib.Config | None = None
  early_stop_job: str = ''


def translate_task(
  params, name: str, *, path: str = 'task', scope: str = ''
) -> TranslatedTask:
  """Translates the Params of a Lingvo `BaseTask`.

  Args:
    params: the task's Params; they are not changed.
    name: of the experiment, for messages.
    path: where the task's Params stand, for messages.
    scope: what the names of Lingvo's variables begin with, such as `tag/`,
      where the task is one of several.

  Returns:
    The task in JAX, with its variables.

  Raises:
    UserError: something has no translation; the message lists every such
      field, with its path, class and value.
  """
  report = Report()
  view = ParamsView(params.Copy(), path, report)
  train_view = view.group('train')
  view.ignore("it concerns TensorFlow's programs only", 'ml_perf')
  view.ignore('evaluations run over the whole of each dataset', 'eval')
  _check_input(view)
  view.group('vn')  # `variational_noise` reads it.
  defers_steps = _defers_steps(view, train_view)
  model = registry.translate(view)
  variables = VariableMap() if model is None else model.variables
  norm = train_view.get(_LSTM_NORM) if _LSTM_NORM in train_view.params else 0
  names = VariableNames(params, variables, scope)
  try:
    batches = training.batches_per_step(train_view, defers_steps)
    noise = variational_noise.translate(view, train_view, names, batches)
    train = training.train(
      train_view,
      TaskFacts(
        names=names,
        clipped_theta=_LSTM_THETA,
        clipped_norm=float(norm),
        defers_steps=defers_steps,
        sparse_tables=frozenset(v.jax for v in variables if v.is_sparse),
      ),
    )
  except Exception as error:
    # What is the matter with a part makes others fail.
    if not report.issues:
      train_view.issue('', registry.unreadable(error))
  if report.issues:
    raise errors.UserError(describe(name, report))
  for note in report.notes:
    logging.info('%s: %s', name, note)
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


def _check_input(view: ParamsView):
  """Reads the input, as far as it has to do with training.

  The experiment reads it for each dataset.
  """
  data = view.get('input')
  for path, params in _sources(data, 'input'):
    if 'bprop_variable_filters' in params and params.bprop_variable_filters:
      view.issue(
        f'{path}.bprop_variable_filters',
        'gradients that depend on where an example comes from are not'
        ' translated',
      )


def _sources(params, path: str):
  """Yields the Params of an input and of its data sources, with paths."""
  if params is None or not hasattr(params, 'IterParams'):
    return
  yield path, params
  for name in ('file_datasource', 'sub'):
    found = params.Get(name) if name in params else None
    for one in found if isinstance(found, list | tuple) else [found]:
      yield from _sources(one, f'{path}.{name}')


def _defers_steps(view: ParamsView, train: ParamsView) -> bool:
  """Whether the global step grows with updates of weights only."""
  defers = view.get('defer_global_step_update')
  if defers and min(learners.all_micro_batches(train.params)) <= 1:
    view.issue(
      'defer_global_step_update',
      'without an optimizer of several num_micro_batches the global step never'
      ' grows',
    )
  return defers


def describe(name: str, report: Report) -> str:
  """Says for which reasons something cannot be translated."""
  issues = sorted(set(map(str, report.issues)))
  return '\n'.join(
    [
      f'{name} cannot be translated to JAX, for {len(issues)} reason(s):',
      *(f'  {issue}' for issue in issues),
    ]
  )
