"""Taps of layers: norms of weight gradients, without the gradients.

In a loss of one example, the gradient of a weight is a function of what its
layer got and of the cotangent of what it returned: x^T g for a product x w. So
its norm can be computed where the cotangent passes, without the gradient. A
layer with such a weight puts a tap on the output of the operation:

    outputs = ghost_norms.product(self, 'w', '...i,io->...o', inputs, outputs)

A tap is the identity. Within `measuring`, the gradient of the probe is the sum
of the squares of the gradients of all weights with a tap; elsewhere a tap does
nothing. That is only right for a weight that nothing but the tapped operation
uses, once: `learners.gradients.weight_uses` finds those. The norms of others
are taken of the gradients, by `whole`.

Shapes: N positions, I and O dims of a product, V rows of a table, D dims.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from pax_compat.config_core import context_values

# Prefix of the names of values with a tap.
MARK = 'ghost_norms'
_PARAMS = 'params'
PRODUCT, SUM, LOOKUP = 'product', 'sum', 'lookup'


class Tap(NamedTuple):
  """A tap that a trace has reached.

  Attributes:
    use: how the layer uses the weight: `PRODUCT`, `SUM` or `LOOKUP`.
    rank: of the value with the tap, as the layer sees it.
    path: path of the weight.
  """

  use: str
  rank: int
  path: str

  def mark(self) -> str:
    """Returns the name of the value; `tap_of` reverses it."""
    return ':'.join((MARK, self.use, str(self.rank), self.path))


@dataclasses.dataclass
class Found:
  """What a trace within `finding` has found.

  Attributes:
    sizes: numbers of elements of the weights with a tap, by path, as their
      layers see them.
    layers: classes of layers by path.
    wrapped: paths of layers whose gradients may be computed for each example.
  """

  sizes: dict[str, set[int]] = dataclasses.field(default_factory=dict)
  layers: dict[str, type] = dataclasses.field(default_factory=dict)
  wrapped: set[str] = dataclasses.field(default_factory=set)

  def owner(self, path: str) -> str:
    """Returns the class and the path of a weight's layer, for messages."""
    layer = path.rpartition('/')[0]
    kind = self.layers.get(layer)
    return f'{kind.__name__} {layer!r}' if kind else repr(layer)

  def is_wrapped(self, path: str) -> bool:
    """Whether a weight belongs to one of the `wrapped` layers."""
    return any(
      not layer or path.startswith(f'{layer}/') for layer in self.wrapped
    )


class Measured(NamedTuple):
  """The taps that are open.

  Attributes:
    probe: their probe [].
    paths: paths of their weights.
    reached: those of taps that a trace has reached.
  """

  probe: jax.Array | None
  paths: Collection[str]
  reached: set[str]


_current: contextvars.ContextVar[Found | Measured | None] = (
  contextvars.ContextVar('ghost_norms', default=None)
)


@contextlib.contextmanager
def finding() -> Iterator[Found]:
  """Marks values with a tap, for a trace whose equations are read."""
  with context_values.set_within(_current, Found()) as found:
    yield found


def measuring(
  probe: jax.Array | None, paths: Collection[str]
) -> contextlib.AbstractContextManager[Measured]:
  """Opens the taps of weights.

  Args:
    probe: [], float32, whose gradient is the sum of squares; None if `paths` is
      empty.
    paths: paths of the weights.
  """
  return context_values.set_within(_current, Measured(probe, paths, set()))


def is_active() -> bool:
  """Whether layers compute for gradients of examples.

  Layers then use their weights in plain operations, not in custom gradients,
  which would compute the gradient of a weight for each example.
  """
  return _current.get() is not None


def wrap(layer: Any):
  """Allows gradients for each example of the weights of a layer."""
  found = _current.get()
  if isinstance(found, Found):
    found.wrapped.add(_path(layer))


def product(
  layer: Any, name: str, equation: str, inputs: jax.Array, outputs: jax.Array
) -> jax.Array:
  """Returns `outputs`, with a tap of the weight of a product.

  Args:
    layer: the layer.
    name: name of its weight.
    equation: of the einsum, such as '...d,kdnh->k...nh'. There is a tap only if
      each dimension of the weight is one of the inputs or of the outputs, and
      is summed in these.
    inputs: first operand.
    outputs: of the einsum.
  """
  operands, _, output = equation.partition('->')
  first, weight = operands.split(',')
  own = set(first + output) - {'.'}
  if own != set(weight) or set(first) & set(output) - {'.'}:
    return outputs
  leading = inputs.ndim - len(first.removeprefix('...'))
  before = output.index('...')
  use = _Use(
    PRODUCT,
    functools.partial(_square_of_product, leading, before),
    math.prod(inputs.shape[leading:]) * _kept(outputs, leading, before),
  )
  return _tapped(layer, name, use, outputs, inputs)


