"""Tests that stochastic gradients are those of Pax."""

import numpy as np
import pytest

from pax_compat import base_layer, pax_fiddle
from pax_compat.ghostnorm import embedding, linears
from pax_compat.learners import sgf
from tests import source_tree
from tests.pax import sgf_cases

_RECORDED = np.load(source_tree.ROOT / 'testdata/pax/sgf.npz')


def _assert_recorded(name, made):
  paths = {p for p in _RECORDED.files if p.split('/')[0] == name}
  assert paths == {f'{name}/{path}' for path in made}
  for path, value in made.items():
    expected = _RECORDED[f'{name}/{path}']
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)


def _built(cls, fields):
  return cls.config(**fields).Instantiate()


@pytest.mark.parametrize('name', sgf_cases.CASES)
def test_gradients_are_those_of_pax(name):
  _assert_recorded(name, sgf_cases.results(sgf, _built, name))


@pytest.mark.parametrize('name', sgf_cases.GHOST_CASES)
def test_ghost_clipping_is_that_of_pax(name):
  modules = base_layer, pax_fiddle, (embedding, linears)
  made = sgf_cases.ghost_results(sgf, *modules, _built, name)
  _assert_recorded(name, made)
