"""Functions of `paxml.metric_utils`."""

import doctest

import numpy as np
import pytest
from clu import metrics as clu
from clu import values

from adaptors.pax_names.own import metric_utils
from pax_compat import errors
from pax_compat.nested_map import NestedMap


def test_examples():
  found = doctest.testmod(metric_utils)
  assert found.attempted and not found.failed


@pytest.mark.parametrize(
  ('metric', 'number'),
  [
    (0.2, 0.2),
    (np.float32(1.0), 1.0),
    (values.Scalar(np.float32(1.5)), 1.5),
    ((np.array([1.0]), np.array([0.1])), 1.0),
    ([(1.0, 1.0), (4.0, 2.0)], 3.0),
  ],
)
def test_a_metric_as_a_number(metric, number):
  assert metric_utils.as_float(metric) == number


@pytest.mark.parametrize('metric', ['a', values.Text('a'), (1.0,), [1.0]])
def test_what_is_not_a_number(metric):
  assert not metric_utils.is_float_convertible(metric)
  assert metric_utils.as_float_dict({'a': 1, 'b': metric}) == {'a': 1.0}
  with pytest.raises(errors.UserError, match='is not a number; expected'):
    metric_utils.as_float_dict({'b': metric}, True)


def test_numbers_are_added_to_a_dict():
  target = {'a': 1.0, 'b': 2.0}
  assert metric_utils.update_float_dict(target, {'a': 3.0}) is target
  assert target == {'a': 3.0, 'b': 2.0}


def test_the_kind_of_metrics():
  weighted = NestedMap(a=(np.float32(1.0), np.float32(2.0)))
  mean = {'a': clu.Average.from_model_output(np.array([1.0, 3.0]))}
  extract = metric_utils.extract_weighted_scalars_and_clu_metrics
  assert extract(weighted) == (weighted, {})
  assert extract(mean) == ({}, mean)
  for wrong in ({}, {'a': 'b'}):
    with pytest.raises(errors.UserError, match='or clu metrics by name'):
      extract(wrong)


def test_clu_metrics_are_merged_and_computed():
  found = {}
  for x in ([1.0, 2.0], [6.0]):
    batch = {'mean': clu.Average.from_model_output(np.array(x))}
    found = metric_utils.merge_clu_metrics(found, batch)
  computed = metric_utils.compute_metric_values(found)
  assert metric_utils.as_float_dict(computed) == {'mean': 3.0}


def test_values_of_any_kind_are_named():
  class Texts(clu.Metric):
    """Its values are not those of clu."""

    def compute_value(self):
      return {'one': 'a', 'several': ['b', ['c']]}

  assert metric_utils.compute_metric_values({'texts': Texts()}) == {
    'texts/one': 'a',
    'texts/several_0': 'b',
    'texts/several_1': ['c'],
  }
