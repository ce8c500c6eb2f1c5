"""Converts inputs and outputs of bridged tasks for TensorFlow and Lingvo."""

from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional.variables import Variable


def plain(batch: Any) -> Any:
  """Returns a batch as dicts and lists."""
  if isinstance(batch, dict):
    return {k: plain(v) for k, v in batch.items()}
  if isinstance(batch, list | tuple):
    return [plain(v) for v in batch]
  return batch


def in_lingvo(batch: Any) -> Any:
  """Returns a batch as Lingvo `NestedMap`s."""
  nested_map = lingvo_runtime.module('lingvo.core.nested_map')
  if isinstance(batch, dict):
    return nested_map.NestedMap({k: in_lingvo(v) for k, v in batch.items()})
  if isinstance(batch, list | tuple):
    return [in_lingvo(v) for v in batch]
  return batch


def specs_of(batch: Any) -> Any:
  """Returns the `tf.TensorSpec`s of nested arrays or their specs."""
  tf = lingvo_runtime.module('tensorflow')
  return tf.nest.map_structure(
    lambda x: tf.TensorSpec(x.shape, tf.as_dtype(np.dtype(x.dtype))),
    plain(batch),
  )


def spec_of(variable: Variable) -> Any:
  """Returns the spec that JAX passes for a variable, without 64-bit types."""
  tf = lingvo_runtime.module('tensorflow')
  narrow = {tf.int64: tf.int32, tf.uint64: tf.uint32, tf.float64: tf.float32}
  dtype = narrow.get(variable.dtype, variable.dtype)
  return tf.TensorSpec(variable.shape, dtype)


def metrics(outputs: Any) -> dict[str, tuple[Any, Any]]:
  """Returns {name: (value, weight)} as tensors."""
  tf = lingvo_runtime.module('tensorflow')
  found = {}
  for name, (value, weight) in outputs.items():
    weight = tf.cast(tf.convert_to_tensor(weight), tf.float32)
    found[name] = tf.convert_to_tensor(value), weight
  return found


def per_example(outputs: Any) -> dict[str, Any]:
  """Returns the per-example outputs [B, ...] that are not strings, by name."""
  tf = lingvo_runtime.module('tensorflow')
  return {
    name: value
    for name, value in dict(outputs or {}).items()
    if tf.is_tensor(value) and value.dtype != tf.string and value.shape.rank
  }


def row_statistics(gradient: Any, rows: int) -> tuple[Any, Any]:
  """Returns the row statistics of a sparse gradient.

  Args:
    gradient: `tf.IndexedSlices`.
    rows: V.

  Returns:
    [V], the number of lookups of each row; and [], the sum of squares of the
    slices, with slices of the same row not added up.
  """
  tf = lingvo_runtime.module('tensorflow')
  indices = tf.reshape(gradient.indices, [-1])
  values = tf.cast(gradient.values, tf.float32)
  ones = tf.ones(tf.shape(indices), tf.float32)
  counts = tf.math.unsorted_segment_sum(ones, indices, rows)
  return counts, tf.reduce_sum(tf.square(values))


def no_row_statistics(rows: int) -> tuple[Any, Any]:
  """Returns the row statistics of a gradient without lookups."""
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
