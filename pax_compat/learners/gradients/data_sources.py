"""Which weights the batches of each data source train.

Shapes: B rows of a batch, S data sources.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors
from pax_compat.learners import variable_names

# The field of a batch with its data source: [B, S], one-hot, the same for all
# examples of a batch. Padding rows are zero.
SOURCE_SELECTED = 'source_selected'


def selected(batch: Mapping[str, Any], num_sources: int, field: str):
  """Returns the source of a batch, one-hot [S].

  Args:
    batch: the batch.
    num_sources: S.
    field: the field's name, for error messages.

  Raises:
    UserError: the field is missing, or has another number of sources.
  """
  rows = batch.get(SOURCE_SELECTED)
  shape = None if rows is None else tuple(rows.shape)
  if shape is None or len(shape) != 2 or shape[1] != num_sources:
    found = f'has the shape {list(shape)}' if shape else 'is missing'
    raise errors.UserError(
      f'{field} is given for {num_sources} data sources; expected a field'
      f' {SOURCE_SELECTED!r} [B, {num_sources}] in each batch, which {found}'
    )
  return jnp.max(rows, axis=0).astype(jnp.float32)


def factors(
  source: jax.Array, patterns: Sequence[Sequence[Any]], paths
) -> dict[str, jax.Array]:
  """Returns factors [] of gradients, by path, where they can differ from 1.

  Args:
    source: [S], of `selected`.
    patterns: compiled expressions for each source; a weight is trained if one
      of them matches its whole name.
    paths: paths of the weights.
  """
  result = {}
  for path in paths:
    name = variable_names.full_name(path)
    trained = np.array(
      [any(p.fullmatch(name) for p in own) for own in patterns], np.float32
    )
    if not trained.all():
      result[path] = jnp.dot(source, trained)
  return result
