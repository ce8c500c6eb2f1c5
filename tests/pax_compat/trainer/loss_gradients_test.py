"""Train steps with a learner's `stochastic_gradient`."""

import types

import jax
import numpy as np
import pytest

from pax_compat import errors, layers, learners, optimizers
from pax_compat.base_layer import PARAMS
from pax_compat.layers import embedding_softmax
from pax_compat.learners import sgf
from pax_compat.trainer import loss_gradients
from tests.pax_compat.trainer import tiny


def _steps(stochastic, steps=1, **learner):
  """Returns the weights by path and the metrics after some steps."""
  task = tiny.task()
  task.train.learner.set(
    optimizer=optimizers.Sgd.config(learning_rate=1.0),
    stochastic_gradient=stochastic,
    **learner,
  )
  state, history = tiny.train(tiny.make_program(task), steps)
  return learners.by_path(state.mdl_vars[PARAMS]), (history or [{}])[-1]


def test_private_training():
  """Without clipping or noise it is training; clipped, no gradient is large."""
  plain, metrics = _steps(None)
  whole, private = _steps(
    sgf.DpSgdStochasticGradient.config(l2_norm_clip=1e3, inner_batch_size=4)
  )
  for path, weight in plain.items():
    np.testing.assert_allclose(whole[path], weight, rtol=1e-4, atol=1e-6)
  assert private['dp_metrics/frac_clipped'] == 0
  np.testing.assert_allclose(private['loss'], metrics['loss'], rtol=1e-5)
  assert metrics['learning/raw_grad_norm'] > 0.2
  clipped = sgf.DpSgdStochasticGradient.config(l2_norm_clip=0.1)
  kept = 'params/lm/final_ln/.*'
  first, _ = _steps(clipped, 0)
  after, private = _steps(clipped, bprop_variable_exclusion=kept)
  assert 0.01 < private['learning/raw_grad_norm'] <= 0.1
  assert private['dp_metrics/frac_clipped'] == 1
  for path, weight in first.items():
    is_same = np.array_equal(after[path], weight)
    assert is_same == path.startswith('lm/final_ln'), path


def test_ghost_clipping_of_stacked_layers():
  """A Transformer's steps are those with gradients of examples."""

  def steps(cls):
    task = tiny.task()
    lm = task.model.lm_tpl
    lm.separate_embedding_tpl = embedding_softmax.Embedding.config()
    lm.stacked_transformer_tpl = layers.StackedTransformerRepeated.config(
      block=lm.stacked_transformer_tpl, x_times=2
    )
    task.train.learner.set(
      optimizer=optimizers.Sgd.config(learning_rate=1.0),
      stochastic_gradient=cls.config(l2_norm_clip=0.3, noise_multiplier=0.2),
    )
    state, [metrics] = tiny.train(tiny.make_program(task), 1)
    return learners.by_path(state.mdl_vars[PARAMS]) | metrics

  plain = steps(sgf.DpSgdStochasticGradient)
  ghost = steps(sgf.GhostClippingDpSgdStochasticGradient)
  assert ghost.keys() == plain.keys()
  for name, value in ghost.items():
    np.testing.assert_allclose(
      value, plain[name], rtol=1e-5, atol=1e-6, err_msg=name
    )
  assert ghost['dp_metrics/frac_clipped'] > 0


def test_ghost_clipping_refuses_a_shared_matrix():
  with pytest.raises(
    errors.UserError, match="'lm/softmax/logits_ffn/linear/w' .*elsewhere"
  ):
    _steps(sgf.GhostClippingDpSgdStochasticGradient.config(l2_norm_clip=1.0))


def test_noise_differs_between_steps():
  noisy = sgf.DpSgdStochasticGradient.config(
    l2_norm_clip=1e-3, noise_multiplier=1e3
  )
  once, _ = _steps(noisy, 1)
  twice, _ = _steps(noisy, 2)
  first, _ = _steps(noisy, 0)
  path = 'lm/softmax/logits_ffn/linear/w'
  one = once[path] - first[path]
  # Noise of 1e-3 * 1e3 / 8 rows.
  np.testing.assert_allclose(np.std(one), 1 / 8, rtol=0.2)
  assert np.max(np.abs(twice[path] - once[path] - one)) > 0.1


