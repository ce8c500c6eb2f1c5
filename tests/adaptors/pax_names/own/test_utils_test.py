"""The test case of `praxis.test_utils`."""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors.pax_names.own import test_utils
from pax_compat.nested_map import NestedMap


class _Case(test_utils.TestCase):
  def runTest(self):  # noqa: N802 (unittest's spelling)
    """A test case is made with the name of a test."""


def test_arrays_are_compared():
  case = _Case()
  case.setUp()
  x = jnp.asarray([1.0, 2.0], jnp.bfloat16)
  case.assertAllClose(x, x)
  case.assertArraysEqual(np.int64(3), np.int32(3))
  case.assertNotAllClose([1.0], [2.0])
  case.assertNear(1.0, 1.1, 0.2)
  for wrong in (
    lambda: case.assertAllClose([1.0], [1]),
    lambda: case.assertNotAllClose([1.0], [1.0]),
    lambda: case.assertNear(1.0, 1.1, 0.01),
    lambda: case.assertArraysEqual([1], [2]),
  ):
    with pytest.raises(AssertionError):
      wrong()


def test_each_test_has_its_own_numbers():
  first, second = _Case(), _Case()
  first.setUp()
  second.setUp()
  assert first.rng().rand() == second.rng().rand()


def test_shards_are_joined():
  found = test_utils.unshard_input_nmap(NestedMap(a=jnp.zeros([2, 3, 4])))
  assert found.a.shape == (6, 4)
  assert test_utils.to_np(jnp.ones([1], jnp.int32)).dtype == np.float32
