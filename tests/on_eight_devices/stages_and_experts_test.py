"""Pipelined models, and models with experts, train as one device does."""

from tests.on_eight_devices import products


def test_stages():
  products.assert_follows_one_device(products.Pipeline, [2, 1, 2, 2])


def test_experts_on_an_axis_of_their_own():
  """The axes are replica, data, data_expert and mdl."""
  products.assert_follows_one_device(products.Experts, [1, 2, 2, 2])