class _Doubled(sgf.StandardGradient):
  def grad_fn(self, loss_fn, mdl_vars_grad, others_and_inputs, prng_key):
    result, gradients = super().grad_fn(
      loss_fn, mdl_vars_grad, others_and_inputs, prng_key
    )
    return result, jax.tree.map(lambda g: 2 * g, gradients)


def test_own_gradients():
  """A subclass, as its config or an instance of it."""
  _, plain = _steps(None)
  for own in (_Doubled.config(), _Doubled()):
    _, doubled = _steps(own)
    np.testing.assert_allclose(
      doubled['learning/raw_grad_norm'],
      2 * plain['learning/raw_grad_norm'],
      rtol=1e-6,
    )
  assert doubled['loss'] == plain['loss']


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'inner_batch_size': 3}, 'inner_batch_size is 3, .* 8 rows'),
    ({'l2_norm_clip': 0.0}, 'l2_norm_clip is 0.0; expected a number above 0'),
    (
      {'use_loss_weight_scaling': True, 'noise_multiplier': 1.0},
      'noise_multiplier is 1.0; expected 0 with it',
    ),
  ],
)
def test_mistakes(fields, message):
  stochastic = sgf.DpSgdStochasticGradient.config(
    **{'l2_norm_clip': 1.0, **fields}
  )
  with pytest.raises(errors.UserError, match=message):
    _steps(stochastic)


@pytest.mark.parametrize(
  'others,probes,message',
  [
    ({'w': 'other'}, {}, 'StandardGradient, and several losses are minimised'),
    ({}, {'table': np.zeros([3])}, 'embedding tables have sparse_gradients'),
  ],
)
def test_what_is_not_supported(others, probes, message):
  learner = types.SimpleNamespace(
    losses_of=lambda metas: others, stochastic_gradient=sgf.StandardGradient()
  )
  with pytest.raises(errors.UserError, match=message):
    loss_gradients.of_step(
      *(None,) * 4,
      probes,
      learner=learner,
      weight_metas={},
      variables={},
      loss_weight=lambda outputs: 1.0,
    )


def _in_8_bits():
  task = tiny.task()
  layer = task.model.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl
  layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl.einsum_tpl = (
    layers.Fp8EinsumOp.config(amax_history_length=4)
  )
  return task


def test_steps_replace_scales():
  """Histories have the largest values of the steps before, newest first."""
  task = _in_8_bits()
  state, _ = tiny.train(tiny.make_program(task), 3)
  weights = learners.by_path(state.mdl_vars[PARAMS])
  histories = {k: x for k, x in weights.items() if k.endswith('amax_history')}
  assert len(histories) == 6
  for path, history in histories.items():
    newest, *older = np.asarray(history)
    assert newest > 0 and np.count_nonzero(older) == 2, path
    limit = 57344.0 if 'output_grad' in path else 448.0
    # The scale is that of the largest value before the last step.
    [scale] = weights[path.replace('amax_history', 'scale')]
    np.testing.assert_allclose(scale, np.max(older) / limit, rtol=1e-6)
  optimized = jax.tree_util.tree_leaves_with_path(state.opt_state)
  assert not [p for p, _ in optimized if 'amax_history' in str(p)]


def test_which_stochastic_gradients_support_scales():
  task = _in_8_bits()
  plain, _ = tiny.train(tiny.make_program(task), 2)
  task.train.learner.stochastic_gradient = sgf.StandardGradient.config()
  standard, _ = tiny.train(tiny.make_program(task), 2)
  expected = learners.by_path(plain.mdl_vars[PARAMS])
  for path, weight in learners.by_path(standard.mdl_vars[PARAMS]).items():
    np.testing.assert_allclose(weight, expected[path], rtol=1e-5, atol=1e-6)
  task.train.learner.stochastic_gradient = sgf.DpSgdStochasticGradient.config(
    l2_norm_clip=0.1
  )
  with pytest.raises(
    errors.UserError, match='gradients of some weights are their next values'
  ):
    tiny.train(tiny.make_program(task), 1)
