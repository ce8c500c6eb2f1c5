"""Tests of fixed numbers in place of random ones."""

import numpy as np
import pytest

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

from adaptors import lingvo_runtime  # noqa: E402
from adaptors.bridge.ops import (  # noqa: E402
  fixed_random_ops,
  function_replacing,
  xla_ops,
)


def _draw():
  tf = lingvo_runtime.module('tensorflow')
  return {
    'uniform': tf.random.uniform([3, 4], -1.0, 1.0),
    'stateless': tf.random.stateless_uniform([3, 4], [1, 2]),
    'normal': tf.random.normal([64]),
    'integers': tf.random.uniform([50], 2, 7, tf.int32),
    'dropout': tf.nn.dropout(tf.ones([100]), 0.25),
    'shuffled': tf.random.shuffle(tf.range(10)),
    'drawn': tf.random.categorical(tf.zeros([2, 5]), 3),
  }


@pytest.fixture(scope='module')
def in_graph():
  """What Lingvo's side gets, in a graph with a session."""
  tf = lingvo_runtime.module('tensorflow')
  with (
    tf.Graph().as_default(),
    function_replacing.replaced(fixed_random_ops.replacements()),
    tf.compat.v1.Session() as session,
  ):
    return session.run(_draw())


def test_the_same_compiled_as_in_a_bridged_task(in_graph):
  tf = lingvo_runtime.module('tensorflow')

  def bridged():
    with (
      lingvo_runtime.eager_flag(True),
      xla_ops.replaced(tf.constant([3, 4])),
    ):
      return _draw()

  with fixed_random_ops.for_bridged():
    found = tf.function(bridged, jit_compile=True, autograph=False)()
  for name, value in in_graph.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_they_are_spread(in_graph):
  assert -1 <= in_graph['uniform'].min() < -0.7
  assert 0.7 < in_graph['uniform'].max() < 1
  assert abs(in_graph['normal'].mean()) < 0.1
  assert abs(in_graph['normal'].std() - 1) < 0.1
  assert set(in_graph['integers']) == {2, 3, 4, 5, 6}
  assert 20 <= np.sum(in_graph['dropout'] == 0) <= 30
  assert sorted(in_graph['shuffled']) == list(range(10))


def test_off_outside_of_the_context():
  assert not fixed_random_ops.of_bridged()
