"""Noise on weights: on which ones, how much, from when; against Lingvo's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors.bridge.functional import fed_task
from pax_compat import base_layer, errors, learners
from tests.adaptors.translate import tiny_task

_STD = 0.25


def _params(**noise):
  params = tiny_task.params(vn_std=_STD, vn_start_step=2)
  # Only one of the two layers gets noise.
  params.first.enable_vn = True
  params.vn.Set(global_vn=True, **noise)
  return params


def _lingvos_noise(params, step) -> dict[str, np.ndarray]:
  """Returns what a task adds to each weight at a step, by theta path."""
  with fed_task.build(params, tiny_task.batches()[0]) as made:
    task = made.task
    theta = dict(task.theta.FlattenItems())
    variables = dict(task.vars.FlattenItems())
    made.start()
    made.session.run(task.global_step.assign(step))
    noisy, clean = made.session.run([theta, variables])
  return {path: noisy[path] - clean[path] for path in clean}


def _our_noise(params, step) -> dict[str, np.ndarray]:
  data = tiny_task.batches()[0]
  first = tiny_task.run_lingvo(params, [data]).weights[0]
  translated, made, state = tiny_task.start(params, data, first)
  weights = state.mdl_vars[base_layer.PARAMS]
  noisy = made.noise.add(weights, jnp.int32(step), jax.random.key(0))
  added = jax.tree.map(lambda a, b: a - b, noisy, weights)
  return translated.variables.to_lingvo(learners.by_path(added))


def _is_noise(added):
  return {path: bool(np.any(values)) for path, values in added.items()}


@pytest.mark.parametrize('step', [1, 2])
def test_the_same_weights_get_noise_at_the_same_step(step):
  params = _params()
  theirs, ours = _lingvos_noise(params, step), _our_noise(params, step)
  assert _is_noise(ours) == _is_noise(theirs)
  if step == 2:
    assert _is_noise(theirs) == {
      'emb.wm[0]': True,
      'first.w': True,
      'first.b': False,
      'second.w': False,
      'second.b': False,
    }


def test_how_much_noise_there_is():
  """The deviation, over the 44 numbers that get noise."""
  for added in (_lingvos_noise(_params(), 5), _our_noise(_params(), 5)):
    values = np.concatenate([x.ravel() for x in added.values() if np.any(x)])
    assert 0.6 * _STD < np.std(values) < 1.4 * _STD


def test_noise_that_is_nowhere_added():
  params = tiny_task.params(vn_std=0.1)
  translated = tiny_task.translate(params)
  assert translated.config.vn.Instantiate().vn_scale == 0
  assert any('task.train.vn_std = 0.1' in note for note in translated.notes)
  params.train.vn_std = 0.0
  params.vn.global_vn = True
  assert tiny_task.translate(params).config.vn.Instantiate().vn_scale == 0


def test_no_layer_takes_part():
  params = _params()
  params.emb.vn = params.vn.Copy().Set(global_vn=False, scale=1.0)
  params.first.enable_vn = False
  with pytest.raises(errors.UserError, match=r'task\.train\.vn_'):
    tiny_task.translate(params)


@pytest.mark.parametrize(
  'name,value',
  [
    ('per_step_vn', True),
    ('use_uniform_noise', True),
    ('weight_norm_type', 'L2'),
    ('start_step', 3),
    ('scale', 0.5),
  ],
)
def test_what_is_refused(name, value):
  with pytest.raises(errors.UserError, match=rf'task\.vn\.{name}'):
    tiny_task.translate(_params(**{name: value}))
