"""Tests of noise on weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, optimizers
from pax_compat.tasks import task_settings
from pax_compat.trainer import variational_noise
from tests.pax_compat.trainer import lines

PARAMS = {
  'lm': {'softmax': {'w': jnp.ones([100, 200]), 'b': jnp.zeros([200])}},
  'enc': {'w': jnp.full([50, 300], 2, jnp.bfloat16)},
}
PATHS = ['enc/w', 'lm/softmax/b', 'lm/softmax/w']


def _noise(**fields):
  settings = task_settings.VariationalNoise.config(**fields).Instantiate()
  return variational_noise.Noise(settings, PATHS)


def _added(noise, step=0, key=0):
  noisy = jax.jit(noise.add)(PARAMS, jnp.int32(step), jax.random.key(key))
  return jax.tree.map(lambda x, w: np.asarray(x - w), noisy, PARAMS)


def test_noise_is_normal():
  added = _added(_noise(vn_scale=0.3))
  w = added['lm']['softmax']['w'].ravel()
  error = 1 / np.sqrt(w.size)
  assert abs(w.mean()) < 4 * 0.3 * error
  assert abs(w.std() / 0.3 - 1) < 4 * error
  assert abs((np.abs(w) < 0.3).mean() - 0.683) < 4 * 0.5 * error
  # Nothing repeats, within a weight or between weights.
  assert len(np.unique(w)) > 0.99 * w.size
  b = added['lm']['softmax']['b']
  assert abs(np.corrcoef(b, w[: b.size])[0, 1]) < 0.3
  assert added['enc']['w'].dtype == jnp.bfloat16
  assert abs(added['enc']['w'].astype(np.float32).std() / 0.3 - 1) < 0.05


def test_only_weights_that_match_get_noise():
  noise = _noise(vn_scale=1.0, vn_regex='params/lm/.*w')
  assert noise.paths == {'params/lm/softmax/w'}
  added = _added(noise)
  assert added['lm']['softmax']['w'].any()
  assert not added['lm']['softmax']['b'].any()
  assert not added['enc']['w'].any()


def test_every_key_has_different_noise():
  noise = _noise(vn_scale=1.0)
  one, same, other = (_added(noise, key=key) for key in (1, 1, 2))
  np.testing.assert_array_equal(one['enc']['w'], same['enc']['w'])
  x, y = (a['lm']['softmax']['w'].ravel() for a in (one, other))
  assert abs(np.corrcoef(x, y)[0, 1]) < 0.03


@pytest.mark.parametrize(
  ('step', 'any_noise'), [(0, False), (6, False), (7, 1)]
)
def test_noise_begins_at_its_step(step, any_noise):
  added = _added(_noise(vn_scale=1.0, vn_start_step=7), step=step)
  assert added['enc']['w'].any() == bool(any_noise)


def test_before_its_step_nothing_is_drawn():
  noise = _noise(vn_scale=1.0, vn_start_step=7)
  jaxpr = jax.make_jaxpr(noise.add)(PARAMS, jnp.int32(0), jax.random.key(0))
  outer = {eqn.primitive.name for eqn in jaxpr.eqns}
  assert 'cond' in outer
  assert not any('random_bits' in name for name in outer)


def test_without_a_scale_nothing_happens():
  noise = _noise(vn_scale=0.0, vn_regex='no such weight')
  assert noise.add(PARAMS, jnp.int32(3), jax.random.key(0)) is PARAMS


@pytest.mark.parametrize('regex', ['lm/softmax/w', 'params/lm/softmx/w'])
def test_an_expression_that_matches_nothing(regex):
  with pytest.raises(errors.UserError, match='vn_regex.*: params/lm/softmax/w'):
    _noise(vn_scale=0.1, vn_regex=regex)


def _noisy_program(**fields):
  task = lines.task()
  task.vn.set(**fields)
  task.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
  return lines.make_program(task)


def test_a_step_moves_clean_weights_by_the_gradient_at_noisy_ones():
  """Recovers the noise from the step, and checks the loss with it."""
  batch = lines.rows(0)
  made = _noisy_program(vn_scale=0.5, vn_regex='params/w')
  state, outputs = made.train_step(made.init_state(batch), batch)
  moved = (np.full(lines.DIMS, 0.5) - state.mdl_vars['params']['w']) / 0.1
  # The gradient is 2 X'(X w - y) / B, from which the noisy w follows.
  x, y = batch.x, batch.y
  w = np.linalg.solve(x.T @ x, moved * lines.BATCH / 2 + x.T @ y)
  assert (np.abs(w - 0.5) > 0.02).all() and (np.abs(w - 0.5) < 2).all()
  loss = np.mean((x @ w - y) ** 2)
  np.testing.assert_allclose(outputs['loss'], loss, rtol=1e-3)
  # The weight without noise: its gradient is that of the same loss.
  b = 0.1 * 2 * np.mean(y - x @ w)
  np.testing.assert_allclose(state.mdl_vars['params']['b'], b, rtol=1e-3)


def test_evaluation_and_decoding_have_no_noise():
  batch = lines.rows(0)
  noisy, clean = _noisy_program(vn_scale=5.0), _noisy_program()
  mdl_vars = clean.init_state(batch).mdl_vars
  one, other = (m.eval_step(mdl_vars, batch) for m in (noisy, clean))
  assert one['loss'] == other['loss']
  one, other = (
    m.decode_step(mdl_vars, batch).decoded.y for m in (noisy, clean)
  )
  np.testing.assert_array_equal(one, other)
