"""TFRecord files of a tf.data dataset, as far as its graph names them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from adaptors import lingvo_runtime

# The ops that read records, of any version.
_READS = 'TFRecordDataset'

# The other string inputs of a reader: its compression.
_COMPRESSIONS = ('', 'GZIP', 'ZLIB')


def record_files(dataset: Any) -> list[str]:
  """Returns the TFRecord files that a dataset reads, in its order.

  That includes paths and patterns that are constants of its graph, but not
  names computed while it is read, and not files compressed by zlib, which
  cannot be checked.

  Args:
    dataset: a `tf.data.Dataset`.
  """
  tf = lingvo_runtime.tensorflow()
  policies = lingvo_runtime.module('tensorflow.python.data.ops.options')
  try:
    serialized = dataset._as_serialized_graph(  # noqa: SLF001
      external_state_policy=policies.ExternalStatePolicy.IGNORE
    )
  except tf.errors.OpError:  # It contains what cannot be serialized.
    return []
  graph_def = tf.compat.v1.GraphDef.FromString(serialized.numpy())
  names = _Graph(tf, graph_def).strings_of_readers()
  return list(dict.fromkeys(p for name in names for p in _files(tf, name)))


def _files(tf, name: str) -> list[str]:
  """Returns the files of a path or pattern; empty if it is neither."""
  gfile = tf.io.gfile
  paths = [name] if gfile.exists(name) else sorted(gfile.glob(name))
  return [path for path in paths if not gfile.isdir(path)]


class _Graph:
  """A dataset's graph, with the functions that make datasets of elements."""

  def __init__(self, tf: Any, graph_def: Any):
    self._tf = tf
    self._nodes = {node.name: node for node in graph_def.node}
    self._functions = {
      f.signature.name: f.node_def for f in graph_def.library.function
    }

  def strings_of_readers(self) -> Iterator[str]:
    """Yields the string constants that are inputs of record readers."""
    for node in self._nodes.values():
      inside = list(self._inside(node))
      if any(n.op.startswith(_READS) for n in inside):
        nodes = (*self._before(node), *inside)
        strings = [s for n in nodes for s in self._constants(n)]
        if 'ZLIB' not in strings:
          yield from (s for s in strings if s not in _COMPRESSIONS)

  def _inside(self, node) -> Iterator[Any]:
    """Yields a node, and all nodes of the functions that it calls."""
    seen, left = set(), [node]
    while left:
      one = left.pop()
      yield one
      called = {v.func.name for v in one.attr.values() if v.func.name}
      for name in called - seen:
        seen.add(name)
        left.extend(self._functions.get(name, ()))

  def _before(self, node) -> list[Any]:
    """Returns the nodes that a node depends on, the first inputs first."""
    seen, found, left = {node.name}, [], [node]
    while left:
      one = left.pop()
      found.append(one)
      names = [i.removeprefix('^').partition(':')[0] for i in one.input]
      new = [n for n in names if n in self._nodes and n not in seen]
      seen.update(new)
      left.extend(self._nodes[n] for n in reversed(new))
    return found[1:]

  def _constants(self, node) -> list[str]:
    """Returns the strings of a constant; empty for another node."""
    tf, value = self._tf, node.attr['value'].tensor
    if node.op != 'Const' or value.dtype != tf.string.as_datatype_enum:
      return []
    # `tf.make_ndarray` cannot read all encodings of strings.
    strings = tf.io.parse_tensor(value.SerializeToString(), tf.string).numpy()
    return [x.decode('utf-8', 'replace') for x in np.ravel(strings).tolist()]
