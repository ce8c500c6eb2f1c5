"""Experiments of users' kind: native, bridged, or refused with advice.

None is wrong, none crashes, and a refusal comes within ten seconds.
"""

import pytest

from adaptors import lingvo_runtime
from tests.adaptors import native_library
from tests.adaptors.users import expectations, running

pytestmark = native_library.NEEDS_LINGVO

_MODULE = 'tests.adaptors.users.experiments'
_SECONDS_TO_REFUSE = 10.0


@pytest.fixture(scope='module', name='experiments')
def _experiments():
  return lingvo_runtime.module(_MODULE)


def _parameters():
  for name, expected in expectations.EXPECTED.items():
    marks = [] if expected.quick else [pytest.mark.slow]
    if expected.crashes:
      marks.append(pytest.mark.xfail(reason=expected.crashes, strict=False))
    yield pytest.param(name, expected, id=name, marks=marks)


@pytest.mark.parametrize(('name', 'expected'), list(_parameters()))
def test_an_experiment_is_as_expected(
  experiments, tmp_path, log, name, expected
):
  made = experiments.by_name(name, tmp_path)
  outcome = running.run(made)
  assert outcome.kind == expected.kind, outcome.message
  said = outcome.message if outcome.kind == 'refused' else log()
  missing = [word for word in expected.words if word not in said]
  assert not missing, said
  if outcome.kind == 'refused':
    assert outcome.seconds < _SECONDS_TO_REFUSE


def test_each_experiment_has_an_expectation(experiments):
  assert sorted(experiments.names()) == sorted(expectations.EXPECTED)
  assert len(expectations.EXPECTED) >= 40
