"""How many ids of tokens a Lingvo task knows."""

from typing import Any

from adaptors.params import params_trees
from pax_compat.input_core import token_ids

# Fields of a task that hold something else than layers.
_NO_LAYERS = ('input', 'train')


def known_to(params: Any) -> int | None:
  """Returns how many ids a task knows: the rows of its largest table.

  Lingvo itself asserts that a table has the ids that are looked up, but no
  assertion is left when XLA compiles it.

  Args:
    params: of the task.

  Returns:
    The number; None where that is uncertain, as a layer is none of Lingvo's
    own, or no layer looks anything up.
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
