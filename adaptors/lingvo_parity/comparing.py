"""Compares two runs and finds the first layer that departs."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from adaptors.lingvo_parity import differences, pairing, results
from adaptors.translate.variables import VariableMap

# Gradients, and steps after the first, accumulate rounding errors: their
# tolerance is this many times larger.
_LATER = 10.0
# A larger difference of weights after training is explained.
AMPLIFIED = 1e-3
# More than this fraction of a weight's elements are not single units.
_FEW = 1e-3
# Gradients below this fraction of the largest one may be noise.
_NOISE = 1e-5

AGREES, REGROUPED, DEPARTS = 'agrees', 'agrees later', 'DEPARTS'
RANDOM, ROUNDING = 'random', 'rounding'
# A difference is due to rounding if it is at most this many times as large as
# that of two runs here whose initial weights differ by a rounding error.
ROUNDING_FACTOR = 3.0


@dataclasses.dataclass(frozen=True)
class Row:
  """A comparison of two values.

  Attributes:
    lingvo: the name in Lingvo, or the name with the value there.
    ours: likewise here.
    difference: relative.
    verdict: `AGREES`; `DEPARTS`; or `REGROUPED` for a layer whose output
      differs although values computed from it agree: the operations are grouped
      into layers differently; `RANDOM` for a value that differs, and depends
      on random numbers; or `ROUNDING` for one that differs no more than in two
      runs here whose initial weights differ by a rounding error.
  """

  lingvo: str
  ours: str
  difference: float
  verdict: str

  @property
  def name(self) -> str:
    """The name in Lingvo, without a value."""
    return self.lingvo.rpartition(' ')[0] if self.ours else self.lingvo


@dataclasses.dataclass(frozen=True)
class Outliers:
  """The elements of a weight that differ much after training.

  Attributes:
    count: their number.
    size: the number of all elements.
    others: the largest difference of the others, relative as that of all.
  """

  count: int
  size: int
  others: float

  @property
  def are_few(self) -> bool:
    """Whether they may be single units."""
    return self.count <= max(1, _FEW * self.size)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All comparisons, by kind.

  Attributes:
    layers: in the order in which Lingvo computes them.
    loss: of the first batch.
    metrics: of the first batch at evaluation.
    gradients: of the loss, by weight.
    steps: of training: losses, and learning rates that depart.
    weights: differences after the last step, by path, of weights whose
      gradients are more than noise. They have no verdict: some optimizers
      amplify small differences of gradients.
    outliers: the elements that differ by more than `AMPLIFIED`, by path.
    rounding: as `weights`, of two runs here whose initial weights differ by a
      rounding error; empty if not needed.
    unpaired: Lingvo's layers with weights that have no counterpart.
  """

  layers: list[Row]
  loss: list[Row]
  metrics: list[Row]
  gradients: list[Row]
  steps: list[Row]
  weights: dict[str, float]
  outliers: dict[str, Outliers]
  rounding: dict[str, float]
  unpaired: list[str]

  @property
  def first(self) -> Row | None:
    """The first layer that departs, or None."""
    return next((r for r in self.layers if r.verdict == DEPARTS), None)

  @property
  def departing(self) -> list[Row]:
    """All rows that depart."""
    return self._of_verdict(DEPARTS)

  @property
  def random(self) -> list[Row]:
    """All rows that differ, and depend on random numbers."""
    return self._of_verdict(RANDOM)

  @property
  def rounded(self) -> list[Row]:
    """All rows that differ by what rounding errors become."""
    return self._of_verdict(ROUNDING)

  @property
  def may_be_rounding(self) -> bool:
    """Whether a run from rounded weights could explain a difference."""
    departing = self.departing and not self.first
    return departing or max(self.weights.values(), default=0) > AMPLIFIED

  def _of_verdict(self, verdict: str) -> list[Row]:
    kinds = (self.layers, self.loss, self.metrics, self.gradients, self.steps)
    rows = itertools.chain(*kinds)
    return [row for row in rows if row.verdict == verdict]


