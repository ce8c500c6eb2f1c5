"""Moving averages and several losses, against Lingvo's own steps."""

import numpy as np
import pytest

from tests.adaptors.translate import micro_batches, tiny_task
from tests.adaptors.translate.tiny_task import learner, optimizer


def _accumulator(name, **fields):
  return optimizer(name, optimizer_tpl=optimizer('SGD'), **fields)


@pytest.mark.parametrize(
  'name,fields',
  [
    ('Accumulator', {'accum_steps': 2}),
    pytest.param(
      'DynamicAccumulator', {'min_accum_weight': 3.4}, marks=pytest.mark.slow
    ),
  ],
)
def test_averages_are_of_every_batch(name, fields):
  """Also of those that only accumulate gradients."""
  run = tiny_task.check(
    tiny_task.params(optimizer=_accumulator(name, **fields), ema_decay=0.9)
  )
  first, second, *_ = run.averages
  np.testing.assert_array_equal(run.weights[1]['first.w'], first['first.w'])
  assert np.any(second['first.w'] != first['first.w'])
  assert np.any(run.averages[-1]['first.w'] != run.averages[-2]['first.w'])


@pytest.mark.slow
@pytest.mark.parametrize('defers', [False, True])
def test_averages_of_micro_batches(defers):
  """The decay depends on the global step, which the optimizer increases."""
  with micro_batches.sharded_adam() as adam:
    params = tiny_task.params(optimizer=adam, ema_decay=0.9)
    tiny_task.check(params.Set(defer_global_step_update=defers))


def test_learners_of_different_losses():
  """Each has its own loss, whose gradients are measured by themselves."""
  params = tiny_task.params(
    learner=[
      learner(
        name='layers',
        loss_name='loss',
        bprop_variable_filter='first|emb',
        clip_gradient_norm_to_value=0.5,
      ),
      learner(
        name='twice',
        bprop_variable_filter='second',
        l2_regularizer_weight=0.1,
        optimizer=optimizer('Adam', epsilon=0.1),
      ),
    ]
  )
  run = tiny_task.check(params)
  assert all(tiny_task.moved(run).values())
  config = tiny_task.translate(params).config.train.learner
  assert config.loss_name == 'loss'
  assert config.auxiliary_loss_names == ['twice']


@pytest.mark.slow
def test_accumulation_by_the_weight_of_each_loss():
  """The weight of `loss` is the batch's scale, that of `twice` is 1."""
  params = tiny_task.params(
    learner=[
      learner(
        name='layers',
        loss_name='loss',
        bprop_variable_filter='first|emb',
        optimizer=_accumulator('DynamicAccumulator', min_accum_weight=3.4),
      ),
      learner(
        name='twice',
        bprop_variable_filter='second',
        optimizer=_accumulator('DynamicAccumulator', min_accum_weight=2.0),
      ),
    ]
  )
  run = tiny_task.check(params)
  moves = [
    np.any(before['second.w'] != after['second.w'])
    for before, after in zip(run.weights, run.weights[1:], strict=False)
  ]
  assert moves == [False, True, False, True]
