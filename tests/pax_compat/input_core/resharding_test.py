"""Tests of splitting batches over devices."""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.input_core import resharding
from pax_compat.nested_map import NestedMap
from tests.pax_compat.input_core.numbered import Numbered


def test_a_batch_for_pmap():
  batch = NestedMap(x=np.arange(6.0).reshape(3, 2), y=np.arange(3))
  data = Numbered.config(name='d').Instantiate()
  split = data.reshard_for_pmap(batch)
  assert jax.tree.map(np.shape, split) == NestedMap(x=(1, 3, 2), y=(1, 3))
  np.testing.assert_array_equal(jax.pmap(lambda b: b.x)(split)[0], batch.x)


def test_rows_that_cannot_be_split_are_refused():
  with pytest.raises(errors.UserError, match=r'd: .* \(3,\); .* multiple of 2'):
    resharding.split_shape(np.arange(3), 2, name='d')
  assert resharding.split_shape(np.ones([4, 3]), 2, name='d') == (2, 2, 3)
