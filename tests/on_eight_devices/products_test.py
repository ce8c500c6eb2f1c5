"""Data, fully sharded and tensor parallel models train as one device does."""

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
