"""Tests of the task of a bridged model, and of the device it is built for."""

import copy

import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.lingvo_task import LingvoTask
from pax_compat import errors
from tests.adaptors.bridge import small_task


def _py_utils():
  return lingvo_runtime.module('lingvo.core.py_utils')


def _needs_cpu(*unused):
  assert not _py_utils().use_tpu(), 'not for a TPU'


def _in_fprop(task, theta, batch):
  _needs_cpu()
  return small_task.product(task, theta, batch)


def _lower_on_tpu(task, theta, batch):
  tf = lingvo_runtime.module('lingvo.compat')
  loss, weight = small_task.product(task, theta, batch)['loss']
  if _py_utils().use_tpu():
    loss = tf.cast(tf.cast(loss, tf.bfloat16), tf.float32)
  return {'loss': (loss, weight)}


def _bfloat16(params):
  tf = lingvo_runtime.module('lingvo.compat')
  return params.Set(fprop_dtype=tf.bfloat16)


@pytest.mark.parametrize(
  ('params', 'device', 'reason'),
  [
    (lambda: small_task.params(), 'tpu', ''),
    (lambda: small_task.params(build=_needs_cpu), 'cpu', 'not for a TPU'),
    (lambda: small_task.params(_in_fprop), 'cpu', 'not for a TPU'),
    (lambda: small_task.params(_lower_on_tpu), 'cpu', 'computes in bfloat16'),
    (lambda: _bfloat16(small_task.params(_lower_on_tpu)), 'tpu', ''),
  ],
)
def test_the_device_is_the_first_that_the_task_supports(
  params, device, reason, caplog
):
  caplog.set_level('INFO')
  task = LingvoTask(params())
  trace = task.trace(('loss',), small_task.batch())
  assert task.xla_device == device
  assert trace.unused == ('table',)
  logged = [
    r.getMessage() for r in caplog.records if 'xla_dev' in r.getMessage()
  ]
  assert len(logged) == bool(reason)
  assert reason in ' '.join(logged)
  # Evaluation has the same.
  assert task.at_evaluation._xla_device == device
  assert task.at_evaluation.do_eval and not task.at_training.do_eval
  assert task.at_training is task.at_training


def test_replaced_ops_are_logged_once(caplog):
  def compute(task, theta, batch):
    tf = lingvo_runtime.module('lingvo.compat')
    loss, weight = small_task.product(task, theta, batch)['loss']
    return {'loss': (loss + tf.random.uniform([]), weight)}

  caplog.set_level('INFO')
  task = LingvoTask(small_task.params(compute))
  for _ in range(2):
    task.trace(('loss',), small_task.batch())
  logged = [
    r.getMessage() for r in caplog.records if 'replaced' in r.getMessage()
  ]
  assert len(logged) == 1
  assert logged[0].endswith('own seed: random_uniform (1)')


def test_a_device_that_is_given_is_the_only_one():
  assert LingvoTask(small_task.params(), 'cpu').at_training._xla_device == 'cpu'
  task = LingvoTask(small_task.params(build=_needs_cpu), 'tpu')
  with pytest.raises(errors.UserError, match=r'AssertionError: not for a TPU'):
    _ = task.at_training
  task = LingvoTask(small_task.params(_lower_on_tpu), 'tpu')
  assert task.trace(('loss',), small_task.batch()).has_bfloat16


def _fails(task, theta, batch):
  raise ValueError('anyway')


def _fails_otherwise(task, theta, batch):
  raise ValueError('under ' + ('tpu' if _py_utils().use_tpu() else 'cpu'))


def _refused_by_us(task, theta, batch):
  task.vars.w.assign(theta.w)
  return small_task.product(task, theta, batch)


@pytest.mark.parametrize(
  ('compute', 'words'),
  [
    (
      _fails,
      r'^small cannot .* function: ValueError: anyway \(.*_test.py:\d+\)$',
    ),
    (
      _fails_otherwise,
      r'for xla_device=tpu: ValueError: under tpu \(.*\);'
      r' for xla_device=cpu: ValueError: under cpu \(.*\)$',
    ),
    (_refused_by_us, '^small assigns to the weight w, which learners'),
  ],
)
def test_the_error_has_the_reasons_of_both_devices(compute, words):
  task = LingvoTask(small_task.params(compute))
  with pytest.raises(errors.UserError, match=words):
    task.trace(('loss',), small_task.batch())


def test_a_wrong_name_is_reported_after_the_first_device():
  builds = []

  def build(task):
    builds.append(_py_utils().use_tpu())
    return task.no_such_method()

  task = LingvoTask(small_task.params(build=build))
  words = 'cannot be run as a function: AttributeError: no_such_method'
  with pytest.raises(errors.UserError, match=words):
    task.trace(('loss',), small_task.batch())
  assert builds and all(builds)  # It was not tried without a TPU.


def test_copies_are_the_same_task():
  task = LingvoTask(small_task.params())
  assert copy.deepcopy({'a': task})['a'] is task
  assert 'SmallTask' in repr(task)
