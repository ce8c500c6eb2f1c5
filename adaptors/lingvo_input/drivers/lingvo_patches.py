"""Monkey patches that let Lingvo's input generators run on a new TensorFlow.

They are active while a generator is built, and undone afterwards:

  * A SentencePiece model is a resource, which a reader's processor must not
    capture. So each function that tokenizes makes its own.
  * `dataset.make_one_shot_iterator()` was removed from TensorFlow's datasets.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from adaptors import lingvo_runtime


@contextlib.contextmanager
def repaired() -> Iterator[None]:
  """Applies the patches; each is logged when it is first used."""
  with _own_sentence_pieces(), _one_shot_iterators():
    yield


@contextlib.contextmanager
def _own_sentence_pieces() -> Iterator[None]:
  if lingvo_runtime.module('lingvo.core.tokenizers').tf_text is None:
    yield  # TensorFlow Text is not installed.
    return
  tf = lingvo_runtime.module('tensorflow')
  tokenizers = lingvo_runtime.module(
    'tensorflow_text.python.ops.sentencepiece_tokenizer'
  )
  of_model = tokenizers._SentencepieceModelResource
  shared = of_model.resource_handle
  made = {}  # By function, then by model.

  def resource_handle(model) -> Any:
    graph = _function_graph(tf)
    if graph is None:
      return shared.fget(model)
    handles = made.setdefault(graph, {})
    if model not in handles:
      logging.info(
        'replaced the SentencePiece model of the tokenizer by a new one in the'
        ' function %s',
        graph.name,
      )
      with graph.as_default():
        handles[model] = model._create_resource()
    return handles[model]

  with _set(of_model, 'resource_handle', property(resource_handle)):
    yield


def _function_graph(tf) -> Any | None:
  """Returns the graph of the function being traced, None outside of one."""
  graphs = lingvo_runtime.module(
    'tensorflow.python.ops.control_flow_v2_func_graphs'
  )
  graph = tf.compat.v1.get_default_graph()
  # Branches and loops use the resources of the function around them.
  while isinstance(graph, graphs.ControlFlowFuncGraph):
    graph = graph.outer_graph
  return graph if hasattr(graph, 'outer_graph') else None


@contextlib.contextmanager
def _one_shot_iterators() -> Iterator[None]:
  tf = lingvo_runtime.module('tensorflow')
  with contextlib.ExitStack() as stack:
    for name in ('make_one_shot_iterator', 'make_initializable_iterator'):
      if not hasattr(tf.data.Dataset, name):
        function = _logged(name, getattr(tf.compat.v1.data, name))
        stack.enter_context(_set(tf.data.Dataset, name, function))
    yield


def _logged(name: str, function: Callable) -> Callable:
  def method(dataset):
    logging.info('replaced Dataset.%s, which TensorFlow removed', name)
    return function(dataset)

  return method


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
  """Sets an attribute that a class does not have itself, for a while."""
  setattr(owner, name, value)
  try:
    yield
  finally:
    delattr(owner, name)
