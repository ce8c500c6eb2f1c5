"""What our models compute with the weights of Pax's."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.config import Config
from pax_compat.nested_map import NestedMap

_LOSS = 'total_loss'


@dataclasses.dataclass(frozen=True)
class Numbers:
  """What a model computes in an evaluation.

  Attributes:
    params: the trainable weights by path.
    metrics: the values of the metrics by name.
    weights: their weights.
    grads: gradients of the metric `total_loss` by path.
  """

  params: Mapping[str, np.ndarray]
  metrics: Mapping[str, np.ndarray]
  weights: Mapping[str, np.ndarray]
  grads: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Tolerances:
  """Largest differences that are due to rounding.

  Attributes:
    metrics: relative.
    grads: relative to the largest element of a gradient.
  """

  metrics: float = 1e-5
  grads: float = 1e-4


# Of a model that computes in bfloat16: eight significant bits.
BFLOAT16 = Tolerances(metrics=4e-3, grads=4e-2)


def of_model(
  model: Config,
  params: Mapping[str, np.ndarray],
  batch: Mapping[str, np.ndarray],
) -> Numbers:
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
      (metrics, _), _ = layer.apply(
        {base_layer.PARAMS: params}, given, mutable=[base_layer.AUX_LOSS]
      )
    return metrics[_LOSS][0], metrics

  grads, metrics = jax.jit(jax.grad(loss, has_aux=True))(_nested(params))
  return Numbers(
    params=params,
    metrics={name: np.asarray(value) for name, (value, _) in metrics.items()},
    weights={name: np.asarray(weight) for name, (_, weight) in metrics.items()},
    grads=by_path(grads),
  )


def by_path(tree: Any) -> dict[str, np.ndarray]:
  """Returns the arrays of nested dicts by paths such as `lm/softmax/w`."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    '/'.join(str(getattr(key, 'key', key)) for key in path): np.asarray(x)
    for path, x in leaves
  }


def _nested(params: Mapping[str, np.ndarray]) -> dict:
  tree: dict = {}
  for path, x in params.items():
    *outer, last = path.split('/')
    inner = tree
    for name in outer:
      inner = inner.setdefault(name, {})
    inner[last] = x
  return tree


def differences(
  ours: Numbers, pax: Numbers, tolerances: Tolerances = Tolerances()
) -> list[str]:
  """Returns a line for each metric and gradient that differs from Pax's."""
  lines = []
  for name, wanted in pax.metrics.items():
    if wanted.dtype.kind == 'V':
      continue  # NumPy has read it without bfloat16: the loss contains it.
    if name not in ours.metrics:
      lines.append(f'the metric {name} is missing')
    elif not np.allclose(ours.metrics[name], wanted, rtol=tolerances.metrics):
      lines.append(f'{name} is {ours.metrics[name]}, in Pax {wanted}')
    elif not _same_weight(name, ours, pax, tolerances):
      lines.append(
        f'the weight of {name} is {ours.weights[name]}, in Pax'
        f' {pax.weights[name]}'
      )
  for path in sorted(ours.grads.keys() ^ pax.grads.keys()):
    lines.append(f'only one of both has {path}')
  for path in sorted(ours.grads.keys() & pax.grads.keys()):
    found, wanted = ours.grads[path], pax.grads[path]
    scale = max(np.abs(wanted).max(), 1e-6)
    if found.shape != wanted.shape:
      lines.append(f'{path} is {found.shape}, in Pax {wanted.shape}')
    elif not np.abs(found - wanted).max() <= tolerances.grads * scale:
      error = np.abs(found - wanted).max() / scale
      lines.append(f'the gradient of {path} differs by {error:.1e}')
  return lines


def _same_weight(name, ours, pax, tolerances: Tolerances) -> bool:
  wanted = pax.weights[name]
  if wanted.dtype.kind == 'V':
    return True
  return np.allclose(ours.weights[name], wanted, rtol=tolerances.metrics)
