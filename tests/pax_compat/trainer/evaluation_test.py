"""Evaluation against weighted means in numpy."""

import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import evaluation

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(5, 4))
WEIGHTS = RNG.integers(0, 2, (5, 4)).astype(np.float64)
WEIGHTS[3] = 0  # a batch that only fills


class Rows(base_input.BaseInput):
  """Gives the first `count` rows, `per_reset` of them before the end."""

  count: int = 5

  def __post_init__(self):
    super().__post_init__()
    self.position, self.resets = 0, 0

  def get_next(self):
    if self.position == self.count:
      raise StopIteration
    self.position += 1
    row = self.position - 1
    return NestedMap(x=VALUES[row], w=WEIGHTS[row])

  def reset(self):
    self.position, self.resets = 0, self.resets + 1


def _eval_step(mdl_vars, batch):
  total = batch.w.sum()
  # What a model says of nothing may be anything.
  mean = (batch.x * batch.w).sum() / total if total else np.nan
  return {'mean': (mdl_vars * mean, total), 'never': (1.0, 0.0)}


def _evaluate(data):
  return evaluation.evaluate(
    data, eval_step=_eval_step, mdl_vars=2.0, put=lambda b: b
  )


def test_every_example_counts_by_its_weight():
  data = Rows.config(reset_for_eval=True).Instantiate()
  got = _evaluate(data)
  want = 2 * (VALUES * WEIGHTS).sum() / WEIGHTS.sum()
  np.testing.assert_allclose(got.pop('mean'), want, rtol=1e-12)
  assert got == {'num_batches': 5.0}
  assert data.resets == 1
  # The next evaluation reads the same again.
  np.testing.assert_allclose(_evaluate(data)['mean'], want, rtol=1e-12)


def test_without_reset_so_many_batches_are_read_on():
  data = Rows.config(eval_loop_num_batches=2).Instantiate()
  for rows in (slice(0, 2), slice(2, 4)):
    got = _evaluate(data)
    x, w = VALUES[rows], WEIGHTS[rows]
    np.testing.assert_allclose(got['mean'], 2 * (x * w).sum() / w.sum())
    assert got['num_batches'] == 2
  assert data.resets == 0


def test_too_few_batches():
  data = Rows.config(name='dev', count=2, eval_loop_num_batches=3)
  with pytest.raises(errors.UserError, match="'dev' has 2 batches; expected 3"):
    _evaluate(data.Instantiate())


def test_no_batch():
  data = Rows.config(name='dev', count=0, reset_for_eval=True)
  with pytest.raises(errors.UserError, match="'dev' has 0 batches"):
    _evaluate(data.Instantiate())


def test_many_small_weights_do_not_get_lost():
  means = evaluation.WeightedMeans()
  means.add({'a': (np.float32(1), np.float32(2**25))})
  for _ in range(8):  # in float32, 2^25 + 1 is 2^25
    means.add({'a': (np.float32(2), np.float32(1))})
  want = (2**25 + 16) / (2**25 + 8)
  assert means.result()['a'] == want


def test_what_never_had_a_weight_has_no_mean():
  means = evaluation.WeightedMeans()
  means.add({'a': (np.nan, 0.0), 'b': (3.0, 0.5)})
  assert means.result() == {'b': 3.0}
