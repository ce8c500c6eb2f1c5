"""Tests of states as arrays by path."""

import pytest

from pax_compat import checkpoints


def test_two_leaves_of_one_path_are_refused():
  with pytest.raises(ValueError, match='path a.b'):
    checkpoints.state_paths({'a.b': 1, 'a': {'b': 2}})
