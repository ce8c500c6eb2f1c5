"""What of two runs departs, and which layer is the first to do so."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from adaptors.lingvo_parity import differences, lingvo_side, our_side, pairing
from adaptors.translate.variables import VariableMap

# How much larger than of outputs differences may be of gradients and of steps,
# whose roundings add up.
_LATER = 10.0
# A gradient of less than this share of the largest one may be noise.
_NOISE = 1e-5

AGREES, CUT, DEPARTS = 'agrees', 'agrees later', 'DEPARTS'


@dataclasses.dataclass(frozen=True)
class Row:
  """Something that was compared.

  Attributes:
    lingvo: what it is in Lingvo, or its value there.
    ours: likewise here.
    difference: relative.
    verdict: `AGREES`; `DEPARTS`; or `CUT` of a layer whose output differs, yet
      what is computed from it agrees: its parts are put together elsewhere.
  """

  lingvo: str
  ours: str
  difference: float
  verdict: str


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What was compared, by kind.

  Attributes:
    layers: in the order in which Lingvo computes them.
    loss: of the first batch.
    metrics: of the first batch at evaluation.
    gradients: of the loss, by weight.
    steps: of training: losses, and learning rates.
    weights: how far apart they are after the last step, those whose gradients
      are more than noise. That is told, and has no verdict: small differences
      of gradients are large ones for some optimizers.
    unpaired: layers of Lingvo that have weights, and no counterpart.
  """

  layers: list[Row]
  loss: list[Row]
  metrics: list[Row]
  gradients: list[Row]
  steps: list[Row]
  weights: dict[str, float]
  unpaired: list[str]

  @property
  def first(self) -> Row | None:
    """The first layer that departs; None if none does."""
    return next((r for r in self.layers if r.verdict == DEPARTS), None)

  @property
  def departing(self) -> list[Row]:
    """All rows that depart."""
    kinds = (self.layers, self.loss, self.metrics, self.gradients, self.steps)
    rows = itertools.chain(*kinds)
    return [row for row in rows if row.verdict == DEPARTS]


def compare(
  lingvo: lingvo_side.Run,
  ours: our_side.Run,
  variables: VariableMap,
  *,
  mask,
  tolerance: float,
) -> Comparison:
  """Compares two runs.

  Args:
    lingvo: Lingvo's.
    ours: ours.
    variables: which weights are the same.
    mask: [B, T], 1 where the first batch has no padding; None for nowhere.
    tolerance: the largest difference of outputs, losses and metrics. Those of
      gradients, and of what comes after the first step, may be ten times that.
  """
  loss = _row('loss', lingvo.loss, ours.loss, tolerance)
  pairs = pairing.pairs(lingvo.layers, ours.layers, variables, mask)
  return Comparison(
    layers=_layers(pairs, lingvo.layers, loss, tolerance),
    loss=[loss],
    metrics=[
      _row(name, value, ours.metrics[name], tolerance)
      for name, value in sorted(lingvo.metrics.items())
      if name in ours.metrics
    ],
    gradients=_gradients(lingvo, ours, _LATER * tolerance),
    steps=list(_steps(lingvo.steps, ours.steps, tolerance)),
    weights=_weights(lingvo, ours),
    unpaired=_unpaired(lingvo.layers, pairs, variables),
  )


def _verdict(difference: float, tolerance: float) -> str:
  # What is no number departs.
  return AGREES if difference <= tolerance else DEPARTS


def _row(what: str, lingvo: float, ours: float, tolerance: float) -> Row:
  """Returns the row of two numbers."""
  difference = differences.of_numbers(ours, lingvo)
  return Row(
    f'{what} {lingvo:.7g}',
    f'{ours:.7g}',
    difference,
    _verdict(difference, tolerance),
  )


def _layers(
  pairs: Sequence[pairing.Pair],
  outputs: Sequence[lingvo_side.LayerOutput],
  loss: Row,
  tolerance: float,
) -> list[Row]:
  """Returns the rows of pairs of layers.

  A layer departs if its output differs, and so does all that is computed from
  it. If something of that agrees, the layers are only divided otherwise: the
  one adds its input, say, where the other's parent does.
  """
  verdicts = {p.index: _verdict(p.difference, tolerance) for p in pairs}
  rows = []
  for pair in pairs:
    output = outputs[pair.index]
    after = [verdicts.get(i) for i in output.followers]
    after += [loss.verdict] if output.reaches_loss else []
    verdict = verdicts[pair.index]
    if verdict == DEPARTS and (AGREES in after or not after):
      verdict = CUT
    rows.append(Row(pair.lingvo, pair.ours, pair.difference, verdict))
  return rows


def _gradients(lingvo, ours, tolerance: float) -> list[Row]:
  found = differences.of_gradients(ours.gradients, lingvo.gradients)
  return [
    Row(path, '', difference, _verdict(difference, tolerance))
    for path, difference in found.items()
  ]


def _steps(lingvos, ours, tolerance: float):
  for i, (theirs, mine) in enumerate(zip(lingvos, ours, strict=True), 1):
    allowed = tolerance if i == 1 else _LATER * tolerance
    yield _row(f'{i}: loss', theirs.loss, mine.loss, allowed)
    if theirs.rate is not None and mine.rate is not None:
      row = _row(f'{i}: learning rate', theirs.rate, mine.rate, tolerance)
      if row.verdict == DEPARTS:
        yield row


def _weights(lingvo, ours) -> dict[str, float]:
  norms = {k: float(np.linalg.norm(g)) for k, g in lingvo.gradients.items()}
  most = max(norms.values(), default=0.0)
  return {
    path: differences.of_outputs(ours.last[path], lingvo.last[path])
    for path, norm in norms.items()
    if ours.last and norm > _NOISE * most
  }


def _unpaired(outputs, pairs, variables: VariableMap) -> list[str]:
  """Returns paths of Lingvo's layers with weights that are in no pair."""
  paired = {outputs[p.index].path for p in pairs}
  theta = [t for v in variables for t in v.theta]
  return [
    path
    for path in dict.fromkeys(o.path for o in outputs)
    if path not in paired
    and any(t.startswith((f'{path}.', f'{path}[')) for t in theta)
  ]
