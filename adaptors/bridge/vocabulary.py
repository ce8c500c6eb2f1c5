"""The number of token ids of a Lingvo task."""

from typing import Any

from adaptors.params import params_trees
from pax_compat.input_core import token_ids

# Fields of a task that do not contain layers.
_NO_LAYERS = ('input', 'train')


def num_ids(params: Any) -> int | None:
  """Returns the number of a task's token ids: the rows of its largest table.

  Lingvo asserts that ids are in range, but XLA compiles no assertions.

  Args:
    params: of the task.

  Returns:
    The number; None if it is uncertain, because a layer is not Lingvo's, or no
    layer looks up ids.
  """
  layers = (
    (node.cls, dict(node.IterParams()))
    for node in params_trees.all_params(params, without=_NO_LAYERS)
    if 'cls' in node
  )
  return token_ids.rows_of_largest_table(
    layers, is_known=_is_lingvos, lookup='EmbLookup'
  )


def _is_lingvos(cls: type) -> bool:
  return cls.__module__.startswith('lingvo.')
