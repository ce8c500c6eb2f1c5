"""Which weights the examples of each data source train.

Shapes: B rows of a batch, S data sources.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors
from pax_compat.learners import variable_names

# The field of a batch that says where its examples come from: [B, S], ones at
# the source of an example. It is the same one for all examples of a batch; rows
# that do not count have zeros.
SOURCE_SELECTED = 'source_selected'


def selected(batch: Mapping[str, Any], num_sources: int, field: str):
  """Returns where a batch comes from: [S], 1 at its source and 0 elsewhere.

  Args:
    batch: the batch.
    num_sources: how many sources there are.
    field: begins the message of an error.

  Raises:
    UserError: the batch does not say so, or has another number of sources.
  """
  rows = batch.get(SOURCE_SELECTED)
  shape = None if rows is None else tuple(rows.shape)
  if shape is None or len(shape) != 2 or shape[1] != num_sources:
    found = f'has the shape {list(shape)}' if shape else 'is not there'
    raise errors.UserError(
      f'{field} is given for {num_sources} data sources; expected a field'
      f' {SOURCE_SELECTED!r} [B, {num_sources}] in each batch, which {found}'
    )
  return jnp.max(rows, axis=0).astype(jnp.float32)


def factors(
  source: jax.Array, patterns: Sequence[Sequence[Any]], paths
) -> dict[str, jax.Array]:
  """Returns the factor [] of each gradient, by path, where it may not be 1.

  Args:
    source: [S], of `selected`.
    patterns: for each source compiled expressions; a weight is trained if one
      of them matches its whole name.
    paths: of the weights.
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
