"""Summaries that Python draws are left out of compiled models."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional.functional_task import FunctionalTask
from adaptors.bridge.ops import compilable, summaries, xla_ops
from pax_compat import errors
from tests.adaptors.bridge.families import lenet5


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('lingvo.compat')


def test_the_picture_of_lenet5(log):
  """At its evaluation, in which Lingvo draws digits with Matplotlib."""
  summaries.log_left_out.cache_clear()
  params, batch = lenet5.task_params(), lenet5.batch(0)
  assert params.add_image_summary
  task = FunctionalTask(params, do_eval=True, xla_device='tpu')
  tf = lingvo_runtime.module('tensorflow')
  values = {k: tf.zeros(v.shape, v.dtype) for k, v in task.variables.items()}
  fed = {k: tf.constant(v) for k, v in batch.items()}
  metrics, *_ = task.forward(
    values, fed, tf.constant(0), tf.zeros([2], tf.int32)
  )
  assert 'loss' in metrics
  assert log().count('the summary that Python draws') == 1


def _draws(tf, x):
  picture = tf.py_func(lambda a: a, [x], tf.float32)
  tf.summary.image('picture', tf.reshape(picture, [1, 3, 1, 1]))
  return 2 * x


def test_a_picture_of_a_users_own(tf):
  traced = tf.function(lambda x: _draws(tf, x)).get_concrete_function(
    tf.TensorSpec([3])
  )
  assert not compilable.uncompilable_ops(traced)


def test_python_that_draws_nothing_is_refused(tf):
  def run(x):
    with xla_ops.replaced(None):
      tf.py_func(print, [x], [])
      return 2 * x

  with pytest.raises(errors.UserError, match='Python code cannot run'):
    tf.function(compilable.compilable(run))(np.ones([3], np.float32))
