"""Values of context variables."""

import contextvars
import doctest

import pytest

from pax_compat.config_core import context_values


def test_a_value_within_a_block():
  tried = doctest.testmod(context_values)
  assert tried.attempted and not tried.failed


def test_the_value_before_is_restored_after_an_error():
  variable = contextvars.ContextVar('variable', default='outside')
  with pytest.raises(ValueError):
    with context_values.set_within(variable, 'outer'):
      with context_values.set_within(variable, 'inner') as value:
        assert value == variable.get() == 'inner'
      assert variable.get() == 'outer'
      raise ValueError
  assert variable.get() == 'outside'
