"""LeNet5 whose convolutions have batch norm."""

from tests.adaptors.bridge.families import lenet5

batch = lenet5.batch


def task_params():
  """Returns Params of the task."""
  return lenet5.task_params(batch_norm=True)
