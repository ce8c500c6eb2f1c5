"""What our models compute with the weights of Pax's."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.config import Config
from pax_compat.nested_map import NestedMap
from tests.pax import tiny

# Metrics that only Pax has. Losses of layers are metrics of the task here; none
# of the experiments has any.
_ONLY_IN_PAX = {'aux_loss': 0.0}


def of_model(
  model: Config,
  params: Mapping[str, np.ndarray],
  batch: Mapping[str, np.ndarray],
) -> tiny.Numbers:
  """Returns what a model computes in an evaluation.

  Args:
    model: its config.
    params: its weights by path.
    batch: the batch.
  """
  layer = model.Instantiate()
  given = NestedMap({name: jnp.asarray(x) for name, x in batch.items()})

  def loss(params):
    with base_layer.eval_mode():
      metrics, _ = layer.apply({base_layer.PARAMS: params}, given)
    return metrics['total_loss'][0], metrics

  grads, metrics = jax.jit(jax.grad(loss, has_aux=True))(_nested(params))
  return tiny.Numbers(
    params=params,
    metrics={name: np.asarray(value) for name, (value, _) in metrics.items()},
    weights={name: np.asarray(weight) for name, (_, weight) in metrics.items()},
    grads=tiny.by_path(grads),
  )


def _nested(params: Mapping[str, np.ndarray]) -> dict:
  tree: dict = {}
  for path, x in params.items():
    *outer, last = path.split('/')
    inner = tree
    for name in outer:
      inner = inner.setdefault(name, {})
    inner[last] = x
  return tree


def check(ours: tiny.Numbers, pax: tiny.Numbers):
  """Fails where ours differ: values by 1e-5 relative, gradients by 1e-4."""
  for name, value in _ONLY_IN_PAX.items():
    assert pax.metrics.get(name, value) == value
  for name in pax.metrics.keys() - _ONLY_IN_PAX.keys():
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
