"""Holds what our models compute with Pax's weights against Pax."""

import numpy as np

from adaptors.pax_names.check.numbers import Numbers


def check(ours: Numbers, pax: Numbers):
  """Fails where ours differ: values by 1e-5 relative, gradients by 1e-4."""
  for name in pax.metrics:
    for found, wanted in (
      (ours.metrics[name], pax.metrics[name]),
      (ours.weights[name], pax.weights[name]),
    ):
      np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=name)
  assert ours.grads.keys() == pax.grads.keys()
  for path, wanted in pax.grads.items():
    found = ours.grads[path]
    assert found.shape == wanted.shape, path
    # Relative to the largest element: many are 0 but for rounding.
    atol = 1e-4 * max(np.abs(wanted).max(), 1e-6)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol, err_msg=path)
