"""Tests of peeking, padding, the state and the end of data."""

import sys
import types

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.pax_compat.input_core.numbered import Numbered

_ALL = [0, 1, 2, 3, 4, 5]


def test_the_peeked_batch_comes_next():
  data = Numbered.config().Instantiate()
  assert data.peek_padded() is data.peek_padded()
  assert [data.get_next_padded().x[0, 0] for _ in range(6)] == _ALL
  assert data.peek_padded() is None
  with pytest.raises(StopIteration):
    data.get_next_padded()


def test_a_reset_drops_the_peeked_batch():
  data = Numbered.config().Instantiate()
  data.get_next_padded()
  assert data.peek_padded().x[0, 0] == 1
  data.reset()
  assert [data.get_next_padded().x[0, 0] for _ in range(6)] == _ALL


@pytest.mark.parametrize('weight', [None, 0.5])
def test_padding_rows_have_weight_0(weight):
  data = Numbered.config(batch_padding_size=2, weight=weight).Instantiate()
  data.get_next_padded()
  batch = data.peek_padded()
  np.testing.assert_array_equal(batch.x, [[1, 1]] * 3 + [[0, 0]] * 2)
  weights = [1.0 if weight is None else weight] * 3 + [0.0] * 2
  np.testing.assert_array_equal(batch.eval_sample_weights, weights)
  assert batch.eval_sample_weights.dtype == np.float32


def test_an_input_continues_at_its_state(tmp_path):
  data = Numbered.config().Instantiate()
  data.get_next_padded()
  data.save(tmp_path / 'at_1')
  data.peek_padded()
  data.save(tmp_path / 'peeked_at_1')
  assert data.get_next_padded().x[0, 0] == 1
  data.save(tmp_path / 'at_2')
  for file, number in (('at_1', 1), ('peeked_at_1', 1), ('at_2', 2)):
    other = Numbered.config().Instantiate()
    other.peek_padded()
    other.restore(tmp_path / file)
    assert other.get_next_padded().x[0, 0] == number
  with pytest.raises(
    errors.UserError, match="'input' cannot be read from .*no"
  ):
    data.restore(tmp_path / 'nothing')


def test_a_state_is_asked_for_too_late():
  data = Numbered.config(has_state=False).Instantiate()
  data.peek_padded()
  with pytest.raises(errors.UserError, match=r'expected get_state\(\) before'):
    data.get_state()
  data.get_next_padded()
  with pytest.raises(NotImplementedError):
    data.get_state()


@pytest.mark.parametrize(
  ('batch', 'wrong'),
  [
    ({'x': np.zeros(3)}, 'get_next of d returned a dict; expected a NestedMap'),
    (None, 'get_next of d returned a NoneType; expected'),
    (NestedMap(a=NestedMap(x=[1])), "'a.x.0' of a batch of d is a int; expect"),
  ],
)
def test_a_batch_is_a_map_of_arrays(batch, wrong):
  class Mine(Numbered):
    def get_next(self):
      return batch

  with pytest.raises(errors.UserError, match=f'Mine: .*{wrong}'):
    Mine.config(name='d').Instantiate().peek_padded()


def test_the_end_of_data_of_tensorflow(monkeypatch):
  class OutOfRangeError(Exception):
    """Replaces TensorFlow's, which is not imported here."""

  class Mine(Numbered):
    def get_next(self):
      raise OutOfRangeError

  with pytest.raises(OutOfRangeError):
    Mine.config().Instantiate().get_next_padded()
  module = types.SimpleNamespace(OutOfRangeError=OutOfRangeError)
  monkeypatch.setitem(
    sys.modules, 'tensorflow.python.framework.errors_impl', module
  )
  assert Mine.config().Instantiate().peek_padded() is None


def test_an_input_whose_state_fails_can_be_peeked_at():
  class Refuses(Numbered):
    """Raises for its state."""

    def _get_state_internal(self):
      raise errors.UserError('not now')

  data = Refuses.config().Instantiate()
  with pytest.raises(errors.UserError, match='not now'):
    data.get_state()
  assert data.peek_padded() is data.get_next_padded()