def added(
  layer: Any, name: str, outputs: jax.Array, leading: int, before: int = 0
) -> jax.Array:
  """Returns `outputs`, with a tap of a weight that was added to them.

  Args:
    layer: the layer.
    name: name of its weight.
    outputs: the sum.
    leading: number of dimensions of the outputs that the weight does not have,
      such as batch and time.
    before: number of its own dimensions before those.
  """
  kept = _kept(outputs, leading, before)
  square = functools.partial(_square_of_sum, leading, before)
  return _tapped(layer, name, _Use(SUM, square, kept), outputs)


def looked_up(
  layer: Any, name: str, rows: jax.Array, vectors: jax.Array, num_rows: int
) -> jax.Array:
  """Returns `vectors` [..., D], with a tap of the table that they are from.

  Args:
    layer: the layer.
    name: name of its weight.
    rows: [...], int; vectors outside of 0..V-1 are not of the table.
    vectors: [..., D].
    num_rows: V.
  """
  square = functools.partial(_square_of_lookups, num_rows)
  use = _Use(LOOKUP, square, num_rows * vectors.shape[-1])
  rows = jnp.broadcast_to(rows, vectors.shape[:-1])
  return _tapped(layer, name, use, vectors, rows)


def whole(weight: jax.Array, probe: jax.Array) -> jax.Array:
  """Returns a weight; the probe's gradient gets the square of its gradient."""
  return _measured(_square, weight, probe)


def tap_of(mark: str) -> Tap | None:
  """Returns the tap of the name of a value, None if it is another name."""
  kind, _, rest = mark.partition(':')
  if kind != MARK:
    return None
  use, rank, path = rest.split(':', 2)
  return Tap(use, int(rank), path)


def _path(layer: Any) -> str:
  return '/'.join(layer.scope.path)


class _Use(NamedTuple):
  """How a layer uses a weight.

  Attributes:
    name: `PRODUCT`, `SUM` or `LOOKUP`.
    square: maps the cotangent of the outputs, and what is saved, to the square
      of the norm of the weight's gradient.
    size: number of elements of a weight that is used like that.
  """

  name: str
  square: Callable[..., jax.Array]
  size: int


def _kept(outputs: jax.Array, leading: int, before: int) -> int:
  """Returns the product of the other dims than `leading` ones."""
  shape = outputs.shape
  return math.prod(shape[:before]) * math.prod(shape[before + leading :])


def _tapped(
  layer: Any, name: str, use: _Use, outputs: jax.Array, *saved: jax.Array
) -> jax.Array:
  current = _current.get()
  if current is None or not layer.has_variable(_PARAMS, name):
    return outputs
  if layer.get_variable(_PARAMS, name).size != use.size:
    return outputs
  path = '/'.join((*layer.scope.path, name))
  if isinstance(current, Found):
    current.sizes.setdefault(path, set()).add(use.size)
    return checkpoint_name(outputs, Tap(use.name, outputs.ndim, path).mark())
  if path not in current.paths:
    return outputs
  current.reached.add(path)
  return _measured(use.square, outputs, current.probe, *saved)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _measured(square, outputs, probe, *saved):
  """Returns `outputs`; `square` maps their cotangent and `saved` to a []."""
  del square, probe, saved
  return outputs


def _forward(square, outputs, probe, *saved):
  del square, probe
  return outputs, saved


def _backward(square, saved, cotangent):
  return cotangent, square(cotangent, *saved), *(None for _ in saved)


_measured.defvjp(_forward, _backward)


def _square(x: jax.Array) -> jax.Array:
  return jnp.sum(jnp.square(x.astype(jnp.float32)))


def _as_matrix(x: jax.Array, leading: int, before: int) -> jax.Array:
  """Returns [N, dims] of an array whose `leading` dims follow `before`."""
  x = jnp.moveaxis(x, range(before, before + leading), range(leading))
  return x.reshape(math.prod(x.shape[:leading]), -1)


def _square_of_product(leading, before, cotangent, inputs) -> jax.Array:
  """Returns the square of x^T g [I, O], by the smaller of two products.

  It is also the sum of x x^T times g g^T, which are [N, N].
  """
  x = _as_matrix(inputs, leading, 0)
  g = _as_matrix(cotangent, leading, before)
  multiply = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
  if 2 * len(x) ** 2 <= x.shape[1] * g.shape[1]:
    return jnp.sum(multiply(x, x.T) * multiply(g, g.T))
  return _square(multiply(x.T, g))


def _square_of_sum(leading, before, cotangent) -> jax.Array:
  own = range(before, before + leading)
  return _square(jnp.sum(cotangent.astype(jnp.float32), axis=tuple(own)))


def _square_of_lookups(num_rows, cotangent, rows) -> jax.Array:
  """Returns the square of the sums of the cotangents of equal rows."""
  g = cotangent.reshape(-1, cotangent.shape[-1]).astype(jnp.float32)
  rows = rows.reshape(-1)
  known = (rows >= 0) & (rows < num_rows)
  order = jnp.argsort(rows)
  rows, g = rows[order], jnp.where(known[:, None], g, 0)[order]
  is_next = jnp.concatenate([jnp.zeros([1], bool), rows[1:] != rows[:-1]])
  sums = jax.ops.segment_sum(g, jnp.cumsum(is_next), len(rows))
  return _square(sums)
