"""Tests of what every input has."""

import pytest

from pax_compat import base_input, errors


@pytest.mark.parametrize('name', ['Train', 'dev.v1:a_b+c-2'])
def test_names_that_can_be_a_folder(name):
  assert base_input.BaseInput.config(name=name).Instantiate().name == name


@pytest.mark.parametrize('name', ['', 'a/b', 'two words', 'größe', 'a\n'])
def test_other_names_are_refused(name):
  with pytest.raises(errors.UserError, match=r'BaseInput\.name is '):
    base_input.BaseInput.config(name=name).Instantiate()


def test_what_a_subclass_must_write_names_the_subclass():
  class Mine(base_input.BaseInput):
    """Nothing of its own."""

  data = Mine.config().Instantiate()
  for method in (data.get_next, data.reset):
    with pytest.raises(NotImplementedError, match='Mine'):
      method()
  data.resume_at(3)
  data.close()
