"""Data, fully sharded and tensor parallel models train as one device does."""

import jax
import pytest

from tests.on_eight_devices import products


@pytest.mark.parametrize(
  ('shape', 'slices'),
  [
    pytest.param([8, 1, 1], None, id='data'),
    pytest.param([1, 8, 1], None, id='fsdp'),
    pytest.param([1, 2, 4], None, id='tensor'),
    pytest.param([1, 2, 2], [2, 1, 1], id='slices'),
  ],
)
def test_a_mesh_trains_as_one_device(shape, slices):
  products.assert_follows_one_device(products.Dense, shape, slices)


def test_pmap_experiments_train_as_one_device():
  """They have the same train step; all devices have all weights."""
  products.assert_follows_one_device(products.Replicated, None)
  made = products.program_of(products.Replicated, None)
  for x in jax.tree.leaves(made.abstract_state):
    assert x.sharding.is_fully_replicated and len(x.sharding.device_set) == 8
