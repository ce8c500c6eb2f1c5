"""Tests of what every input has."""

import numpy as np
import pytest

from pax_compat import base_input, errors


@pytest.mark.parametrize('name', ['Train', 'dev.v1:a_b+c-2'])
def test_names_that_can_be_a_folder(name):
  assert base_input.BaseInput.config(name=name).Instantiate().name == name


@pytest.mark.parametrize('name', ['', 'a/b', 'two words', 'größe', 'a\n'])
def test_other_names_are_refused(name):
  with pytest.raises(errors.UserError, match=r'BaseInput\.name is '):
    base_input.BaseInput.config(name=name).Instantiate()


@pytest.mark.parametrize(('count', 'kept'), [(3, 3), (None, None), (-1, None)])
def test_how_many_batches_an_evaluation_has(count, kept):
  data = base_input.BaseInput.config(eval_loop_num_batches=count).Instantiate()
  assert data.eval_loop_num_batches == kept


@pytest.mark.parametrize('count', [0, -2])
def test_an_evaluation_of_nothing(count):
  config = base_input.BaseInput.config(name='d', eval_loop_num_batches=count)
  with pytest.raises(errors.UserError, match=f'^d: .*batches is {count}; exp'):
    config.Instantiate()


def test_what_a_subclass_must_write_names_the_subclass():
  class Mine(base_input.BaseInput):
    """Nothing of its own."""

  data = Mine.config().Instantiate()
  for method in (data.get_next, data.reset):
    with pytest.raises(NotImplementedError, match='Mine'):
      method()
  data.resume_at(3)
  data.close()


def test_texts_of_an_input_without_words_are_numbers():
  data = base_input.BaseInput.config().Instantiate()
  ids = np.array([[5, 6, 7], [8, 9, 0]])
  assert data.ids_to_strings(ids, np.array([3, 1])) == ['5 6 7', '8']
