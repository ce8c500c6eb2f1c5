"""Initial weights against Lingvo's, with the same method and shape.

The numbers differ, since the generators do; their distributions must not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from adaptors import lingvo_runtime
from pax_compat.layer_core.weight_init import WeightInit
from tests.adaptors.translate.parity import issues_of

SCALE = 0.7
# A vector, a matrix and a kernel, each of 12,000 elements.
SHAPES = [(12_000,), (100, 120), (2, 3, 40, 50)]

# By method, the arguments of its constructor, the same in Lingvo as in ours.
# Lingvo lists, but cannot draw, ScaledDeltaOrthogonal; the two custom methods
# take functions of TensorFlow, and are refused when they are translated.
ARGUMENTS = {
  'Gaussian': (SCALE,),
  'Uniform': (SCALE,),
  'UniformPositive': (SCALE,),
  'Category': (5,),
  'Xavier': (SCALE,),
  'XavierWithFixupParams': (SCALE, 16, 2),
  'GeoMeanXavier': (SCALE,),
  'Constant': (SCALE,),
  'TruncatedGaussian': (SCALE,),
  'GaussianSqrtDim': (SCALE,),
  'GaussianSqrtFanIn': (SCALE,),
  'GaussianSqrtFanOut': (SCALE,),
  'GaussianSqrtFanAvg': (SCALE,),
  'UniformSqrtDim': (SCALE,),
  'UniformUnitScaling': (SCALE,),
  'UniformUnitScalingFanAvg': (SCALE,),
  'TruncatedGaussianSqrtDim': (SCALE,),
  'TruncatedGaussianSqrtFanIn': (SCALE,),
  'TruncatedGaussianSqrtFanOut': (SCALE,),
  'KaimingUniformFanInRelu': (),
  'KaimingUniformFanInLeakyRelu': (SCALE,),
}
NOT_DRAWN = ['CustomConstantVarInit', 'CustomVarInit', 'ScaledDeltaOrthogonal']


@pytest.fixture(scope='module')
def py_utils():
  return lingvo_runtime.module('lingvo.core.py_utils')


def _lingvos(py_utils, method, shape):
  init = getattr(py_utils.WeightInit, method)(*ARGUMENTS[method])
  lingvo_runtime.module('tensorflow').random.set_seed(11)
  with lingvo_runtime.cluster():
    variable = py_utils.CreateVariable(
      f'{method}_{len(shape)}', py_utils.WeightParams(shape, init)
    )
  return variable.numpy()


def test_every_method_of_lingvo_is_compared(py_utils):
  methods = {
    name
    for name, x in vars(py_utils.WeightInit).items()
    if isinstance(x, staticmethod) and not name.startswith('_')
  }
  assert methods == {*ARGUMENTS, *NOT_DRAWN}


@pytest.mark.parametrize('shape', SHAPES, ids=len)
@pytest.mark.parametrize('method', ARGUMENTS)
def test_same_distribution(py_utils, method, shape):
  init = getattr(WeightInit, method)(*ARGUMENTS[method])
  ours = np.asarray(init(jax.random.key(1), shape, jnp.float32))
  theirs = _lingvos(py_utils, method, shape)
  assert ours.shape == theirs.shape
  if method == 'Constant':
    np.testing.assert_array_equal(ours, theirs)
    return
  # The difference of two means of 12,000 draws has a standard error of 1.3% of
  # the deviation, that of two deviations one of 0.9%.
  deviation = theirs.std()
  assert abs(ours.mean() - theirs.mean()) <= 0.05 * deviation
  np.testing.assert_allclose(ours.std(), deviation, rtol=0.04)
  assert stats.ks_2samp(ours.ravel(), theirs.ravel()).pvalue > 1e-4
  if 'Gaussian' in method and 'Truncated' not in method:
    return
  # Many draws come close to the bounds, if there are any.
  width = theirs.max() - theirs.min()
  np.testing.assert_allclose(ours.min(), theirs.min(), atol=5e-3 * width)
  np.testing.assert_allclose(ours.max(), theirs.max(), atol=5e-3 * width)


@pytest.mark.parametrize('method', ARGUMENTS)
def test_defaults_are_lingvos(py_utils, method):
  theirs = getattr(py_utils.WeightInit, method)()
  ours = getattr(WeightInit, method)()
  assert ours.method == theirs.method
  np.testing.assert_allclose(ours.scale, theirs.scale)


@pytest.mark.parametrize('method', NOT_DRAWN)
def test_methods_that_are_refused(py_utils, method):
  init = getattr(py_utils.WeightInit, method)
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = layers.ProjectionLayer.Params().Set(
    name='proj',
    input_dim=4,
    output_dim=3,
    batch_norm=False,
    params_init=init(None) if method.startswith('Custom') else init(),
  )
  (issue,) = issues_of(params)
  assert 'layer.params_init' in issue and 'is not translated' in issue
