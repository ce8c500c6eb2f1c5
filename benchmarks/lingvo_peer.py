"""The same experiment in TensorFlow: Lingvo's own graph and train op.

Batches are fed, so that no input pipeline takes part.
"""

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np

from adaptors import lingvo_names, lingvo_runtime
from pax_compat import experiment_sources

FIELDS = ('ids', 'labels', 'paddings', 'weights', 'word_count')


class LingvoPeer:
  """Makes train steps in a session of its own."""

  def __init__(self, session, task, feeds, batches: Mapping[str, dict]):
    """Takes what `training` made.

    Args:
      session: a TensorFlow session of the task's graph.
      task: a Lingvo task whose graph is built.
      feeds: placeholders by field.
      batches: dicts of numpy arrays, by a key.
    """
    self._session = session
    self._feeds = {
      key: {feeds[f]: batch[f] for f in feeds} for key, batch in batches.items()
    }
    # A callable of fixed fetches costs less each step than `run` does.
    self._callables = session.make_callable(
      [task.loss, task.train_op], feed_list=list(feeds.values())
    )

  def step(self, key: str) -> float:
    """Makes a step on the batch of that key; returns its loss."""
    return float(self._callables(*self._feeds[key].values())[0])

  def wait(self):
    """Returns when all steps are done, which they always are."""


@contextlib.contextmanager
def training(
  name: str, batches: Mapping[str, dict], theta: Mapping[str, np.ndarray]
) -> Iterator[LingvoPeer]:
  """Yields a peer that trains a registered experiment in graph mode.

  Args:
    name: of the experiment.
    batches: numpy batches with `FIELDS`, by a key.
    theta: the first weights by theta path.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  eager = py_utils.IsEagerMode()
  py_utils.SetEagerMode(False, test_mode=True)
  try:
    with contextlib.ExitStack() as stack:
      stack.enter_context(tf.Graph().as_default())
      stack.enter_context(lingvo_runtime.cluster())
      some = next(iter(batches.values()))
      feeds = {
        f: tf.placeholder(some[f].dtype, [None] * some[f].ndim, f)
        for f in FIELDS
      }
      task = _task(name, feeds)
      session = stack.enter_context(tf.Session())
      session.run(tf.global_variables_initializer())
      for path, variable in task.vars.FlattenItems():
        variable.load(theta[path], session)
      yield LingvoPeer(session, task, feeds, batches)
  finally:
    py_utils.SetEagerMode(eager, test_mode=True)


def _task(name: str, feeds):
  """Builds the training graph of a task whose input is fed."""
  options = experiment_sources.SourceOptions()
  model_params = lingvo_names.find_model_params(name, options)
  params = model_params.Model()
  params.input = _fed_input(model_params.GetDatasetParams('Train'), feeds)
  model = params.Instantiate()
  model.ConstructFPropBPropGraph()
  return model.GetTask()


def _fed_input(params, feeds):
  """Returns Params of an input whose batches are placeholders."""
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
