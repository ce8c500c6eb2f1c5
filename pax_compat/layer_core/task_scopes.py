"""Names of the models of tasks in a multi-task model, and of their weights."""


def scope_of(task: str) -> str:
  """Returns the name of a task's model in its parent.

  >>> scope_of('translate')
  'task_translate'
  """
  return f'task_{task}'
