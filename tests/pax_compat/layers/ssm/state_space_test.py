"""State spaces: steps compute what the whole sequence does."""

import jax
import numpy as np
import pytest

from pax_compat.base_layer import DECODE_CACHE
from pax_compat.layers.ssm import state_space

B, T, D = 2, 3, 4


@pytest.mark.parametrize('cls', [state_space.SSM, state_space.S5])
def test_steps(cls):
  layer = cls.config(nheads=5, dim=D, l_max=T, step_size=0.5).Instantiate()
  x = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
  variables = layer.init(jax.random.key(0), x)
  whole = layer.apply(variables, x)
  state, steps = {}, []
  for t in range(T):
    y, state = layer.apply(
      {**variables, **state},
      x[:, t],
      method='extend_step',
      mutable=[DECODE_CACHE],
    )
    steps.append(y)
  np.testing.assert_allclose(np.stack(steps, 1), whole, rtol=1e-5, atol=1e-5)
