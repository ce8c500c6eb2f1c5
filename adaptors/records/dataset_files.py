"""Which TFRecord files a tf.data set reads, as far as its graph names them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from adaptors import lingvo_runtime

# The ops that read records, whatever version they have.
_READS = 'TFRecordDataset'

# What else is a text beside a reader: its compression.
_COMPRESSIONS = ('', 'GZIP', 'ZLIB')


def record_files(dataset: Any) -> list[str]:
  """Returns the TFRecord files that a set reads, in the order that it names.

  Those are found that were named, by path or pattern, where the set was made;
  not those whose names it makes while it reads. Files that zlib compressed are
  left out, as nothing here reads them.

  Args:
    dataset: a `tf.data.Dataset`.
  """
  tf = lingvo_runtime.tensorflow()
  policies = lingvo_runtime.module('tensorflow.python.data.ops.options')
  try:
    serialized = dataset._as_serialized_graph(  # noqa: SLF001
      external_state_policy=policies.ExternalStatePolicy.IGNORE
    )
  except tf.errors.OpError:  # It holds what cannot be written down.
    return []
  graph_def = tf.compat.v1.GraphDef.FromString(serialized.numpy())
  named = _Graph(tf, graph_def).texts_of_readers()
  return list(dict.fromkeys(p for text in named for p in _files(tf, text)))


def _files(tf, text: str) -> list[str]:
  """Returns the files that a text names; none if it is no path."""
  gfile = tf.io.gfile
  paths = [text] if gfile.exists(text) else sorted(gfile.glob(text))
  return [path for path in paths if not gfile.isdir(path)]


class _Graph:
  """A graph of a set, with the functions that make sets of elements."""

  def __init__(self, tf: Any, graph_def: Any):
    self._tf = tf
    self._nodes = {node.name: node for node in graph_def.node}
    self._functions = {
      f.signature.name: f.node_def for f in graph_def.library.function
    }

  def texts_of_readers(self) -> Iterator[str]:
    """Yields the texts that sets of records are made of."""
    for node in self._nodes.values():
      inside = list(self._inside(node))
      if any(n.op.startswith(_READS) for n in inside):
        texts = [t for n in (*self._before(node), *inside) for t in self._of(n)]
        if 'ZLIB' not in texts:
          yield from (t for t in texts if t not in _COMPRESSIONS)

  def _inside(self, node) -> Iterator[Any]:
    """Yields a node, and all those of the functions that it calls."""
    seen, left = set(), [node]
    while left:
      one = left.pop()
      yield one
      called = {v.func.name for v in one.attr.values() if v.func.name}
      for name in called - seen:
        seen.add(name)
        left.extend(self._functions.get(name, ()))

  def _before(self, node) -> list[Any]:
    """Returns the nodes that a node is made of, the first inputs first."""
    seen, found, left = {node.name}, [], [node]
    while left:
      one = left.pop()
      found.append(one)
      names = [i.removeprefix('^').partition(':')[0] for i in one.input]
      new = [n for n in names if n in self._nodes and n not in seen]
      seen.update(new)
      left.extend(self._nodes[n] for n in reversed(new))
    return found[1:]

  def _of(self, node) -> list[str]:
    """Returns the texts of a constant."""
    tf, value = self._tf, node.attr['value'].tensor
    if node.op != 'Const' or value.dtype != tf.string.as_datatype_enum:
      return []
    # `tf.make_ndarray` cannot read all forms of texts.
    texts = tf.io.parse_tensor(value.SerializeToString(), tf.string).numpy()
    return [x.decode('utf-8', 'replace') for x in np.ravel(texts).tolist()]
