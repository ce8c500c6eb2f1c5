"""Maps between Lingvo's variables and the JAX model's, with the transforms.

A `VariableMap` lists for each JAX variable the Lingvo variables that it is made
of and an invertible transform. Parity tests, checkpoint import and export use
the same map.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Identity:
  """The same values."""

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0]

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return [array]


@dataclasses.dataclass(frozen=True)
class OfDtype(Identity):
  """The same values, of a dtype that JAX does not have by default.

  Attributes:
    dtype: name of the dtype in Lingvo, such as `int64`.
  """

  dtype: str

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return [array.astype(self.dtype)]


@dataclasses.dataclass(frozen=True)
class AlreadyStacked(Identity):
  """The same values, of repeated layers that are stacked in Lingvo as well.

  Lingvo's optimizers treat the stack as one variable.
  """


@dataclasses.dataclass(frozen=True)
class Reshape:
  """The values in another shape, in row-major order.

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
  """The values with permuted axes.

  Attributes:
    axes: for each axis in JAX the axis in Lingvo, as in `numpy.transpose`.
  """

  axes: tuple[int, ...]

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.transpose(arrays[0], self.axes)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return [np.transpose(array, np.argsort(self.axes))]


@dataclasses.dataclass(frozen=True)
class Concat:
  """Several Lingvo variables, concatenated along an axis.

  Rows beyond `size` are padding: removed on import, zeros on export.

  Attributes:
    axis: the axis.
    parts: the size of each Lingvo variable along it.
    size: the size in JAX along it.
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
  """Several Lingvo variables of one shape, stacked along a new first axis.

  They belong to repeated layers; optimizers treat each one separately.
  """

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(arrays)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return list(array)


@dataclasses.dataclass(frozen=True)
class Map:
  """A transform, applied at each index of the first axis.

  Attributes:
    transform: of the values at one index.
  """

  transform: Any

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    each = zip(*arrays, strict=True)
    return np.stack([self.transform.to_jax(parts) for parts in each])

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    each = map(self.transform.to_lingvo, array)
    return [np.stack(parts) for parts in zip(*each, strict=True)]


@dataclasses.dataclass(frozen=True)
class Interleave:
  """Several Lingvo variables whose rows are interleaved.

  Row i is in variable i modulo `parts`. Rows beyond `size` are padding, as in
  `Concat`.

    >>> Interleave(parts=2, size=3).to_jax([np.array([0, 2]), np.array([1, 3])])
    array([0, 1, 2])

  Attributes:
    parts: the number of variables, all with the same number of rows.
    size: the number of rows in JAX.
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
  """Several transforms, applied in order from Lingvo to JAX."""

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
    transform: from Lingvo's values to JAX's.
    is_sparse: whether its gradient is sparse in TensorFlow, with one row for
      each lookup.
    is_trainable: whether it is in the collection `params`; otherwise it is in
      `non_trainable`, as moving statistics are.
    collections: names of TensorFlow's collections that it is in, if it is not
      trainable.
  """

  theta: tuple[str, ...]
  jax: str
  transform: object = Identity()
  is_sparse: bool = False
  is_trainable: bool = True
  collections: tuple[str, ...] = ()


class VariableMap:
  """All variables of a layer, or of a whole task."""

  def __init__(self, variables: Iterable[Variable] = ()):
    self.variables = tuple(variables)

  def __iter__(self):
    return iter(self.variables)

  def __add__(self, other: 'VariableMap') -> 'VariableMap':
    return VariableMap((*self.variables, *other.variables))

  def only(self, *, is_trainable: bool) -> 'VariableMap':
    """Returns the variables of `params`, or those of `non_trainable`."""
    return VariableMap(
      v for v in self.variables if v.is_trainable == is_trainable
    )

  def under(self, theta: str, jax: str) -> 'VariableMap':
    """Returns the same variables, as those of a child.

    Args:
      theta: the child's path in Lingvo; '' adds nothing to the paths.
      jax: its path in JAX; '' adds nothing to the paths.
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
    """Returns the nested dict of JAX values.

    Args:
      theta: Lingvo's values by path.
    """
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
      params: the JAX variables by path, as `learners.by_path` returns them.
    """
    theta = {}
    for v in self.variables:
      parts = v.transform.to_lingvo(np.asarray(params[v.jax]))
      theta.update(zip(v.theta, parts, strict=True))
    return theta
