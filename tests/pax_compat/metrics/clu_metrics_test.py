"""Tests of clu metrics over several batches."""

import doctest

import flax.struct
import jax.numpy as jnp
import numpy as np
import pytest
from clu import metrics, values

from pax_compat import errors
from pax_compat.metrics import clu_metrics
from tests.pax_compat import launching


def _accuracy(correct, mask):
  return metrics.Average.from_model_output(
    jnp.array(correct, jnp.float32), mask=jnp.array(mask)
  )


def test_examples():
  found = doctest.testmod(clu_metrics)
  assert found.attempted and not found.failed


def test_metrics_of_batches_are_merged():
  merged = None
  for correct, mask in (([1, 0, 1], [1, 1, 1]), ([0, 1, 1], [1, 0, 0])):
    merged = clu_metrics.merge(merged, {'accuracy': _accuracy(correct, mask)})
  found = clu_metrics.scalars(clu_metrics.compute(merged))
  assert found == {'accuracy': 0.5}


def test_batches_have_the_same_metrics():
  one = {'a': _accuracy([1], [1])}
  with pytest.raises(errors.UserError, match='clu metrics a, b; .* have a$'):
    clu_metrics.merge(one, {**one, 'b': one['a']})


@flax.struct.dataclass
class Several(metrics.Metric):
  kind: str = flax.struct.field(pytree_node=False)

  def compute_value(self):
    scalar, image = values.Scalar(1.5), values.Image(np.zeros([2, 2, 3]))
    return {
      'dict': {'x': scalar, 'y': [scalar, image]},
      'list': [image, scalar],
      'wrong': 7,
    }[self.kind]


@pytest.mark.parametrize(
  ('kind', 'scalars', 'others'),
  [
    ('dict', ['m/x', 'm/y_0'], ['m/y_1']),
    ('list', ['m/m_1'], ['m/m_0']),
  ],
)
def test_a_metric_of_several_values(kind, scalars, others):
  found = clu_metrics.compute({'m': Several(kind)})
  assert sorted(found) == sorted(scalars + others)
  assert clu_metrics.scalars(found) == dict.fromkeys(scalars, 1.5)
  assert all(isinstance(found[name], values.Image) for name in others)


def test_a_value_that_is_not_a_clu_value():
  with pytest.raises(errors.UserError, match="'m' is 7; expected a clu"):
    clu_metrics.compute({'m': Several('wrong')})


def test_clu_brings_no_tensorflow():
  done = launching.run_script("""
    import sys
    from pax_compat.metrics import clu_metrics
    print('tensorflow' in sys.modules)
  """)
  assert done.stdout == 'False\n', done.stderr
