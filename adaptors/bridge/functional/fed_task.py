"""A real Lingvo task in its own training graph, whose batches are fed.

It is the oracle that translations are held against, and the peer that speed is
measured against: Lingvo's own loss, gradients and train op, on given batches.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.params import params_trees


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

  @property
  def variables(self) -> dict[str, Any]:
    """The task's variables by theta path, less those of its learners.

    Some of Lingvo's optimizers are layers with variables of their own.
    """
    return {
      path: variable
      for path, variable in self.task.vars.FlattenItems()
      if not path.startswith('learners[')
    }

  def start(self):
    """Initialises the variables. What is added to the graph is added before."""
    tf = lingvo_runtime.module('lingvo.compat')
    self.session.run(tf.global_variables_initializer())

  def feed_dict(self, batch: Mapping[str, np.ndarray]) -> dict:
    """Returns what to feed for a batch."""
    return {placeholder: batch[k] for k, placeholder in self.feeds.items()}


@contextlib.contextmanager
def build(
  task_params: Any,
  batch: Mapping[str, np.ndarray],
  *,
  do_eval: bool = False,
  static_shapes: bool = False,
  optimized: bool = True,
  prepare: Callable[[Any], None] = lambda task: None,
) -> Iterator[FedTask]:
  """Builds a task's graph in Lingvo's graph mode.

  Args:
    task_params: Params of a Lingvo task, with its `input`, which reads nothing,
      but whose tokenizer and other settings the task can ask for. They are not
      changed.
    batch: a batch by dotted name, whose fields, dtypes and ranks the fed ones
      have; their shapes, too, where the task has layers of GPipe's or GShard's.
    do_eval: whether the graph is one of evaluation, and not of training.
    static_shapes: whether fed batches have the shapes of `batch` anyway.
    optimized: whether TensorFlow may rewrite the graph, which takes seconds and
      pays for many runs.
    prepare: is called with the task before it computes anything.

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
      stack.enter_context(lingvo_runtime.cluster(do_eval=do_eval))
      tf.random.set_seed(1)
      static = static_shapes or _needs_shapes(task_params)
      feeds = {
        k: tf.placeholder(
          v.dtype, v.shape if static else [None] * v.ndim, k.replace('.', '_')
        )
        for k, v in batch.items()
      }
      params = task_params.Copy()
      params.input = fed_input(task_params.input, feeds)
      model = base_model.SingleTaskModel.Params(params).Instantiate()
      if static and hasattr(model.GetTask(), '_TrimIfPossible'):
        # Cut to the longest example, a batch would have no static shape.
        model.GetTask()._TrimIfPossible = lambda *arrays: arrays
      prepare(model.GetTask())
      if do_eval:
        model.ConstructFPropGraph()
      else:
        model.ConstructFPropBPropGraph()
      options = tf.compat.v1.ConfigProto()
      rewriting = options.graph_options.rewrite_options
      rewriting.disable_meta_optimizer = not optimized
      session = stack.enter_context(tf.Session(config=options))
      yield FedTask(model.GetTask(), session, feeds)
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def _needs_shapes(params: Any) -> bool:
  """Whether something in Params takes static shapes: GPipe's and GShard's."""
  gpipe = lingvo_runtime.module('lingvo.core.gpipe')
  gshard = lingvo_runtime.module('lingvo.core.gshard_builder')
  static = gpipe.PipeliningLayer, gshard.MoEBuilder
  return any(
    'cls' in node and issubclass(node.cls, static)
    for node in params_trees.all_params(params)
  )


def _variable_filters(params: Any) -> list[str] | None:
  """Returns what each data source of an input trains, as Lingvo reads it."""
  if params is None or 'file_datasource' not in params:
    return None
  base = lingvo_runtime.module('lingvo.core.base_input_generator')
  source = params.file_datasource or base.FilePatternToDataSource(params)
  known = 'bprop_variable_filters' in source
  return source.bprop_variable_filters if known else None


def fed_input(params, feeds):
  """Returns Params of an input that gives placeholders."""
  base = lingvo_runtime.module('lingvo.core.base_input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  filters = _variable_filters(params) if 'source_selected' in feeds else None

  class FedInput(base.BaseSequenceInputGenerator):
    """Reads no files."""

    def CreateDatasource(self):
      pass

    def _InputBatch(self):
      batch = py_utils.NestedMap()
      for path, placeholder in feeds.items():
        batch.Set(path, placeholder)
      if filters:
        self._bprop_variable_filters = filters
        self._bprop_onehot = batch.source_selected[0]
      return batch

  fed = FedInput.Params().Set(name='fed', file_pattern='none')
  if params is not None:
    if 'tokenizer' in params:
      fed.tokenizer = params.tokenizer.Copy()
    # Tasks ask their input's Params for shapes, for example.
    for name, value in params.IterParams():
      if name not in fed:
        fed.Define(name, value, '')
  return fed
