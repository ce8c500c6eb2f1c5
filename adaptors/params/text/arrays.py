"""Parses the numpy arrays in the text of Params: device meshes.

An array of more than a thousand elements is abbreviated to its corners:

    array([[   0,   64, ..., 1920, 1984],
           ...,
           [  63,  127, ..., 1983, 2047]], shape=(64, 32))

It is reconstructed if it is one of Lingvo's device orders of a TPU: by rows, by
columns, or `gshard_utils.GetNonPod2dMesh` of a torus with two cores a chip,
plain or transposed. Exactly one of them must match the elements in the text.
"""

import ast
import re
from collections.abc import Iterator

import numpy as np

from adaptors import lingvo_runtime

_ARRAY = re.compile(
  r'array\((?P<body>.*?)(?P<options>(?:, *\w+=[^=]*)*)\)', re.S
)
_DTYPE = re.compile(r"dtype='?(\w+)'?")
_SHAPE = re.compile(r'shape=\(([\d, ]*)\)')
_EDGE_ITEMS = 3


class UnreadableError(Exception):
  """An array cannot be parsed; the message says why."""


def read(text: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
  """Returns an array of integers or bools.

  Args:
    text: its `repr`, or its `str` with commas.
    shape: its shape if the text does not contain it, as abbreviated text before
      numpy 2.

  Raises:
    UnreadableError: it contains floats, which have too few digits; is not an
      array; or is abbreviated and unknown.
  """
  match = _ARRAY.fullmatch(text.strip())
  body, options = (match['body'], match['options']) if match else (text, '')
  dtype, stated = _DTYPE.search(options), _SHAPE.search(options)
  if stated:
    shape = tuple(int(n) for n in stated[1].split(',') if n.strip())
  try:
    shown = ast.literal_eval(body)
    array = _whole(shown, shape) if '...' in body else np.array(shown)
  except (ValueError, SyntaxError) as error:
    raise UnreadableError('it is not the text of an array') from error
  if array.dtype.kind not in 'bi':
    raise UnreadableError(
      'only arrays of integers can be read; the digits of others are truncated'
    )
  return array.astype(dtype[1]) if dtype else array


def _whole(shown: list, shape: tuple[int, ...] | None) -> np.ndarray:
  """Returns the only known order of devices that matches the elements."""
  if shape is None:
    raise UnreadableError('it is abbreviated, and its shape is not in the text')
  found: list[np.ndarray] = []
  for order in _orders(shape):
    is_new = not any(np.array_equal(order, other) for other in found)
    if is_new and _shown_of(order) == shown:
      found.append(order)
  if len(found) != 1:
    what = 'several known orders' if found else 'no known order'
    raise UnreadableError(f'it is abbreviated, and {what} of devices match')
  return found[0]


def _shown_of(array: np.ndarray) -> list:
  """Returns the elements that numpy prints, with Ellipsis for the others."""
  text = np.array2string(
    array, separator=', ', threshold=0, edgeitems=_EDGE_ITEMS
  )
  return ast.literal_eval(text)


def _orders(shape: tuple[int, ...]) -> Iterator[np.ndarray]:
  """Yields the known orders of devices in a mesh of a shape."""
  devices = np.arange(np.prod(shape))
  yield devices.reshape(shape)
  yield devices.reshape(shape[::-1]).T
  if len(shape) != 2:
    return
  gshard_utils = lingvo_runtime.module('lingvo.core.gshard_utils')
  for outer, inner in (shape, shape[::-1]):
    if inner % 2 == 0:
      mesh = gshard_utils.GetNonPod2dMesh(
        [outer, inner], [outer, inner // 2, 2]
      )
      yield mesh if mesh.shape == shape else mesh.T
      if outer == inner:
        yield mesh.T
