"""The registry of SeqIO tasks with the signature of t5's: `t5.data`."""

from collections.abc import Collection
from typing import Any

from adaptors import lingvo_runtime


class TaskRegistry:
  """SeqIO's registry; `add` takes the class of the task as well."""

  @classmethod
  def add(cls, name: str, task_cls: type | None = None, **fields) -> Any:
    """Registers a task in SeqIO; returns the task.

    Args:
      name: its name.
      task_cls: its class, `seqio.Task` by default.
      **fields: what the class takes.
    """
    seqio = lingvo_runtime.seqio()
    task = (task_cls or seqio.Task)(name, **fields)
    seqio.TaskRegistry.add_provider(name, task)
    return task

  @classmethod
  def get(cls, name: str) -> Any:
    """Returns a task by its name."""
    return lingvo_runtime.seqio().TaskRegistry.get(name)

  @classmethod
  def names(cls) -> Collection[str]:
    """Returns the names of all tasks."""
    return lingvo_runtime.seqio().TaskRegistry.names()
