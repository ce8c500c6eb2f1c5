"""The variables of a model against those of Pax: paths, shapes, sharding."""

from collections.abc import Mapping
from typing import Any

import jax

from pax_compat import base_layer, learners
from pax_compat.config import Config
from pax_compat.nested_map import NestedMap

# {path: (shape, mesh axes of each dimension, dtype)}.
Variables = dict[str, tuple[list[int], list[Any], str]]


def of_model(model: Config, *, rows: int, length: int = 4) -> Variables:
  """Returns the variables of a language model. Nothing is allocated.

  Args:
    model: its config.
    rows: examples of a batch that the model takes.
    length: tokens of each.
  """
  layer = model.Instantiate()
  variables = jax.eval_shape(
    lambda key, batch: layer.init_boxed({base_layer.PARAMS: key}, batch),
    jax.random.key(0),
    _batch(rows, length),
  )
  boxes = learners.by_path(variables, base_layer.is_boxed)
  return {
    path.replace('/', '.'): (
      list(box.value.shape),
      _split(box.meta.tensor_split_dims_mapping),
      str(box.value.dtype),
    )
    for path, box in boxes.items()
    if base_layer.is_boxed(box)
  }


def _batch(rows: int, length: int) -> NestedMap:
  ids = jax.ShapeDtypeStruct([rows, length], 'int32')
  weights = jax.ShapeDtypeStruct([rows, length], 'float32')
  return NestedMap(
    ids=ids,
    labels=ids,
    segment_ids=ids,
    segment_pos=ids,
    paddings=weights,
    weights=weights,
    masked_ids=ids,
    masked_pos=weights,
  )


def of_pax(recorded: Mapping[str, list]) -> Variables:
  """Returns the variables of Pax, from {path: [shape, split, dtype]}."""
  return {
    path: (shape, _split(split), dtype)
    for path, (shape, split, dtype) in recorded.items()
  }


def _split(mapping: Any) -> list[Any]:
  """Returns a mapping without what does not split, in lists.

  Pax has -1 for dimensions that are not split, and omits some at the end.
  """
  split = [
    list(axes) if isinstance(axes, list | tuple) else axes
    for axes in mapping or ()
  ]
  split = [None if axes in (-1, []) else axes for axes in split]
  while split and split[-1] is None:
    split.pop()
  return split


def differences(ours: Variables, pax: Variables) -> list[str]:
  """Returns a line for each variable that is not the same in both."""
  lines = [f'{path} is not here' for path in sorted(pax.keys() - ours.keys())]
  lines += [
    f'{path} is not in Pax' for path in sorted(ours.keys() - pax.keys())
  ]
  lines += [
    f'{path} is {ours[path]}, in Pax {pax[path]}'
    for path in sorted(ours.keys() & pax.keys())
    if ours[path] != pax[path]
  ]
  return lines
