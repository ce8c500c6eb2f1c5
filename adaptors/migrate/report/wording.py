"""Numbers as people read them."""

from collections.abc import Sequence

# Shapes of batches that are told one by one.
_FEW = 4
_THOUSANDS = ('', 'K', 'M', 'B', 'T')
_BYTES = ('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')


def count(number: int | None) -> str:
  """Returns a number in three digits, such as `1.78B`; `?` for None."""
  if number is None:
    return '?'
  return _scaled(number, 1000, _THOUSANDS, '')


def size(number: int | None) -> str:
  """Returns a number of bytes, such as `19.9 GiB`; `?` for None."""
  if number is None:
    return '?'
  return _scaled(number, 1024, _BYTES, ' ')


def _scaled(number: float, step: int, units: tuple[str, ...], gap: str) -> str:
  for unit in units:
    if abs(number) < step * 0.9995 or unit == units[-1]:
      break
    number /= step
  digits = (
    0 if unit == units[0] or number >= 99.95 else 1 if number >= 9.995 else 2
  )
  return f'{number:.{digits}f}{gap}{unit}'


def mesh(axes: dict[str, int]) -> str:
  """Returns a mesh in words, such as `64 x 32 devices (data, mdl)`."""
  sizes = ' x '.join(map(str, axes.values()))
  if all(n == 1 for n in axes.values()):
    return 'one device, or whole on each of several'
  return f'{sizes} devices ({", ".join(axes)})'


def shapes(batches: Sequence[tuple[int, int | None]]) -> str:
  """Returns (examples, length) of batches in words."""
  if len(batches) <= _FEW:
    return ', '.join(
      f'{rows} examples' if n is None else f'{rows} x {n}'
      for rows, n in batches
    )
  rows = [rows for rows, _ in batches]
  lengths = [n for _, n in batches if n is not None]
  told = f'{min(rows)} to {max(rows)} examples' if rows else ''
  return f'{told} of {min(lengths)} to {max(lengths)}' if lengths else told
