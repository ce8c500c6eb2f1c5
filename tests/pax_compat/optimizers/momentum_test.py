"""SGD, LARS and Lion against their papers' formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, optimizers
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE, assert_steps


@pytest.mark.parametrize('cls', ['Sgd', 'ShardedSgd'])
@pytest.mark.parametrize(
  'momentum,nesterov', [(None, False), (0.9, False), (0.9, True)]
)
def test_sgd(cls, momentum, nesterov):
  """Sutskever et al. 2013, with velocities not times the learning rate."""

  def formula(name, w, gradients):
    del name
    trace = 0.0
    for g in gradients:
      trace = g + (momentum or 0.0) * trace
      w = w - RATE * (g + momentum * trace if nesterov else trace)
      yield w

  config = getattr(optimizers, cls).config(
    learning_rate=RATE, momentum=momentum, nesterov=nesterov
  )
  assert_steps(config, formula)


def test_nesterov_needs_momentum():
  with pytest.raises(errors.UserError, match='nesterov is True.* momentum'):
    optimizers.Sgd.config(nesterov=True).Instantiate()


@pytest.mark.parametrize('nesterov', [False, True])
def test_lars(nesterov):
  """You et al. 2017, algorithm 1, in Optax's order: decay, ratio, rate."""
  decay, trust, momentum = 0.1, 0.02, 0.8

  def formula(name, w, gradients):
    del name
    v = 0.0
    for g in gradients:
      g = g + decay * w
      step = RATE * trust * np.linalg.norm(w) / np.linalg.norm(g) * g
      v = momentum * v + step
      w = w - (momentum * v + step if nesterov else v)
      yield w

  config = optimizers.Lars.config(
    learning_rate=RATE,
    weight_decay=decay,
    trust_coefficient=trust,
    momentum=momentum,
    nesterov=nesterov,
  )
  assert_steps(config, formula)


def test_lars_masks():
  decayed = {name: name == 'matrix' for name in stepping.SHAPES}
  scaled = {name: name == 'heads' for name in stepping.SHAPES}

  def formula(name, w, gradients):
    for g in gradients:
      g = g + 0.1 * w if decayed[name] else g
      ratio = 0.5 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.25)
      w = w - RATE * g * (ratio if scaled[name] else 1.0)
      yield w

  config = optimizers.Lars.config(
    learning_rate=RATE,
    weight_decay=0.1,
    weight_decay_mask=decayed,
    trust_coefficient=0.5,
    trust_ratio_mask=scaled,
    eps=0.25,
    momentum=0.0,
  )
  assert_steps(config, formula)


@pytest.mark.parametrize(
  'clip,decay', [(1.0, 0.0), (0.0, 0.0), (0.25, 0.0), (1.0, 0.1)]
)
def test_lion(clip, decay):
  """Chen et al. 2023, algorithm 2."""
  beta1, beta2 = 0.8, 0.95

  def formula(name, w, gradients):
    del name
    m = 0.0
    for g in gradients:
      u = np.sign(beta1 * m + (1 - beta1) * g)
      m = beta2 * m + (1 - beta2) * g
      if clip:
        u = u / max(1.0, stepping.rms(u) / clip)
      w = w - RATE * (u + decay * w)
      yield w

  config = optimizers.Lion.config(
    learning_rate=RATE,
    beta1=beta1,
    beta2=beta2,
    clip_threshold=clip,
    weight_decay=decay,
    m_dtype=jnp.float32,
  )
  assert_steps(config, formula)


def test_lions_momentum_has_the_given_dtype():
  def momentum(**fields):
    config = optimizers.Lion.config(learning_rate=RATE, **fields)
    transformation = config.Instantiate().grad_transformation()
    weights, gradients = stepping.weights(), stepping.gradients(1)[0]
    state = transformation.init(weights)
    _, state = transformation.update(gradients, state, weights)
    (m,) = (part.mu for part in state[0] if hasattr(part, 'mu'))
    return m['matrix']

  assert momentum().dtype == jnp.bfloat16
  assert momentum(m_dtype='float32').dtype == jnp.float32
  np.testing.assert_allclose(
    np.float32(momentum()), momentum(m_dtype='float32'), rtol=2**-8
  )
