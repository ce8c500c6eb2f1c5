"""Tests of the base class of inputs."""

import doctest

import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.trainer.evaluating import evaluation
from tests.pax_compat.input_core.numbered import Numbered


def test_the_example_of_the_module():
  result = doctest.testmod(base_input)
  assert result.attempted > 5 and not result.failed


@pytest.mark.parametrize('name', ['Train', 'dev.v1:a_b+c-2'])
def test_names_that_can_be_a_folder(name):
  assert base_input.BaseInput.config(name=name).Instantiate().name == name


@pytest.mark.parametrize('name', ['', 'a/b', 'two words', 'größe', 'a\n'])
def test_other_names_are_refused(name):
  with pytest.raises(errors.UserError, match=r'BaseInput: name is '):
    base_input.BaseInput.config(name=name).Instantiate()


# (reset_for_eval, eval_loop_num_batches) and the batches of two evaluations;
# of six, numbered from 0.
_ALL = [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
  ('fields', 'first', 'second'),
  [
    (dict(reset_for_eval=True), _ALL, _ALL),
    (dict(reset_for_eval=True, eval_loop_num_batches=None), _ALL, _ALL),
    (dict(reset_for_eval=True, eval_loop_num_batches=-1), _ALL, _ALL),
    (dict(reset_for_eval=True, eval_loop_num_batches=1), [0], [0]),
    (dict(reset_for_eval=True, eval_loop_num_batches=2), [0, 1], [0, 1]),
    (dict(eval_loop_num_batches=2), [0, 1], [2, 3]),
    (dict(), [0], [1]),
  ],
)
def test_the_batches_of_an_evaluation(fields, first, second):
  data = Numbered.config(**fields).Instantiate()
  assert [_evaluated(data), _evaluated(data)] == [first, second]


def _evaluated(data) -> list[int]:
  """Returns the numbers of the batches of one evaluation."""
  batches = evaluation.all_batches(data, lambda batch: batch)
  return [int(fed.arrays.x[0, 0]) for fed in batches]


@pytest.mark.parametrize('count', [None, -1])
def test_all_of_the_data_without_reset(count):
  config = Numbered.config(name='d', eval_loop_num_batches=count)
  with pytest.raises(errors.UserError, match='of d is None without reset_for'):
    config.Instantiate()
  training = config.Instantiate(is_training=True)
  assert training.eval_loop_num_batches is None


def test_too_few_batches_are_refused():
  data = Numbered.config(
    name='d', reset_for_eval=True, eval_loop_num_batches=7
  ).Instantiate()
  with pytest.raises(errors.UserError, match="'d' has 6 batches; expected 7"):
    _evaluated(data)


@pytest.mark.parametrize('count', [0, -2])
def test_an_evaluation_without_batches(count):
  config = base_input.BaseInput.config(name='d', eval_loop_num_batches=count)
  with pytest.raises(errors.UserError, match=f'batches of d is {count}; expec'):
    config.Instantiate()


def test_a_missing_method_names_the_subclass():
  class Mine(base_input.BaseInput):
    """Defines nothing."""

  data = Mine.config().Instantiate()
  with pytest.raises(errors.UserError, match='Mine has no method `get_next`'):
    data.get_next()
  with pytest.raises(errors.UserError, match='Mine: .*the class has no method'):
    Mine.config(reset_for_eval=True).Instantiate()
  with pytest.raises(NotImplementedError, match='Mine'):
    data.reset()
  data.resume_at(3)
  data.close()


def test_strings_without_a_tokenizer_are_numbers():
  data = base_input.BaseInput.config().Instantiate()
  ids = np.array([[5, 6, 7], [8, 9, 0]])
  assert data.ids_to_strings(ids, np.array([3, 1])) == ['5 6 7', '8']


def test_descriptions_of_restarts():
  data = Numbered.config().Instantiate()
  assert data.after_restart() == 'it starts at its first batch again'

  class Resumes(Numbered):
    """Has a `resume_at`."""

    def resume_at(self, step):
      self._next = step

  data = Resumes.config().Instantiate()
  assert data.after_restart() == 'it goes on where its resume_at(step) puts it'


def test_default_names():
  for fields, name in (
    (dict(is_training=True), 'train'),
    (dict(), 'input'),
    (dict(is_training=True, name='input'), 'input'),
  ):
    assert Numbered.config(**fields).Instantiate().name == name


def test_batch_sizes():
  config = Numbered.config(batch_size=4, num_infeed_hosts=3)
  assert Numbered.get_batch_size(config) == 4
  assert Numbered.get_global_batch_size(config) == 12
  with pytest.raises(errors.UserError, match='Numbered.batch_size of d is not'):
    Numbered.get_batch_size(Numbered.config(name='d'))


def test_negative_padding_is_refused():
  with pytest.raises(errors.UserError, match='of d is -1; expected 0 or more'):
    Numbered.config(name='d', batch_padding_size=-1).Instantiate()


def test_fields_may_be_declared_in_a_nested_class():
  class Longer(Numbered):
    """Adds to the batches of another input."""

    class HParams(Numbered.HParams):
      """The fields."""

      more: int = 3

    def get_next(self):
      batch = super().get_next()
      batch.y = batch.x + self.more
      return batch

  batch = Longer.HParams(name='d', weight=0.5, more=4).Instantiate().get_next()
  np.testing.assert_array_equal(batch.y, batch.x + 4)
  np.testing.assert_array_equal(batch.eval_sample_weights, 0.5)


def test_whether_a_state_fits_any_hosts_is_a_property_of_the_class():
  assert isinstance(
    vars(base_input.BaseInput)['state_fits_any_hosts'], property
  )
  data = Numbered.config(batch_size=3).Instantiate()
  assert not data.state_fits_any_hosts
  with pytest.raises(AttributeError):
    data.state_fits_any_hosts = True
