"""Pairs layers of Lingvo with layers of ours that have the same weights.

The outputs of a pair are equal up to the order and grouping of axes. If several
layers of ours have the same weights (a layer with a single child), the one with
the closest output is chosen.

Shapes: B batch, T time.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from adaptors.lingvo_parity import differences, results
from adaptors.translate.training.variable_layout import is_stack
from adaptors.translate.variables import VariableMap


@dataclasses.dataclass(frozen=True)
class Pair:
  """A layer of Lingvo and its counterpart here.

  Attributes:
    index: of Lingvo's output.
    lingvo: the path of Lingvo's layer, with the name of the output.
    ours: of our layer, likewise.
    difference: of the outputs, without padding.
  """

  index: int
  lingvo: str
  ours: str
  difference: float


def pairs(
  lingvos: Sequence[results.LayerOutput],
  ours: Sequence[results.LayerOutput],
  variables: VariableMap,
  mask: np.ndarray | None,
) -> list[Pair]:
  """Returns the pairs, in the order in which Lingvo computes them.

  Args:
    lingvos: outputs of Lingvo's layers.
    ours: outputs of our layers.
    variables: of the translated task.
    mask: [B, T], 0 for padding; None without padding.
  """
  by_weights = collections.defaultdict(list)
  for weights, output in _with_weights(ours, variables):
    by_weights[weights].append(output)
  every = {theta for v in variables for theta in v.theta}
  found = []
  for index, output in enumerate(lingvos):
    weights = frozenset(
      theta
      for theta in every
      if theta.startswith((f'{output.path}.', f'{output.path}['))
    )
    candidates = [
      (difference, candidate)
      for candidate in by_weights[weights]
      if candidate.name == output.name
      for difference in _differences(candidate.value, output.value, mask)
    ]
    if weights and candidates:
      difference, best = min(candidates, key=lambda c: c[0])
      found.append(
        Pair(
          index=index,
          lingvo=_label(output.path, output.name),
          ours=_label(best.path or 'the model', best.name),
          difference=difference,
        )
      )
  return found


def _label(path: str, name: str) -> str:
  return f'{path} ({name})' if name else path


def _with_weights(
  outputs: Sequence[results.LayerOutput], variables: VariableMap
) -> Iterator[tuple[frozenset[str], results.LayerOutput]]:
  """Yields outputs with the theta paths of their layers' weights.

  Stacked layers are also yielded one by one.
  """
  below: Mapping[str, list] = {
    path: [v for v in variables if not path or v.jax.startswith(f'{path}/')]
    for path in {output.path for output in outputs}
  }
  for output in outputs:
    found = below[output.path]
    yield frozenset(t for v in found for t in v.theta), output
    counts = {len(v.theta) if is_stack(v.transform) else 0 for v in found}
    if len(counts) == 1 and output.value.shape[:1] == tuple(counts):
      for i, value in enumerate(output.value):
        one = dataclasses.replace(
          output, path=f'{output.path}[{i}]', value=value
        )
        yield frozenset(v.theta[i] for v in found), one


def _differences(
  ours: np.ndarray, lingvos: np.ndarray, mask: np.ndarray | None
) -> Iterator[float]:
  """Yields the difference of two arrays, for each order of the axes."""
  if ours.size != lingvos.size:
    return
  shown = np.ones(ours.shape, np.float32)
  if mask is not None and mask.size > 1:
    shape = mask.shape if ours.shape[:2] == mask.shape else (mask.size,)
    if ours.shape[: len(shape)] == shape:
      rest = [1] * (ours.ndim - len(shape))
      shown = shown * mask.reshape(*shape, *rest)
  for laid_out in (lambda x: x, _swapped):
    if ours.ndim < 2 and laid_out is _swapped:
      continue
    seen = laid_out(shown).reshape(lingvos.shape)
    value = laid_out(ours).reshape(lingvos.shape)
    # Padding is ignored, even if it is NaN.
    yield differences.of_outputs(
      np.where(seen, value, 0), np.where(seen, lingvos, 0)
    )


def _swapped(x: np.ndarray) -> np.ndarray:
  """Returns an array with its first two axes swapped."""
  return np.swapaxes(x, 0, 1)
