"""Tests that stochastic gradients are those of Pax."""

import numpy as np
import pytest

from pax_compat.learners import sgf
from tests import source_tree
from tests.pax import sgf_cases

_RECORDED = np.load(source_tree.ROOT / 'testdata/pax/sgf.npz')


@pytest.mark.parametrize('name', sgf_cases.CASES)
def test_gradients_are_those_of_pax(name):
  made = sgf_cases.results(
    sgf, lambda cls, fields: cls.config(**fields).Instantiate(), name
  )
  paths = {p for p in _RECORDED.files if p.split('/')[0] == name}
  assert paths == {f'{name}/{path}' for path in made}
  for path, value in made.items():
    expected = _RECORDED[f'{name}/{path}']
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
