"""Finds out about one experiment all that a report says of it.

What goes wrong with one part is told in its place; the others are still there.
"""

from collections.abc import Callable, Iterator
from typing import Any

from adaptors import lingvo_runtime
from adaptors.checkpoints import task_metadata
from adaptors.experiments import lingvo_source
from adaptors.migrate.examine import (
  advice,
  inputs,
  layer_trees,
  memory,
  routes,
  schedules,
  tracing,
)
from adaptors.migrate.examine.routes import Way, told
from adaptors.migrate.findings import (
  Experiment,
  Layer,
  Outcome,
  Status,
  Task,
)
from adaptors.translate.view import class_path
from pax_compat import errors, experiment_sources

# How TensorFlow and Python say that a file is not there.
_MISSING_FILE = 'No such file or directory'


def examine(
  name: str,
  options: experiment_sources.SourceOptions,
  *,
  traces: bool = False,
) -> Experiment:
  """Returns what is found out about an experiment; it raises nothing.

  Args:
    name: in the registry.
    options: of finding experiments.
    traces: whether the tasks are traced, which takes longer.
  """
  try:
    experiment = lingvo_source.find(name, options)
    if experiment is None:
      raise errors.UserError(f'no experiment of Lingvo is called {name!r}')
    params = experiment.model_params()
    tasks = tuple(_tasks(params, name, traces))
  except (Exception, SystemExit) as error:  # It is the user's code that runs.
    return _impossible(name, told(error))
  status = Status.of_all(task.status for task in tasks)
  problem = '\n'.join(task.problem for task in tasks if task.problem)
  if len(tasks) > 1 and status is not Status.IMPOSSIBLE:
    problem = _or_problem(lambda: experiment.translated, '')[1]
    status = Status.IMPOSSIBLE if problem else status
  found, inputs_problem = _or_problem(
    lambda: inputs.of(experiment.datasets()), ()
  )
  schedule, schedule_problem = _or_problem(
    lambda: schedules.of(experiment.registered, name), ()
  )
  if schedule_problem:
    status, problem = Status.IMPOSSIBLE, problem or schedule_problem
  return Experiment(
    name=name,
    status=status,
    next_step=_next_step(status, problem, tasks),
    problem=problem,
    tasks=tasks,
    inputs=found,
    inputs_problem=inputs_problem,
    schedule=schedule,
  )


def _impossible(name: str, problem: str) -> Experiment:
  return Experiment(
    name=name,
    status=Status.IMPOSSIBLE,
    next_step=_next_step(Status.IMPOSSIBLE, problem, ()),
    problem=problem,
  )


def _or_problem(find: Callable[[], Any], default: Any) -> tuple[Any, str]:
  """Returns what is found, and what went wrong, of which one is empty."""
  try:
    return find(), ''
  except Exception as error:  # It is the user's code that runs here.
    return default, told(error)


def _tasks(params: Any, name: str, traces: bool) -> Iterator[Task]:
  """Yields the tasks of a model."""
  base = lingvo_runtime.module('lingvo.core.base_model')
  if not issubclass(params.cls, base.MultiTaskModel):
    own = params.task.Copy()
    own.input = own.input or params.input.Copy()
    yield _task('', own, name, 'task', traces)
    return
  for task, template in sorted(params.task_params.IterParams()):
    own = template.Copy()
    own.input = params.input.Get(task).Copy()
    yield _task(task, own, name, f'task_params.{task}', traces)


def _task(task: str, params: Any, name: str, path: str, traces: bool) -> Task:
  way = routes.find(params, name, path)
  status, problem, traced = way.status, way.problem, None
  if traces and way.translated is not None:
    traced = tracing.trace(way)
    if traced.works is False:
      status, problem = Status.IMPOSSIBLE, traced.text
  variables, unknown = _or_problem(
    lambda: memory.variables_of(way) if way.translated else None, None
  )
  layers, no_layers = _or_problem(lambda: _layers(way, variables), None)
  held, misfit = None, ''
  if variables is not None:
    held, misfit = _or_problem(
      lambda: memory.estimate(way.translated.config, variables), None
    )
  return Task(
    name=task,
    class_path=class_path(params.cls),
    status=status,
    problem=problem,
    issues=way.issues,
    notes=way.translated.notes if way.translated else (),
    advice=advice.of(params, way.issues, layers) if way.issues else (),
    sketch=advice.sketch(params) if way.issues else '',
    layers=layers,
    parameters=layers.parameters if layers else None,
    memory=held,
    memory_problem=unknown or no_layers,
    misfit=misfit,
    checkpoints=_checkpoints(way),
    trace=traced,
  )


def _layers(way: Way, variables: Any) -> Layer | None:
  if way.translated is None:
    return None
  if way.status is not Status.NATIVE or variables is None:
    return layer_trees.of_built(way.built.task, way.issues)
  return layer_trees.of_variables(
    way.params, way.translated.variables, memory.sizes(variables)
  )


def _checkpoints(way: Way) -> Outcome | None:
  """Returns whether Lingvo's checkpoints of a task can come in."""
  if way.translated is None:
    return None
  _, problem = _or_problem(
    lambda: task_metadata.check(way.params, way.translated), None
  )
  return Outcome(not problem, problem or "Lingvo's can come in, and go out")


def _next_step(status: Status, problem: str, tasks) -> str:
  """Says in a line what to do next."""
  if status is Status.IMPOSSIBLE:
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    more = f' (and {len(lines) - 2} more)' if len(lines) > 2 else ''
    what = 'put it in place' if _MISSING_FILE in problem else 'repair it'
    return f'{what}: {" ".join(lines[:2])}{more}'
  misfit = next((t.misfit for t in tasks if t.misfit), '')
  if misfit:
    return f'give it another mesh: {misfit}'
  if status is Status.NATIVE:
    return 'run it'
  [first, *others] = [i for t in tasks for i in advice.in_short(t.issues)]
  more = f', and {len(others)} more' if others else ''
  return f'run it as it is, or make it native: {first}{more}'
