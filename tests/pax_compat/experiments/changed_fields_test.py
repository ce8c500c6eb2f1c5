"""Tests of errors of experiments with changed fields."""

import re

import pytest

from pax_compat import errors
from pax_compat.experiments import changed_fields


def test_an_error_names_the_changes_and_the_place():
  changes = [f'--set=task.model.f{i}=0' for i in range(7)]
  with pytest.raises(errors.UserError) as e, changed_fields.SetUp(changes):
    8 // 0  # noqa: B018
  assert re.fullmatch(
    r'the experiment cannot be set up with --set=task.model.f0=0 .*f4=0 and 2'
    r' more changes: ZeroDivisionError: .*\(at .*changed_fields_test.py:\d+;.*',
    str(e.value),
  )


@pytest.mark.parametrize(
  ('changes', 'error', 'is_done'),
  [
    ([], ValueError, False),
    (['--set=a=1'], errors.UserError, False),
    (['--set=a=1'], KeyboardInterrupt, False),
    (['--set=a=1'], ValueError, True),
  ],
)
def test_other_errors_are_raised_as_they_are(changes, error, is_done):
  raised = error('this one')
  with pytest.raises(error) as e, changed_fields.SetUp(changes) as set_up:
    if is_done:
      set_up.done()
    raise raised
  assert e.value is raised
