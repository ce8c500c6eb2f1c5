"""Whether tf.data datasets end, computed from their graphs.

`Dataset.cardinality` alone is not enough: after a filter, or in a graph, it is
unknown.
"""

from typing import Any

# Datasets that are finite by themselves.
_SOURCES = (
  'TensorDataset',
  'TensorSliceDataset',
  'SparseTensorSliceDataset',
  'TextLineDataset',
  'TFRecordDataset',
  'TFRecordDatasetV2',
  'FixedLengthRecordDataset',
  'FixedLengthRecordDatasetV2',
  'MatchingFilesDataset',
)

# Parts of the names of datasets whose length is unknown if a function makes one
# of each element.
_NOT_PLAIN = ('Repeat', 'Random', 'Generator', 'Service', 'Scan', 'TakeWhile')

# More elements than this count as endless.
_MANY = 2**40


def ends(tf: Any, graph_def: Any, generator: Any) -> list[bool | None]:
  """Returns whether each dataset that batches are read from ends.

  Args:
    tf: TensorFlow.
    graph_def: of the batches.
    generator: of Lingvo; it may have datasets made outside of the graph.

  Returns:
    For each dataset whether it ends; None if unknown.
  """
  graph = _Graph(graph_def.node, graph_def.library.function)
  found = []
  for node in graph_def.node:
    if node.op == 'MakeIterator':
      found.append(graph.ends(node.input[0]))
    elif node.op == 'OneShotIterator':
      found.append(graph.function_ends(node.attr['dataset_factory'].func.name))
  return found + [_set_ends(tf, dataset) for dataset in _sets_of(generator)]


def _sets_of(generator) -> list[Any]:
  source = getattr(generator, 'datasource', None)
  sets = list((getattr(source, '_dataset', None) or {}).values())
  iterator = getattr(generator, '_eager_iterator', None)
  sets.append(getattr(iterator, '_dataset', None))
  sets = [one for one in sets if one is not None]
  return [one for one in sets if hasattr(one.cardinality(), 'numpy')]


def _set_ends(tf, dataset) -> bool | None:
  size = int(dataset.cardinality().numpy())
  if size >= 0:
    return size < _MANY
  if size == tf.data.INFINITE_CARDINALITY:
    return False
  try:
    serialized = dataset._as_serialized_graph().numpy()
  except tf.errors.OpError:  # It contains what cannot be serialized.
    return None
  graph_def = tf.compat.v1.GraphDef.FromString(serialized)
  graph = _Graph(graph_def.node, graph_def.library.function)
  [last] = [n for n in graph_def.node if n.op == '_Retval']
  return graph.ends(last.input[0])


class _Graph:
  """The nodes of a graph, or of one of its functions."""

  def __init__(self, nodes, functions):
    self._nodes = {node.name: node for node in nodes}
    self._functions = functions

  def function_ends(self, name: str) -> bool | None:
    """Returns whether the dataset that a function returns ends."""
    [function] = [f for f in self._functions if f.signature.name == name]
    inner = _Graph(function.node_def, self._functions)
    return inner.ends(next(iter(function.ret.values())))

  def ends(self, name: str) -> bool | None:
    """Returns whether the dataset of a node ends."""
    node = self._node(name)
    if node is None or 'Dataset' not in node.op:
      return None
    if node.op == 'RepeatDataset':
      count = self._number(node.input[1])
      return False if count == -1 else _both(count, self.ends(node.input[0]))
    if node.op == 'TakeDataset':
      count = self._number(node.input[1])
      return self.ends(node.input[0]) if count == -1 else _both(count, True)
    if node.op == 'RangeDataset':
      return self._range_ends(node)
    if node.op == 'RandomDataset':
      return False
    sets = [self.ends(i) for i in node.input if self._is_set(i)]
    if not sets:
      return True if node.op in _SOURCES else None
    return self._combined(node, sets)

  def _combined(self, node, sets) -> bool | None:
    if node.op == 'ZipDataset':
      return True if True in sets else _all(sets)
    if node.op == 'DirectedInterleaveDataset':
      _, *mixed = sets  # The first only selects the next one.
      stops = node.attr['stop_on_empty_dataset'].b
      return True if stops and True in mixed else _all(mixed)
    if 'FlatMap' in node.op or 'Interleave' in node.op:
      return sets[0] if self._is_plain(node.attr['f'].func.name) else None
    if node.op == 'TakeWhileDataset':
      return sets[0] or None  # An endless one may.
    return _all(sets)

  def _is_plain(self, function_name: str) -> bool:
    """Whether a function makes finite datasets, as far as is known."""
    [function] = [
      f for f in self._functions if f.signature.name == function_name
    ]
    return not any(
      part in node.op for node in function.node_def for part in _NOT_PLAIN
    )

  def _range_ends(self, node) -> bool | None:
    start, stop, step = (self._number(i) for i in node.input[:3])
    if None in (start, stop, step):
      return None
    return (stop - start) / step < _MANY

  def _number(self, name: str) -> int | None:
    """Returns the value of a constant node, None of another node."""
    node = self._node(name)
    if node is None or node.op != 'Const':
      return None
    tensor = node.attr['value'].tensor
    values = tensor.int64_val or tensor.int_val
    if values:
      return values[0]
    content = tensor.tensor_content
    return int.from_bytes(content, 'little', signed=True) if content else 0

  def _is_set(self, name: str) -> bool:
    node = self._node(name)
    return node is not None and 'Dataset' in node.op

  def _node(self, name: str):
    return self._nodes.get(name.removeprefix('^').partition(':')[0])


def _both(count: int | None, ends_once: bool | None) -> bool | None:
  return None if count is None else ends_once


def _all(sets: list[bool | None]) -> bool | None:
  if False in sets:
    return False
  return None if None in sets else True
