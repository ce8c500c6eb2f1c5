"""The contract of every model."""

import doctest

import pytest

from pax_compat import base_model, errors
from pax_compat.base_model import BaseModel
from pax_compat.nested_map import NestedMap


class Square(BaseModel):
  """Predicts the square of a number."""

  def compute_predictions(self, input_batch):
    return input_batch.x**2

  def compute_loss(self, predictions, input_batch):
    return NestedMap(loss=(abs(predictions - input_batch.y), 1.0)), {}


def test_examples():
  found = doctest.testmod(base_model)
  assert found.attempted and not found.failed


def test_a_model_computes_the_loss_of_its_predictions():
  model = Square.config().Instantiate()
  metrics, outputs = model.apply({}, NestedMap(x=3.0, y=7.0))
  assert metrics == {'loss': (2.0, 1.0)} and outputs == {}


def test_a_model_that_is_not_decoded():
  model = Square.config().Instantiate()
  with pytest.raises(errors.UserError, match=r'Square has no decode\(\)'):
    model.decode(NestedMap())
  with pytest.raises(errors.UserError, match='has no process_decode_out'):
    model.process_decode_out(None, NestedMap())