def compare(
  lingvo: results.Run,
  ours: results.Run,
  variables: VariableMap,
  *,
  mask,
  tolerance: float,
  rounded: results.Run | None = None,
) -> Comparison:
  """Compares two runs.

  Args:
    lingvo: Lingvo's run.
    ours: our run.
    variables: of the translated task.
    mask: [B, T], 0 for padding of the first batch; None without padding.
    tolerance: the largest difference of outputs, losses and metrics; ten times
      that for gradients and for steps after the first.
    rounded: our run from weights with rounding errors; None without.
  """
  is_random = lingvo.is_random or ours.is_random
  loss = _row('loss', lingvo.loss, ours.loss, tolerance)
  pairs = pairing.pairs(lingvo.layers, ours.layers, variables, mask)
  random_layers = [
    ours.is_random or pair.index in lingvo.random_layers for pair in pairs
  ]
  random_gradients = [
    ours.is_random or path in lingvo.random_gradients
    for path in lingvo.gradients
  ]
  layers = _layers(pairs, lingvo.layers, loss, tolerance)
  gradients = _gradients(lingvo, ours, _LATER * tolerance)
  weights = _weights(lingvo.gradients, ours.last, lingvo.last)
  compared = Comparison(
    layers=list(map(_unless_random, layers, random_layers)),
    loss=[_unless_random(loss, is_random)],
    metrics=[
      _row(name, value, ours.metrics[name], tolerance)
      for name, value in sorted(lingvo.metrics.items())
      if name in ours.metrics
    ],
    gradients=list(map(_unless_random, gradients, random_gradients)),
    steps=[
      _unless_random(row, is_random)
      for row in _steps(lingvo.steps, ours.steps, tolerance)
    ],
    weights=weights,
    outliers={
      path: _outliers(ours.last[path], lingvo.last[path])
      for path, difference in weights.items()
      if difference > AMPLIFIED
    },
    rounding=_weights(lingvo.gradients, ours.last, rounded.last)
    if rounded
    else {},
    unpaired=_unpaired(lingvo.layers, pairs, variables),
  )
  return _explained(compared, ours, rounded) if rounded else compared


def _explained(compared: Comparison, ours, rounded) -> Comparison:
  """Returns a comparison whose rows are `ROUNDING` where that is all."""
  gradients = differences.of_gradients(rounded.gradients, ours.gradients)
  steps = {
    f'{i}: loss': differences.of_numbers(theirs.loss, mine.loss)
    for i, (mine, theirs) in enumerate(
      zip(ours.steps, rounded.steps, strict=True), 1
    )
  }
  metrics = {
    name: differences.of_numbers(rounded.metrics[name], value)
    for name, value in ours.metrics.items()
  }
  loss = {'loss': differences.of_numbers(rounded.loss, ours.loss)}

  def marked(rows: list[Row], sensitivities: dict[str, float]) -> list[Row]:
    return [
      dataclasses.replace(row, verdict=ROUNDING)
      if row.verdict == DEPARTS
      and row.difference <= ROUNDING_FACTOR * sensitivities.get(row.name, 0.0)
      else row
      for row in rows
    ]

  return dataclasses.replace(
    compared,
    loss=marked(compared.loss, loss),
    metrics=marked(compared.metrics, metrics),
    gradients=marked(compared.gradients, gradients),
    steps=marked(compared.steps, steps),
  )


def _unless_random(row: Row, is_random: bool) -> Row:
  """Returns a row, `RANDOM` if it departs and may."""
  if is_random and row.verdict == DEPARTS:
    return dataclasses.replace(row, verdict=RANDOM)
  return row


def _verdict(difference: float, tolerance: float) -> str:
  # NaN departs.
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
  outputs: Sequence[results.LayerOutput],
  loss: Row,
  tolerance: float,
) -> list[Row]:
  """Returns the rows of pairs of layers.

  A layer departs if its output and all values computed from it differ. If one
  of those agrees, the layers are only grouped differently: for example, one
  adds its input where the other's parent does.
  """
  verdicts = {p.index: _verdict(p.difference, tolerance) for p in pairs}
  rows = []
  for pair in pairs:
    output = outputs[pair.index]
    after = [verdicts.get(i) for i in output.followers]
    after += [loss.verdict] if output.reaches_loss else []
    verdict = verdicts[pair.index]
    if verdict == DEPARTS and (AGREES in after or not after):
      verdict = REGROUPED
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


def _weights(gradients, ours, others) -> dict[str, float]:
  """Returns the differences of weights after training, by path."""
  norms = {k: float(np.linalg.norm(g)) for k, g in gradients.items()}
  most = max(norms.values(), default=0.0)
  return {
    path: differences.of_outputs(ours[path], others[path])
    for path, norm in norms.items()
    if ours and norm > _NOISE * most
  }


def _outliers(ours: np.ndarray, lingvos: np.ndarray) -> Outliers:
  """Returns the elements of a weight that differ by more than `AMPLIFIED`."""
  found = np.abs(ours - lingvos) / max(np.max(np.abs(lingvos)), 1e-30)
  is_far = found > AMPLIFIED
  others = float(np.max(found[~is_far], initial=0))
  return Outliers(int(is_far.sum()), found.size, others)


def _unpaired(outputs, pairs, variables: VariableMap) -> list[str]:
  """Returns paths of Lingvo's layers with weights that are not in a pair."""
  paired = {outputs[p.index].path for p in pairs}
  theta = [t for v in variables for t in v.theta]
  return [
    path
    for path in dict.fromkeys(o.path for o in outputs)
    if path not in paired
    and any(t.startswith((f'{path}.', f'{path}[')) for t in theta)
  ]
