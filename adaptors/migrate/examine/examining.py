"""Examines an experiment for a report.

An error in one section of the report does not affect the others.
"""

from collections.abc import Callable, Iterator
from typing import Any

from adaptors.checkpoints import task_metadata
from adaptors.experiments import lingvo_source
from adaptors.experiments.lingvo_experiment import LingvoExperiment
from adaptors.lingvo_registry import differing_classes, mounts
from adaptors.migrate.examine import (
  advice,
  inputs,
  layer_trees,
  memory,
  routes,
  schedules,
  tracing,
)
from adaptors.migrate.examine.routes import Route, describe_error
from adaptors.migrate.findings import (
  Experiment,
  Layer,
  Outcome,
  Status,
  Task,
)
from adaptors.translate.view import class_path
from pax_compat import errors, experiment_sources

# Of errors about missing files, in TensorFlow and Python.
_MISSING_FILE = 'No such file or directory'


def examine(
  name: str,
  options: experiment_sources.SourceOptions,
  *,
  traces: bool = False,
) -> Experiment:
  """Returns the findings about an experiment; it does not raise.

  Args:
    name: in the registry.
    options: for finding experiments.
    traces: whether to trace a training step of each task (slow).
  """
  try:
    experiment = lingvo_source.find(name, options)
    if experiment is None:
      raise errors.UserError(f'no experiment of Lingvo is called {name!r}')
    tasks = tuple(_tasks(experiment, name, traces))
  except (Exception, SystemExit) as error:  # User code runs here.
    return _impossible(name, describe_error(error))
  problems = [task.problem for task in tasks if task.problem]
  if not problems:
    # What the run asks for first.
    problems.append(_or_error(experiment.task, None)[1])
  datasets, inputs_problem = _or_error(experiment.datasets, [])
  found, unknown = _or_error(lambda: inputs.of(datasets), ())
  schedule, schedule_problem = _or_error(
    lambda: schedules.of(experiment.registered, name), ()
  )
  problems = [*problems, inputs_problem, schedule_problem]
  problem = '\n'.join(dict.fromkeys(filter(None, problems)))
  status = Status.worst(task.status for task in tasks)
  if problem:
    status = Status.IMPOSSIBLE
  return Experiment(
    name=name,
    status=status,
    next_step=_next_step(status, problem, tasks),
    problem=problem,
    tasks=tasks,
    inputs=found,
    inputs_problem=inputs_problem or unknown,
    schedule=schedule,
  )


def _impossible(name: str, problem: str) -> Experiment:
  return Experiment(
    name=name,
    status=Status.IMPOSSIBLE,
    next_step=_next_step(Status.IMPOSSIBLE, problem, ()),
    problem=problem,
  )


def _or_error(find: Callable[[], Any], default: Any) -> tuple[Any, str]:
  """Returns (result, '') or, after an error, (default, message)."""
  try:
    return find(), ''
  except Exception as error:  # User code runs here.
    return default, describe_error(error)


def _tasks(
  experiment: LingvoExperiment, name: str, traces: bool
) -> Iterator[Task]:
  """Yields the tasks of a model."""
  for task, params in experiment.tasks().items():
    if task:
      model = experiment.model_params()
      route = routes.of_several(model, task, params, name)
    else:
      route = routes.of(experiment)
    yield _task(task, route, traces)


def _task(name: str, route: Route, traces: bool) -> Task:
  params = route.params
  status, problem, traced = route.status, route.problem, None
  if traces and route.translated is not None:
    traced = tracing.trace(route)
    if traced.works is False:
      status, problem = Status.IMPOSSIBLE, traced.text
  variables, unknown = _or_error(
    lambda: memory.variables_of(route) if route.translated else None, None
  )
  layers, no_layers = _or_error(lambda: _layers(route, variables), None)
  held, misfit = None, ''
  if variables is not None:
    held, misfit = _or_error(
      lambda: memory.estimate(route.translated.config, variables), None
    )
  return Task(
    name=name,
    class_path=class_path(params.cls),
    status=status,
    problem=problem,
    issues=route.issues,
    notes=tuple(_notes(route)),
    advice=advice.of(params, route.issues, layers) if route.issues else (),
    sketch=advice.sketch(params) if route.issues else '',
    layers=layers,
    parameters=layers.parameters if layers else None,
    memory=held,
    memory_problem=unknown or no_layers,
    misfit=misfit,
    checkpoints=_checkpoints(route),
    trace=traced,
  )


def _notes(route: Route) -> Iterator[str]:
  """Yields remarks on a task."""
  yield from differing_classes.described(route.params, mounts.checkout())
  if route.translated:
    yield from route.translated.notes


def _layers(route: Route, variables: Any) -> Layer | None:
  if route.translated is None:
    return None
  if route.status is not Status.NATIVE or variables is None:
    return layer_trees.of_built(route.built.task, route.issues)
  return layer_trees.of_variables(
    route.params, route.translated.variables, memory.sizes(variables)
  )


def _checkpoints(route: Route) -> Outcome | None:
  """Returns whether Lingvo's checkpoints of a task can be imported."""
  if route.translated is None:
    return None
  _, problem = _or_error(
    lambda: task_metadata.check(route.params, route.translated), None
  )
  return Outcome(not problem, problem or 'import and export work')


def _next_step(status: Status, problem: str, tasks) -> str:
  """Returns what to do next, in a line with all reasons."""
  if status is Status.IMPOSSIBLE:
    what = 'provide the file' if _MISSING_FILE in problem else 'repair it'
    return f'{what}: {" ".join(problem.split())}'
  misfit = next((t.misfit for t in tasks if t.misfit), '')
  if misfit:
    return f'use another mesh: {misfit}'
  if status is Status.NATIVE:
    return 'run it'
  changes = [i for t in tasks for i in advice.brief(t.issues)]
  return f'run it as it is, or make it native: {"; ".join(changes)}'
