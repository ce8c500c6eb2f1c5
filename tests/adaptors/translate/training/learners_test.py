"""Translated learners against Lingvo's: whole steps of a tiny task."""

import itertools

import numpy as np
import pytest
from absl.testing import flagsaver

from adaptors import lingvo_runtime
from adaptors.translate import variable_names
from pax_compat import errors
from tests.adaptors.translate import tiny_task
from tests.adaptors.translate.tiny_task import optimizer, schedule

_W = 'second/linear/w'
_ADAM = {'epsilon': 1e-3}


def _issues(task_params) -> str:
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(task_params)
  return str(error.value)


def test_adam_with_its_schedule_and_clipping_of_all_gradients():
  run = tiny_task.check(
    tiny_task.params(
      optimizer=optimizer('Adam', **_ADAM),
      lr_schedule=schedule('LinearSchedule', start=(0, 0.5), limit=(4, 2.0)),
      clip_gradient_norm_to_value=0.25,
    )
  )
  assert max(run.norms) > 0.25


def test_clipping_of_single_gradients():
  tiny_task.check(tiny_task.params(clip_gradient_single_norm_to_value=0.02))


def test_gradients_that_are_too_large_or_not_finite_count_as_zero():
  """Adam's mean of earlier gradients moves the weights all the same."""
  params = tiny_task.params(
    optimizer=optimizer('Adam', **_ADAM), grad_norm_to_clip_to_zero=50.0
  )
  # Lingvo has an assertion too, which is off on accelerators.
  with flagsaver.flagsaver(enable_check_numerics=False):
    data = tiny_task.batches([1.0, np.nan, 1.0, 1e4, 1.0])
    run = tiny_task.check(params, data)
  assert max(run.norms) > 50
  assert all(tiny_task.moved(run).values())


@pytest.mark.parametrize('fields', [{}, {'clip_gradient_norm_to_value': 0.25}])
def test_steps_of_unusually_large_gradients_are_left_out(fields):
  """Far from the limit: where it lies exactly Lingvo's graph leaves to chance.

  It may divide its averages by their weight before or after a step.
  """
  tracker = lingvo_runtime.module('lingvo.core.layers').GradNormTracker
  params = tiny_task.params(
    grad_norm_tracker=tracker.Params().Set(
      name='tracker', decay=0.5, clip_threshold=1.0, grad_norm_clip_cap_min=50.0
    ),
    **fields,
  )
  with flagsaver.flagsaver(enable_check_numerics=False):
    data = tiny_task.batches([1.0, 1.0, 1.0, 1e4, np.nan, 1.0, 1.0])
    run = tiny_task.check(params, data)
  stays = [
    all(np.array_equal(old[path], new[path]) for path in old)
    for old, new in itertools.pairwise(run.weights)
  ]
  assert stays == [False, False, False, True, True, False, False]


def test_a_tracker_of_gradients_that_are_not_measured_together():
  tracker = lingvo_runtime.module('lingvo.core.layers').GradNormTracker
  params = tiny_task.params(
    grad_norm_tracker=tracker.Params(), clip_gradient_single_norm_to_value=0.02
  )
  translated = tiny_task.translate(params)
  assert translated.config.train.learner.grad_norm_tracker is None
  assert any('grad_norm_tracker' in note for note in translated.notes)


def test_gradients_that_are_not_scaled():
  run = tiny_task.check(
    tiny_task.params(
      scale_gradients=False,
      clip_gradient_norm_to_value=0.01,
      grad_norm_to_clip_to_zero=0.01,
    )
  )
  assert all(tiny_task.moved(run).values())


@pytest.mark.parametrize('kinds', [['l1'], ['l2'], ['l1', 'l2']])
def test_regularisation(kinds):
  """It spares one layer, and rows of the table that no batch looks up."""
  weights = {f'{kind}_regularizer_weight': 0.1 for kind in kinds}
  tiny_task.check(tiny_task.params(**weights, clip_gradient_norm_to_value=0.5))


