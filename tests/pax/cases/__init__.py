"""Cases of layers by group, to hold ours against Pax's."""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from tests import source_tree
from tests.pax.cases import (
  conformers,
  decoding,
  extensions,
  functions,
  images,
  losses,
  products,
  speech,
  videos,
)

ALL = {
  'conformers': conformers.CASES,
  'decoding': decoding.CASES,
  'extensions': extensions.CASES,
  'functions': functions.CASES,
  'images': images.CASES,
  'losses': losses.CASES,
  'products': products.CASES,
  'speech': speech.CASES,
  'videos': videos.CASES,
}


_FOLDER = source_tree.ROOT / 'testdata' / 'pax' / 'layers'
Recorded = Mapping[str, Mapping[str, np.ndarray]]


def write(group: str, recorded: Recorded) -> pathlib.Path:
  """Writes what Pax computes in a group's cases: one array and its index."""
  index = {
    case: {name: list(x.shape) for name, x in arrays.items()}
    for case, arrays in recorded.items()
  }
  flat = [np.ravel(x) for arrays in recorded.values() for x in arrays.values()]
  path = _FOLDER / f'{group}.npz'
  path.parent.mkdir(parents=True, exist_ok=True)
  np.savez_compressed(
    path,
    index=np.frombuffer(json.dumps(index).encode(), np.uint8),
    values=np.concatenate(flat).astype(np.float32),
  )
  return path


def read(group: str) -> Recorded:
  """Returns what Pax computes in a group's cases, by case and name."""
  with np.load(_FOLDER / f'{group}.npz') as file:
    index, values = json.loads(bytes(file['index'])), file['values']
  found, start = {}, 0
  for case, shapes in index.items():
    found[case] = {}
    for name, shape in shapes.items():
      end = start + int(np.prod(shape))
      found[case][name], start = values[start:end].reshape(shape), end
  return found
