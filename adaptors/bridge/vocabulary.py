"""How many ids of tokens a Lingvo task knows."""

from typing import Any

from pax_compat import token_ids

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
  return token_ids.rows_of_largest_table(
    params, _opened, is_known=_is_lingvos, lookup='EmbLookup'
  )


def _opened(value: Any) -> tuple[type | None, dict[str, Any]] | None:
  if not hasattr(value, 'IterParams'):
    return None
  fields = {k: v for k, v in value.IterParams() if k not in _NO_LAYERS}
  return fields.get('cls'), fields


def _is_lingvos(cls: type) -> bool:
  return cls.__module__.startswith('lingvo.')
