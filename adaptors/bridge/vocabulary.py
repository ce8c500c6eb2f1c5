"""How many ids of tokens a Lingvo task knows."""

from collections.abc import Iterator
from typing import Any

# Fields of layers that say how many tokens there are.
_SIZES = ('num_classes', 'vocab_size')

# Fields of a task that hold something else.
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
  sizes, looks_up = [], False
  for layer in _layers(params):
    if not layer.cls.__module__.startswith('lingvo.'):
      return None
    looks_up = looks_up or hasattr(layer.cls, 'EmbLookup')
    found = [layer.Get(name) for name in _SIZES if name in layer]
    sizes += [size for size in found if isinstance(size, int)]
  return max(sizes, default=None) if looks_up else None


def _layers(value: Any) -> Iterator[Any]:
  """Yields the Params of a layer and of all that are part of it."""
  if hasattr(value, 'IterParams'):
    if 'cls' in value:
      yield value
    parts = value.IterParams()
    value = [item for name, item in parts if name not in _NO_LAYERS]
  if isinstance(value, dict):
    value = value.values()
  elif not isinstance(value, (list, tuple)):
    return
  for part in value:
    yield from _layers(part)
