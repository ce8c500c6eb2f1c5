"""Made-up findings for tests of reports."""

from adaptors.migrate.findings import (
  Experiment,
  Input,
  Layer,
  Memory,
  Outcome,
  Status,
  Task,
)
from adaptors.translate.view import Issue

# A page must show this and not run it.
SCRIPT = '<script>document.title = "mine"</script>'


def issue(number: int = 0) -> Issue:
  """Returns an issue with the field of this number."""
  field = f'size_{number}'
  return Issue(
    f'task.lm.{field}', 'my.Lm', f'{SCRIPT} is not translated', field, SCRIPT
  )


def task(status: Status, issues: int = 0) -> Task:
  """Returns a task with `issues` issues."""
  child = Layer('x[0-2]', 'my.X', True, 30, count=3, becomes='lm/x')
  odd = Layer(SCRIPT, 'my.Odd', False, 12, issues=(issue(),))
  return Task(
    name='',
    class_path='my.Task',
    status=status,
    issues=tuple(map(issue, range(issues))),
    notes=(f'{SCRIPT} has no effect here',),
    advice=(f'do without {SCRIPT}',) if issues else (),
    sketch=f'# {SCRIPT}\n' if issues else '',
    layers=Layer('task', 'my.Task', not issues, 42, children=(child, odd)),
    parameters=42,
    memory=Memory(168, 8, 336, 168, 340, {'data': 1, 'mdl': 2}),
    checkpoints=Outcome(False, f'no slots of {SCRIPT}'),
  )


def experiment(
  name: str, status: Status = Status.NATIVE, issues: int = 0
) -> Experiment:
  """Returns an experiment of one task with `issues` issues."""
  if status is Status.IMPOSSIBLE:
    return Experiment(name, status, f'repair it: {SCRIPT}', f'{SCRIPT} is odd')
  return Experiment(
    name=name,
    status=status,
    next_step='run it',
    tasks=(task(status, issues),),
    inputs=(
      Input('Train', 'my.Input', 'records', SCRIPT, ((8, 16), (4, None)), ()),
    ),
    schedule=(f'every 5 steps it evaluates {SCRIPT}',),
  )
