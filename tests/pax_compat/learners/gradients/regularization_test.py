"""L1, L2 and decoupled decay against numpy, over three steps."""

import numpy as np
import pytest

from pax_compat import errors, optimizers, schedules
from pax_compat.base_layer import SKIP_LP_REGULARIZATION
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import learner

PARAMS = {
  'w': np.array([[1.0, -2.0], [0.5, 3.0]], np.float32),
  'bias': np.array([2.0, -1.0], np.float32),
  'exempt': np.array([[1.0, 4.0]], np.float32),
  'stack': np.array([[1.0, -2.0], [3.0, 4.0]], np.float32),  # 2 vectors
}
METAS = stepping.metas(
  PARAMS,
  exempt={'collections': (SKIP_LP_REGULARIZATION,)},
  stack={'repeat_prefix': (2,)},
)
GRADIENTS = [
  {
    name: np.random.default_rng(i).normal(size=w.shape).astype(np.float32)
    for name, w in PARAMS.items()
  }
  for i in range(3)
]
RATES = [0.1, 0.02, 0.004]
WEIGHT = 0.3


def _config(**fields):
  return optimizers.Sgd.config(
    learning_rate=0.1,
    momentum=0.5,
    lr_schedule=schedules.PiecewiseConstant.config(
      boundaries=[1, 2], values=[1.0, 0.2, 0.04]
    ),
    **fields,
  )


def _expected(lp=None, decay=0.0, exempt=('exempt',), clip=None):
  """Returns the weights after three steps of SGD with momentum.

  Args:
    lp: function from weights to the gradients of regularization.
    decay: the decoupled decay.
    exempt: names of the weights without regularization and decay.
    clip: the largest norm of gradients before regularization.
  """
  weights = {n: w.astype(np.float64) for n, w in PARAMS.items()}
  trace = dict.fromkeys(weights, 0.0)
  for gradients, rate in zip(GRADIENTS, RATES, strict=True):
    norm = np.sqrt(
      sum((g.astype(np.float64) ** 2).sum() for g in gradients.values())
    )
    scale = min(1, clip / norm) if clip else 1
    for name, gradient in gradients.items():
      old, taken = weights[name], name not in exempt
      gradient = gradient * scale + (lp(old) if lp and taken else 0)
      trace[name] = gradient + 0.5 * trace[name]
      weights[name] = old - rate * (trace[name] + taken * decay * old)
  return weights


def _last(config, **fields):
  return stepping.steps(learner(config, **fields), PARAMS, GRADIENTS, METAS)[-1]


def test_l2():
  params, _, _ = _last(_config(l2_regularizer_weight=WEIGHT))
  stepping.assert_trees_close(params, _expected(lambda w: WEIGHT * w))


def test_l1():
  params, _, _ = _last(_config(l1_regularizer_weight=WEIGHT))
  stepping.assert_trees_close(params, _expected(lambda w: WEIGHT * np.sign(w)))


def test_vectors_may_be_exempt_also_if_stacked():
  params, _, _ = _last(
    _config(l2_regularizer_weight=WEIGHT, skip_lp_1d_vectors=True)
  )
  exempt = ('exempt', 'bias', 'stack')
  want = _expected(lambda w: WEIGHT * w, exempt=exempt)
  stepping.assert_trees_close(params, want)


def test_decoupled_decay_has_the_learning_rate_but_no_momentum():
  params, _, _ = _last(_config(decoupled_weight_decay=WEIGHT))
  stepping.assert_trees_close(params, _expected(decay=WEIGHT))


def test_regularization_is_added_after_clipping():
  params, _, metrics = _last(
    _config(l2_regularizer_weight=WEIGHT, clip_gradient_norm_to_value=0.5)
  )
  want = _expected(lambda w: WEIGHT * w, clip=0.5)
  stepping.assert_trees_close(params, want)
  np.testing.assert_allclose(
    metrics['learning/clipped_grad_norm'], 0.5, rtol=1e-5
  )


@pytest.mark.parametrize('kind', ['l1', 'l2'])
def test_regularization_is_added_before_clipping(kind):
  one = learner(
    optimizers.Sgd.config(
      learning_rate=1.0,
      clip_gradient_norm_to_value=0.5,
      **{f'{kind}_regularizer_weight': WEIGHT},
    ),
    regularize_before_clipping=True,
  )
  params, _, metrics = stepping.step(
    one, PARAMS, GRADIENTS[0], weight_metas=METAS
  )
  total = {
    name: g
    if name == 'exempt'
    else g + WEIGHT * (PARAMS[name] if kind == 'l2' else np.sign(PARAMS[name]))
    for name, g in GRADIENTS[0].items()
  }
  norm = np.sqrt(sum((g**2).sum() for g in total.values()))
  want = {n: PARAMS[n] - g * 0.5 / norm for n, g in total.items()}
  stepping.assert_trees_close(params, want)
  np.testing.assert_allclose(metrics['learning/raw_grad_norm'], norm, rtol=1e-5)


def test_both_only_if_added_before_clipping():
  both = dict(l1_regularizer_weight=0.1, l2_regularizer_weight=WEIGHT)
  with pytest.raises(errors.UserError, match='exclude each other'):
    learner(_config(**both))
  one = learner(_config(**both), regularize_before_clipping=True)
  params, _, _ = stepping.steps(one, PARAMS, GRADIENTS, METAS)[-1]
  want = _expected(lambda w: WEIGHT * w + 0.1 * np.sign(w))
  stepping.assert_trees_close(params, want)
