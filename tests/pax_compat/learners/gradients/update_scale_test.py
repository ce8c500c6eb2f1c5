"""Updates scaled like initial values."""

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layer_core.weight_init import WeightInit
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import RATE, learner

_METHODS = {
  'gaussian': (WeightInit.Gaussian(0.3), 0.3),
  'fan_in': (WeightInit.GaussianSqrtFanIn(2.0), 2 / np.sqrt(4)),
  'xavier': (WeightInit.Xavier(0.5), 0.5 * np.sqrt(6 / 10)),
  'uniform': (WeightInit.Uniform(0.7), 0.7),
}


@pytest.mark.parametrize('method', _METHODS)
@pytest.mark.parametrize('stacked', [False, True])
def test_updates_of_matrices_are_scaled(method, stacked):
  init, scale = _METHODS[method]
  prefix = (3,) if stacked else ()
  params = {
    'w': np.ones((*prefix, 4, 6), np.float32),
    'b': np.ones((*prefix, 6), np.float32),
  }
  own = {'init': init, 'repeat_prefix': prefix}
  one = learner(scale_update_by_var_norm=True)
  new, _, metrics = stepping.step(
    one, params, params, weight_metas=stepping.metas(params, w=own, b=own)
  )
  want = {
    'w': params['w'] * (1 - RATE * scale),
    'b': params['b'] * (1 - RATE),
  }
  stepping.assert_trees_close(new, want, rtol=1e-6)
  layers = 3 if stacked else 1
  np.testing.assert_allclose(
    metrics['learning/applied_grad_norm'],
    RATE * np.sqrt(layers * (24 * scale**2 + 6)),
    rtol=1e-5,
  )


@pytest.mark.parametrize('init', [WeightInit.Constant(0.0), None])
def test_a_weight_without_a_scale(init):
  params = {'w': np.ones((4, 6), np.float32)}
  with pytest.raises(
    errors.UserError, match="initializer of the weight 'w' is.*Xavier"
  ):
    stepping.step(
      learner(scale_update_by_var_norm=True),
      params,
      params,
      weight_metas=stepping.metas(params, w={'init': init}),
    )
