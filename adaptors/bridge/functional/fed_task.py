"""A real Lingvo task in its own training graph, with placeholders for batches.

It is the reference for translations and benchmarks: Lingvo's own loss,
gradients and train op, on given batches.
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
  """A task with its training graph, and a session.

  Attributes:
    task: the Lingvo task.
    session: a TensorFlow session; call `start` first.
    feeds: the placeholders of the batch, by field.
  """

  task: Any
  session: Any
  feeds: dict[str, Any]

  @property
  def variables(self) -> dict[str, Any]:
    """The task's variables by theta path, without those of its learners.

    Some of Lingvo's optimizers are layers with variables.
    """
    return {
      path: variable
      for path, variable in self.task.vars.FlattenItems()
      if not path.startswith('learners[')
    }

  def start(self):
    """Initializes the variables; the graph must be complete."""
    tf = lingvo_runtime.module('lingvo.compat')
    self.session.run(tf.global_variables_initializer())

  def feed_dict(self, batch: Mapping[str, np.ndarray]) -> dict:
    """Returns the `feed_dict` of a batch."""
    return {placeholder: batch[k] for k, placeholder in self.feeds.items()}


@contextlib.contextmanager
def build(
  task_params: Any,
  batch: Mapping[str, np.ndarray],
  *,
  do_eval: bool = False,
  static_shapes: bool = False,
  optimized: bool = True,
  xla_device: str = 'cpu',
  prepare: Callable[[Any], None] = lambda task: None,
) -> Iterator[FedTask]:
  """Builds a task's graph in Lingvo's graph mode.

  Args:
    task_params: Params of a Lingvo task, not modified. Its `input` reads
      nothing, but provides the tokenizer and other settings to the task.
    batch: a batch by dotted name, with the fields, dtypes and ranks of all
      batches; also their shapes if the task has layers of GPipe or GShard.
    do_eval: whether to build the graph of evaluation instead of training.
    static_shapes: whether all batches have the shapes of `batch` anyway.
    optimized: whether TensorFlow may optimize the graph, which takes seconds
      and pays off for many runs.
    xla_device: the device type that Lingvo's layers find; see
      `lingvo_runtime.cluster`.
    prepare: called with the task before its graph is built.

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
      stack.enter_context(
        lingvo_runtime.cluster(do_eval=do_eval, xla_device=xla_device)
      )
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
        # Trimming to the longest example would make shapes dynamic.
        model.GetTask()._TrimIfPossible = lambda *arrays: arrays
      prepare(model.GetTask())
      if do_eval:
        model.ConstructFPropGraph()
      else:
        model.ConstructFPropBPropGraph()
      made = stack.enter_context(session(optimized=optimized))
      yield FedTask(model.GetTask(), made, feeds)
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def session(*, optimized: bool) -> Any:
  """Returns a session of the current graph; see `build`."""
  tf = lingvo_runtime.module('lingvo.compat')
  options = tf.compat.v1.ConfigProto()
  rewriting = options.graph_options.rewrite_options
  rewriting.disable_meta_optimizer = not optimized
  return tf.Session(config=options)


def _needs_shapes(params: Any) -> bool:
  """Whether Params contain layers that need static shapes (GPipe, GShard)."""
  gpipe = lingvo_runtime.module('lingvo.core.gpipe')
  gshard = lingvo_runtime.module('lingvo.core.gshard_builder')
  static = gpipe.PipeliningLayer, gshard.MoEBuilder
  return any(
    'cls' in node and issubclass(node.cls, static)
    for node in params_trees.all_params(params)
  )


def _variable_filters(params: Any) -> list[str] | None:
  """Returns the variable filters of an input's data sources, if it has any."""
  if params is None or 'file_datasource' not in params:
    return None
  base = lingvo_runtime.module('lingvo.core.base_input_generator')
  source = params.file_datasource or base.FilePatternToDataSource(params)
  known = 'bprop_variable_filters' in source
  return source.bprop_variable_filters if known else None


def fed_input(params, feeds):
  """Returns Params of an input that returns placeholders."""
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

    def TpuDequeueBatch(self):
      # Built for a TPU, tasks ask for a batch of its infeed.
      return self._InputBatch()

  fed = FedInput.Params().Set(name='fed', file_pattern='none')
  if params is not None:
    if 'tokenizer' in params:
      fed.tokenizer = params.tokenizer.Copy()
    # Tasks ask their input's Params for shapes, for example.
    for name, value in params.IterParams():
      if name not in fed:
        fed.Define(name, value, '')
  return fed
