"""A real Lingvo task in its own training graph, whose batches are fed.

It is the oracle that translations are held against, and the peer that speed is
measured against: Lingvo's own loss, gradients and train op, on given batches.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from adaptors import lingvo_runtime


@dataclasses.dataclass(frozen=True)
class FedTask:
  """A task whose training graph is built, and a session in which it runs.

  Attributes:
    task: the Lingvo task.
    session: a TensorFlow session; `start` comes first.
    feeds: the placeholders of the batch, by field.
  """

  task: Any
  session: Any
  feeds: dict[str, Any]

  def start(self):
    """Initialises the variables. What is added to the graph is added before."""
    tf = lingvo_runtime.module('lingvo.compat')
    self.session.run(tf.global_variables_initializer())

  def fed(self, batch: Mapping[str, np.ndarray]) -> dict:
    """Returns what to feed for a batch."""
    return {placeholder: batch[k] for k, placeholder in self.feeds.items()}


@contextlib.contextmanager
def build(
  task_params: Any, batch: Mapping[str, np.ndarray]
) -> Iterator[FedTask]:
  """Builds a task's training graph in Lingvo's graph mode.

  Args:
    task_params: Params of a Lingvo task, with its `input`, of which only the
      tokenizer is used. They are not changed.
    batch: a batch, whose fields, dtypes and ranks the fed ones have.

  Yields:
    The task, in its graph.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with contextlib.ExitStack() as stack:
      stack.enter_context(tf.Graph().as_default())
      stack.enter_context(lingvo_runtime.cluster())
      tf.random.set_seed(1)
      feeds = {
        k: tf.placeholder(v.dtype, [None] * v.ndim, k) for k, v in batch.items()
      }
      params = task_params.Copy()
      params.input = fed_input(task_params.input, feeds)
      model = base_model.SingleTaskModel.Params(params).Instantiate()
      model.ConstructFPropBPropGraph()
      session = stack.enter_context(tf.Session())
      yield FedTask(model.GetTask(), session, feeds)
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def fed_input(params, feeds):
  """Returns Params of an input that gives placeholders."""
  base = lingvo_runtime.module('lingvo.core.base_input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class FedInput(base.BaseSequenceInputGenerator):
    """Reads no files."""

    def CreateDatasource(self):
      pass

    def _InputBatch(self):
      return py_utils.NestedMap(feeds)

  return FedInput.Params().Set(
    name='fed', tokenizer=params.tokenizer.Copy(), file_pattern='none'
  )
