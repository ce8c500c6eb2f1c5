"""Tests that a training loop of one's own computes as on Pax."""

import numpy as np
import pytest

from adaptors import pax_names
from tests import source_tree
from tests.pax import loop_cases

_RECORDED = np.load(source_tree.ROOT / 'testdata/pax/loops.npz')


@pytest.mark.slow
@pytest.mark.parametrize('compiler', loop_cases.COMPILERS)
def test_a_loop_with_step_functions_computes_as_on_pax(compiler):
  pax_names.install()
  made = loop_cases.results(compiler)
  paths = {p for p in _RECORDED.files if p.split('/')[0] == compiler}
  assert paths == {f'{compiler}/{path}' for path in made}
  for path, value in made.items():
    expected = _RECORDED[f'{compiler}/{path}']
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
