"""How Lingvo's variables and the JAX model's are the same numbers.

A `VariableMap` says for each JAX variable from which Lingvo variables it is
made, and how, in both directions. The same map serves parity tests, checkpoint
import and export.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Same:
  """The values as they are."""

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0]

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return [array]


@dataclasses.dataclass(frozen=True)
class AlreadyStacked(Same):
  """The values as they are, of repeated layers that Lingvo stacks as we do.

  Its optimizers take them for one variable.
  """


@dataclasses.dataclass(frozen=True)
class Reshape:
  """The values in another shape, in the same order.

  Attributes:
    lingvo: the shape in Lingvo.
    jax: the shape in JAX.
  """

  lingvo: tuple[int, ...]
  jax: tuple[int, ...]

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.reshape(arrays[0], self.jax)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return [np.reshape(array, self.lingvo)]


@dataclasses.dataclass(frozen=True)
class Transpose:
  """The values with their axes in another order.

  Attributes:
    axes: for each axis in JAX the axis in Lingvo.
  """

  axes: tuple[int, ...]

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.transpose(arrays[0], self.axes)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return [np.transpose(array, np.argsort(self.axes))]


@dataclasses.dataclass(frozen=True)
class Concat:
  """Several Lingvo variables, one after the other along an axis.

  What is over `size` at the end of the last one is padding: cut off on the way
  in, zero on the way out.

  Attributes:
    axis: the axis.
    parts: the size along it of each Lingvo variable.
    size: the size along it in JAX.
  """

  axis: int
  parts: tuple[int, ...]
  size: int

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    joined = np.concatenate(arrays, self.axis)
    return joined[(*[slice(None)] * self.axis, slice(self.size))]

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    widths = [(0, 0)] * array.ndim
    widths[self.axis] = (0, sum(self.parts) - self.size)
    padded = np.pad(array, widths)
    return np.split(padded, np.cumsum(self.parts)[:-1], self.axis)


@dataclasses.dataclass(frozen=True)
class Stack:
  """Several Lingvo variables of one shape, along a new first axis.

  Those of layers that are repeated here: optimizers treat each on its own.
  """

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(arrays)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return list(array)


@dataclasses.dataclass(frozen=True)
class Each:
  """Values that both have a first axis for, each of them transformed.

  Attributes:
    transform: of the values at one index of the axis.
  """

  transform: Any

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    each = zip(*arrays, strict=True)
    return np.stack([self.transform.to_jax(parts) for parts in each])

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    each = map(self.transform.to_lingvo, array)
    return [np.stack(parts) for parts in zip(*each, strict=True)]


@dataclasses.dataclass(frozen=True)
class Dealt:
  """Several Lingvo variables, to which rows were dealt out in turn.

  Row i is in variable i modulo their number. What is over `size` at the end is
  padding, as for `Concat`.

  Attributes:
    parts: how many variables there are; all have as many rows.
    size: how many rows there are in JAX.
  """

  parts: int
  size: int

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    rows = np.stack(arrays, 1)
    return rows.reshape([-1, *rows.shape[2:]])[: self.size]

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    widths = [(0, -self.size % self.parts), *[(0, 0)] * (array.ndim - 1)]
    padded = np.pad(array, widths)
    return [padded[part :: self.parts] for part in range(self.parts)]


@dataclasses.dataclass(frozen=True)
class Chain:
  """One transform after the other, on the way to JAX in the order given."""

  steps: tuple

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    for step in self.steps:
      arrays = [step.to_jax(arrays)]
    return arrays[0]

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    arrays = [array]
    for step in reversed(self.steps):
      arrays = step.to_lingvo(arrays[0])
    return arrays


@dataclasses.dataclass(frozen=True)
class Variable:
  """One JAX variable and the Lingvo variables that it is made of.

  Attributes:
    theta: paths in Lingvo's theta, such as `lm.trans[0].fflayer.fc[1].w`.
    jax: path in its collection, with slashes.
    transform: how the values correspond.
    is_sparse: whether its gradient is sparse in TensorFlow, one row for each
      lookup.
    is_trainable: whether it is in the collection `params`, which learners
      train; otherwise in `non_trainable`, as moving statistics are.
  """

  theta: tuple[str, ...]
  jax: str
  transform: object = Same()
  is_sparse: bool = False
  is_trainable: bool = True


class VariableMap:
  """All variables of a layer, or of a whole task."""

  def __init__(self, variables: Iterable[Variable] = ()):
    self.variables = tuple(variables)

  def __iter__(self):
    return iter(self.variables)

  def __add__(self, other: 'VariableMap') -> 'VariableMap':
    return VariableMap((*self.variables, *other.variables))

  def only(self, *, is_trainable: bool) -> 'VariableMap':
    """Returns the map of those in `params`, or of those in `non_trainable`."""
    return VariableMap(
      v for v in self.variables if v.is_trainable == is_trainable
    )

  def under(self, theta: str, jax: str) -> 'VariableMap':
    """Returns the map of the same variables below a child of these names.

    Args:
      theta: the child's name in Lingvo; empty where its variables are the
        parent's own.
      jax: its path in JAX; empty where its variables are the parent's own.
    """
    return VariableMap(
      dataclasses.replace(
        v,
        theta=tuple(f'{theta}.{t}' if theta else t for t in v.theta),
        jax=f'{jax}/{v.jax}' if jax else v.jax,
      )
      for v in self.variables
    )

  def to_jax(self, theta: Mapping[str, np.ndarray]) -> dict:
    """Returns the nested dict of variables made of Lingvo's values by path."""
    params = {}
    for v in self.variables:
      *parents, leaf = v.jax.split('/')
      node = params
      for parent in parents:
        node = node.setdefault(parent, {})
      node[leaf] = v.transform.to_jax([np.asarray(theta[t]) for t in v.theta])
    return params

  def to_lingvo(self, params: Mapping[str, np.ndarray]) -> dict:
    """Returns Lingvo's values by theta path.

    Args:
      params: the JAX variables by path, as `learners.by_path` gives them.
    """
    theta = {}
    for v in self.variables:
      parts = v.transform.to_lingvo(np.asarray(params[v.jax]))
      theta.update(zip(v.theta, parts, strict=True))
    return theta
