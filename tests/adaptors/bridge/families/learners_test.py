"""Tests that families whose learner is not run have that of another family."""

import importlib
import pkgutil

import pytest

from tests.adaptors.bridge import families

_MODULES = {
  info.name: importlib.import_module(f'{families.__name__}.{info.name}')
  for info in pkgutil.iter_modules(families.__path__)
  if not info.name.endswith('_test')
}
# Steps are multiplied with these.
_FACTORS = ('learning_rate', 'lr_schedule.warmup_steps')


def _learner(name):
  """Returns the lines of a family's training Params."""
  lines = _MODULES[name].task_params().train.ToText().splitlines()
  return [line for line in lines if line.partition(' : ')[0] not in _FACTORS]


@pytest.mark.parametrize(
  'name', [k for k, v in _MODULES.items() if hasattr(v, 'LEARNS_LIKE')]
)
def test_it_learns_like_the_other(name):
  other = _MODULES[name].LEARNS_LIKE
  assert not hasattr(_MODULES[other], 'LEARNS_LIKE')
  assert _learner(name) == _learner(other)
