"""Tests of initial values of bridged variables against Lingvo's."""

import functools

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import initial_values, variables

SHAPE = [40, 30]
STACKED = 20


def _made(init, *, stacked=False, dtype='float32', shape=None):
  """Returns Lingvo's initial value, and the stand-in of the variable."""
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  params = py_utils.WeightParams(shape or SHAPE, init, tf.as_dtype(dtype))

  def create():
    if not stacked:
      return py_utils.CreateVariable('v', params)
    with py_utils.VariableShapePrefixContext(STACKED):
      return py_utils.CreateVariable('v', params)

  with lingvo_runtime.eager_flag(True):
    with variables.creating():
      stand_in = create()
    with lingvo_runtime.eager_flag(False), tf.Graph().as_default():
      tf.random.set_seed(1)
      value = create()
      with tf.compat.v1.Session() as session:
        session.run(value.initializer)
        return session.run(value), stand_in


def _ours(stand_in):
  return np.asarray(
    initial_values.of(stand_in)(
      jax.random.key(0), stand_in.shape, stand_in.dtype.as_numpy_dtype
    )
  )


@pytest.mark.parametrize('stacked', [False, True])
@pytest.mark.parametrize(
  'method',
  [
    'Gaussian',
    'Uniform',
    'UniformPositive',
    'Xavier',
    'GeoMeanXavier',
    'TruncatedGaussian',
    'GaussianSqrtDim',
    'GaussianSqrtFanIn',
    'GaussianSqrtFanOut',
    'GaussianSqrtFanAvg',
    'UniformSqrtDim',
    'UniformUnitScaling',
    'UniformUnitScalingFanAvg',
    'TruncatedGaussianSqrtDim',
    'TruncatedGaussianSqrtFanIn',
    'TruncatedGaussianSqrtFanOut',
  ],
)
def test_distributions(method, stacked):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  init = getattr(py_utils.WeightInit, method)(0.7)
  theirs, stand_in = _made(init, stacked=stacked)
  ours = _ours(stand_in)
  assert ours.shape == theirs.shape == tuple([STACKED] * stacked + SHAPE)
  # Of 1,200 numbers at least; the maximum distinguishes the families.
  np.testing.assert_allclose(ours.std(), theirs.std(), rtol=0.1)
  np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=0.1 * ours.std())
  np.testing.assert_allclose(ours.max(), theirs.max(), rtol=0.25)


def test_values_that_a_layer_computes():
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  tf = lingvo_runtime.module('tensorflow')
  values = np.arange(1200, dtype=np.float32).reshape(SHAPE)
  for init in (
    py_utils.WeightInit.CustomVarInit(
      lambda shape, dtype: tf.constant(values, dtype)
    ),
    py_utils.WeightInit.CustomConstantVarInit(values),
  ):
    theirs, stand_in = _made(init)
    np.testing.assert_array_equal(theirs, values)
    np.testing.assert_array_equal(_ours(stand_in), values)
    # Also within jit.
    init = initial_values.of(stand_in)
    traced = jax.jit(functools.partial(init, shape=SHAPE, dtype='float32'))
    np.testing.assert_array_equal(traced(jax.random.key(0)), values)


def test_integers():
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  theirs, stand_in = _made(py_utils.WeightInit.Constant(3), dtype='int32')
  np.testing.assert_array_equal(_ours(stand_in), theirs)
