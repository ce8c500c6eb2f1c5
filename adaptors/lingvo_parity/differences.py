"""Relative differences of arrays.

Outputs are compared relative to Lingvo's largest value, gradients relative to
the norm of Lingvo's.
"""

from collections.abc import Mapping

import numpy as np

# A gradient that is zero by calculus (of a bias of attention keys, say) is
# noise in floats. It is compared relative to this fraction of the largest norm.
_NOISE = 1e-2


def of_outputs(ours, lingvos, floor: float = 1e-12) -> float:
  """Returns the largest difference, relative to Lingvo's largest value.

  Args:
    ours: an array.
    lingvos: an array of the same shape.
    floor: lower bound of the largest value.
  """
  ours, lingvos = np.asarray(ours), np.asarray(lingvos)
  scale = max(float(np.max(np.abs(lingvos), initial=0)), floor)
  return float(np.max(np.abs(ours - lingvos), initial=0)) / scale


def of_numbers(ours: float, lingvos: float) -> float:
  """Returns the relative difference of two numbers."""
  return of_outputs(np.float64(ours), np.float64(lingvos))


def of_gradients(
  ours: Mapping[str, np.ndarray], lingvos: Mapping[str, np.ndarray]
) -> dict[str, float]:
  """Returns the relative distance of gradients, by path.

  This is a norm and not a maximum: an activation next to the kink of a ReLU may
  change single elements.

  Args:
    ours: arrays by path.
    lingvos: likewise, with the same paths.
  """
  norms = {path: float(np.linalg.norm(g)) for path, g in lingvos.items()}
  floor = max(_NOISE * max(norms.values(), default=0.0), 1e-30)
  return {
    path: float(np.linalg.norm(np.asarray(ours[path]) - gradient))
    / max(norms[path], floor)
    for path, gradient in lingvos.items()
  }