def test_variables_that_are_not_trained():
  run = tiny_task.check(
    tiny_task.params(
      bprop_variable_filter='first/|tiny/emb',
      bprop_variable_exclusion='/b/var:0$',
      clip_gradient_norm_to_value=0.1,
    )
  )
  fixed = {'first.b', 'second.b', 'second.w'}
  assert {p for p, did in tiny_task.moved(run).items() if not did} == fixed


@pytest.mark.parametrize(
  'fields,fixed',
  [
    ({'bprop_variable_filter': 'first/|tiny/emb'}, ['second/bias/b', _W]),
    ({'bprop_variable_exclusion': '/b/'}, ['first/bias/b', 'second/bias/b']),
    ({'bprop_variable_exclusion': 'no such'}, []),
  ],
)
def test_expressions_are_about_lingvos_names(fields, fixed):
  learner = tiny_task.translate(tiny_task.params(**fields)).config.train.learner
  found = [
    name.removeprefix('params/') for name in learner.bprop_variable_exclusion
  ]
  assert found == fixed


@pytest.mark.parametrize('where', ['task', 'learner', 'noise'])
def test_a_task_that_is_refused_does_not_read_names(monkeypatch, where):
  """Names take seconds: Lingvo's model is instantiated for them."""
  read, real = [], variable_names._names_and_noisy
  monkeypatch.setattr(
    variable_names,
    '_names_and_noisy',
    lambda params: read.append(params) or real(params),
  )
  if where == 'noise':
    params = tiny_task.params(vn_std=0.1)
    params.vn.global_vn = params.first.enable_vn = True
  else:
    params = tiny_task.params(bprop_variable_filter='first')
  tiny_task.translate(params)
  assert read
  read.clear()
  params.train.ema_decay = 1.5
  if where == 'learner':
    params.train.clip_gradient_norm_to_value = 1.0
    params.train.clip_gradient_single_norm_to_value = 1.0
  text = _issues(params)
  assert 'train.ema_decay' in text
  assert ('single_norm' in text) == (where == 'learner')
  assert not read


def test_moving_average_of_the_weights():
  run = tiny_task.check(
    tiny_task.params(ema_decay=0.15, bprop_variable_exclusion='second')
  )
  assert np.any(run.averages[-1]['first.w'] != run.weights[-1]['first.w'])


def test_the_schedule_that_a_moving_average_has_anyway():
  params = tiny_task.params(
    ema_schedule=schedule('EmaDecaySchedule', ema_decay=0.15)
  )
  tiny_task.check(params)


_REFUSED = [
  (
    {
      'clip_gradient_norm_to_value': 1.0,
      'clip_gradient_single_norm_to_value': 1.0,
    },
    ['train.clip_gradient_single_norm_to_value'],
  ),
  ({'bprop_variable_filter': 'nowhere'}, ['no variable is left to train']),
  ({'bprop_variable_filter': '('}, ['not a regular expression']),
  ({'ema_decay': 1.5}, ['train.ema_decay']),
]


@pytest.mark.parametrize('fields,message', _REFUSED)
def test_what_is_refused(fields, message):
  text = _issues(tiny_task.params(**fields))
  for part in message:
    assert part in text


@pytest.mark.parametrize(
  'fields,message',
  [
    (
      {'optimizer': lambda: optimizer('DynamicAccumulator')},
      'train.optimizer.min_accum_weight (lingvo.core.optimizer.Dynamic',
    ),
    (
      {'ema_schedule': lambda: schedule('Constant', value=0.9)},
      'train.ema_schedule',
    ),
    (
      {'lr_schedule': lambda: schedule('DevBasedSchedule', window=0)},
      'train.lr_schedule.window (lingvo.core.schedule.DevBasedSchedule)',
    ),
  ],
)
def test_what_is_refused_by_class(fields, message):
  made = {name: make() for name, make in fields.items()}
  assert message in _issues(tiny_task.params(**made))
