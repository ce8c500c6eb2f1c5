"""What goes in and out of a bridged task, as TensorFlow and Lingvo have it."""

from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional.variables import Variable


def plain(batch: Any) -> Any:
  """Returns a batch in dicts and lists."""
  if isinstance(batch, dict):
    return {k: plain(v) for k, v in batch.items()}
  if isinstance(batch, list | tuple):
    return [plain(v) for v in batch]
  return batch


def in_lingvo(batch: Any) -> Any:
  """Returns a batch in Lingvo's own maps."""
  nested_map = lingvo_runtime.module('lingvo.core.nested_map')
  if isinstance(batch, dict):
    return nested_map.NestedMap({k: in_lingvo(v) for k, v in batch.items()})
  if isinstance(batch, list | tuple):
    return [in_lingvo(v) for v in batch]
  return batch


def specs_of(batch: Any) -> Any:
  """Returns a `tf.TensorSpec` for all that has a shape and a dtype."""
  tf = lingvo_runtime.module('tensorflow')
  return tf.nest.map_structure(
    lambda x: tf.TensorSpec(x.shape, tf.as_dtype(np.dtype(x.dtype))),
    plain(batch),
  )


def spec_of(variable: Variable) -> Any:
  """Returns what JAX passes for a variable: it has no 64-bit numbers."""
  tf = lingvo_runtime.module('tensorflow')
  narrow = {tf.int64: tf.int32, tf.uint64: tf.uint32, tf.float64: tf.float32}
  dtype = narrow.get(variable.dtype, variable.dtype)
  return tf.TensorSpec(variable.shape, dtype)


def metrics(told: Any) -> dict[str, tuple[Any, Any]]:
  """Returns {name: (value, weight)} as tensors of numbers."""
  tf = lingvo_runtime.module('tensorflow')
  found = {}
  for name, (value, weight) in told.items():
    weight = tf.cast(tf.convert_to_tensor(weight), tf.float32)
    found[name] = tf.convert_to_tensor(value), weight
  return found


def of_each_example(told: Any) -> dict[str, Any]:
  """Returns those outputs [B, ...] that JAX can have, by name."""
  tf = lingvo_runtime.module('tensorflow')
  return {
    name: value
    for name, value in dict(told or {}).items()
    if tf.is_tensor(value) and value.dtype != tf.string and value.shape.rank
  }


def row_facts(gradient: Any, rows: int) -> tuple[Any, Any]:
  """Returns facts about a gradient that TensorFlow has for some rows only.

  Args:
    gradient: `tf.IndexedSlices`.
    rows: how many there are in all, V.

  Returns:
    [V], how often each row was looked up; and [], the sum of squares of the
    rows' gradients, those of one row not summed before.
  """
  tf = lingvo_runtime.module('tensorflow')
  indices = tf.reshape(gradient.indices, [-1])
  values = tf.cast(gradient.values, tf.float32)
  ones = tf.ones(tf.shape(indices), tf.float32)
  counts = tf.math.unsorted_segment_sum(ones, indices, rows)
  return counts, tf.reduce_sum(tf.square(values))


def no_row_facts(rows: int) -> tuple[Any, Any]:
  """Returns the facts about a gradient of which no row was looked up."""
  tf = lingvo_runtime.module('tensorflow')
  return tf.zeros([rows]), tf.zeros([])


def has_bfloat16(traced: Any) -> bool:
  """Whether a concrete function computes anything in bfloat16."""
  tf = lingvo_runtime.module('tensorflow')
  graph = traced.graph.as_graph_def()
  nodes = list(graph.node)
  for function in graph.library.function:
    nodes.extend(function.node_def)
  bfloat16 = tf.bfloat16.as_datatype_enum
  return any(
    value.type == bfloat16 or bfloat16 in value.list.type
    for node in nodes
    for value in node.attr.values()
  )
