"""Layers with fixed weights and inputs, to hold ours against Pax's.

A case builds the config of a layer from the names of either framework. Weights
follow from their paths, so that only what the layer computes is recorded: its
variables' shapes, outputs, updated variables and gradients. Of large arrays
some elements, the norm and a projection are recorded.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

COLLECTIONS = ('params', 'non_trainable')
_KEPT = 10


@dataclasses.dataclass(frozen=True)
class Case:
  """A layer and its inputs.

  Attributes:
    config: maps the names of a framework, `layers.X` and `Config`, to a config.
    inputs: arguments by position; arrays of floats get gradients too.
    named: arguments by name.
    train: whether it is traced for training.
    method: the method that is called; or a function of the layer, bound, and
      the inputs.
    scale: factor on the weights.
    mutable: the collections that may change; True for all.
  """

  config: Callable[[Any], Any]
  inputs: tuple
  named: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  train: bool = True
  method: str | Callable = '__call__'
  scale: float = 1.0
  mutable: bool | tuple[str, ...] = True


@dataclasses.dataclass(frozen=True)
class FunctionCase:
  """A call of a function.

  Attributes:
    call: maps the names of a framework to what the function returns.
  """

  call: Callable[[Any], Any]

  def computed(self, names: Any) -> dict[str, np.ndarray]:
    """Returns the arrays that the function returns."""
    leaves = jax.tree.leaves(self.call(names))
    return {f'output:{i}': _digest(np.asarray(x)) for i, x in enumerate(leaves)}


class Keys:
  """Random keys that do not depend on the framework."""

  def __init__(self):
    self._count = 0

  def next(self) -> jax.Array:
    """Returns the next key; replaces `next_prng_key` of a layer."""
    self._count += 1
    return jax.random.key(self._count)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
  """Returns float32 numbers of a normal distribution."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=shape).astype(np.float32)


def paddings(length: int, *lengths: int) -> np.ndarray:
  """Returns paddings [B, length] of sequences of the given lengths."""
  beyond = np.arange(length) >= np.array(lengths)[:, None]
  return beyond.astype(np.float32)


def by_path(tree: Any) -> dict[str, Any]:
  """Returns the leaves of nested dicts by path, `a/b`."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {
    '/'.join(str(getattr(k, 'key', getattr(k, 'idx', k))) for k in path): leaf
    for path, leaf in leaves
  }


def weight(path: str, shape: tuple[int, ...], scale: float) -> np.ndarray:
  """Returns the value of a weight; variances are positive."""
  rng = np.random.default_rng(zlib.crc32(path.encode()))
  fan_in = int(np.prod(shape[:-1])) if len(shape) > 1 else 4
  x = (rng.normal(size=shape) * scale / np.sqrt(fan_in)).astype(np.float32)
  return np.abs(x) + 0.5 if path.endswith('variance') else x


def computed(
  case: Case,
  shapes: Mapping[str, Any],
  apply: Callable[[Any, tuple, Any], tuple[Any, Any]],
) -> dict[str, np.ndarray]:
  """Returns what a layer computes, by name.

  Args:
    case: the case.
    shapes: the shapes of the variables, nested, by collection.
    apply: maps (variables, inputs, named) to (outputs, updated variables).
  """
  found = {
    f'shape:{path}': np.array(leaf.shape, np.int32)
    for path, leaf in by_path(shapes).items()
  }
  flat = {
    path: weight(path, tuple(leaf.shape), case.scale)
    for path, leaf in by_path(shapes).items()
  }
  treedef = jax.tree.structure(shapes)
  floats = [
    i for i, x in enumerate(case.inputs) if np.result_type(x) == np.float32
  ]

  def run(weights, given):
    variables = jax.tree.unflatten(treedef, list(weights.values()))
    inputs = list(case.inputs)
    for i, x in zip(floats, given, strict=True):
      inputs[i] = x
    outputs, updated = apply(variables, tuple(inputs), case.named)
    total = sum(
      (
        jnp.sum(x * normal(*x.shape, seed=1 + i))
        for i, x in enumerate(jax.tree.leaves(outputs))
        if jnp.issubdtype(x.dtype, jnp.floating)
      ),
      jnp.float32(0.0),  # Of outputs that are indices, nothing is added.
    )
    return total, (outputs, updated)

  given = [case.inputs[i] for i in floats]
  grad = jax.jit(jax.grad(run, (0, 1), has_aux=True))
  (of_weights, of_inputs), (outputs, updated) = grad(flat, given)
  found |= {f'output:{i}': x for i, x in enumerate(jax.tree.leaves(outputs))}
  found |= {f'updated:{path}': x for path, x in by_path(updated).items()}
  found |= {
    f'grad:{p}': x for p, x in of_weights.items() if p.startswith('params')
  }
  found |= {
    f'grad:input {i}': x for i, x in zip(floats, of_inputs, strict=True)
  }
  return {name: _digest(np.asarray(x)) for name, x in found.items()}


def _digest(x: np.ndarray) -> np.ndarray:
  """Returns a small array as it is; of a large one, elements and sums."""
  if x.size <= 2 * _KEPT:
    return x
  flat = x.astype(np.float64).ravel()
  some = flat[np.linspace(0, x.size - 1, _KEPT).astype(int)]
  sums = np.linalg.norm(flat), flat @ normal(x.size, seed=7)
  return np.array([*some, *sums], np.float32)


def differences(
  ours: Mapping[str, np.ndarray], recorded: Mapping[str, np.ndarray]
) -> list[str]:
  """Returns where our results differ from the recorded ones."""
  wrong = [f'missing: {name}' for name in recorded if name not in ours]
  wrong += [f'not in Pax: {name}' for name in ours if name not in recorded]
  whole = 1e-6
  for name, x in recorded.items():
    if name.startswith('grad'):
      whole = max(whole, float(np.max(np.abs(x), initial=0)))
  for name in sorted(set(ours) & set(recorded)):
    one, other = ours[name], recorded[name]
    if one.shape != other.shape:
      wrong.append(f'{name}: shape {one.shape}, in Pax {other.shape}')
      continue
    of_gradient = name.startswith('grad')
    rate = 1e-4 if of_gradient else 1e-5
    size = float(np.max(np.abs(other), initial=0))
    # A gradient that cancels out is held against the largest one.
    atol = rate * max(size, 1e-2 * whole if of_gradient else 1e-3)
    error = float(np.max(np.abs(one - other), initial=0))
    if not error <= atol:
      wrong.append(f'{name}: differs by {error:.2g} of {size:.2g}')
  return wrong
