"""Cross-entropy over many classes, without storing all logits.

The logits [..., T, V] of a large vocabulary are the largest array of a language
model. `chunked_cross_entropy` loops over chunks of the time axis and stores the
logits of one chunk at a time. It also computes the gradient of a chunk from
them, so that nothing is computed twice: forward and backward pass are one loop.
The batch axis is not split into chunks, so its sharding over the mesh stays.

Shapes: T time, D model dims, V classes, "..." further axes, such as the batch.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from pax_compat import errors
from pax_compat.layer_core import sharding


@dataclasses.dataclass(frozen=True)
class Target:
  """Target distribution of a label, such as a smoothed one; it sums to 1.

  Attributes:
    on: probability of the label.
    off: probability of each other class.
  """

  on: float = 1.0
  off: float = 0.0


class CrossEntropy(NamedTuple):
  """A cross-entropy in nats.

  Attributes:
    total: [], weighted sum over all positions.
    xent: [..., T], float32, cross-entropy of each position.
    log_z: [..., T], float32, logsumexp of the logits.
    argmax: [..., T], int32, the most likely class.
    nll: [..., T], float32, negative log likelihood of the label, without
      smoothing and without gradient. None for given target distributions.
  """

  total: jax.Array
  xent: jax.Array
  log_z: jax.Array
  argmax: jax.Array
  nll: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class _Limits:
  """Size of chunks that is fast, for one device.

  Attributes:
    logits: preferred number of logits of a chunk.
    unsplit: most logits that are not split into chunks.
    positions: minimum number of positions of a chunk, so that its matrix
      products are large enough to be fast.
  """

  logits: int
  unsplit: int
  positions: int


# On two cores of an AMD EPYC, a loss over 2048 positions of 256 dims and 8192
# (32768) classes and its gradient take 262 (1540) ms unsplit, 137 (657) ms in
# chunks of this size; below 2048 classes it makes no difference.
_CPU = _Limits(logits=2**20, unsplit=2**21, positions=128)
# An accelerator needs large products more than it needs the memory, as long as
# the logits of a chunk are a GiB or less.
_ACCELERATOR = _Limits(logits=2**28, unsplit=2**28, positions=4096)


def best_chunk_size(logits_shape: Sequence[int], num_devices: int = 1) -> int:
  """Returns a fast `chunk_size` for the backend; 0 does not split.

  Args:
    logits_shape: [..., T, V], global shape.
    num_devices: number of devices over which the logits are split.
  """
  limits = _CPU if sharding.platform() == 'cpu' else _ACCELERATOR
  *batch, length, num_classes = logits_shape
  if not all(isinstance(size, int) for size in batch):
    return 0  # An exported model, for any number of rows.
  rows = math.prod(batch) / num_devices
  if not batch or rows * length * num_classes <= limits.unsplit:
    return 0
  size = max(limits.logits / num_classes, limits.positions) / max(rows, 1)
  num_chunks = math.ceil(length / max(size, 1))
  return math.ceil(length / num_chunks)


class _Chunk(NamedTuple):
  """Positions and their cotangents.

  Attributes:
    inputs: [..., T, D].
    class_ids: [..., T].
    of_xent: [..., T], cotangent of `CrossEntropy.xent`.
    of_log_z: [..., T], cotangent of `CrossEntropy.log_z`, or None for 0.
  """

  inputs: jax.Array
  class_ids: jax.Array
  of_xent: jax.Array
  of_log_z: jax.Array | None = None


class _Problem(NamedTuple):
  """Settings that are the same for all chunks.

  Attributes:
    logits_of: (inputs [..., D], *weights) -> logits [..., V], float32.
    target: see `Target`.
    chunk_size: positions of a chunk.
    gradient_in_forward: whether the forward pass computes the gradient.
  """

  logits_of: Callable[..., jax.Array]
  target: Target
  chunk_size: int
  gradient_in_forward: bool


def cross_entropy(
  logits: jax.Array,
  class_ids: jax.Array,
  class_weights: jax.Array,
  target: Target = Target(),
) -> CrossEntropy:
  """Returns the cross-entropy of given logits.

  Args:
    logits: [..., V], float32.
    class_ids: [...], int, the labels. With an id outside 0..V-1, no class is
      the label.
    class_weights: [...], weights of the positions in the total.
    target: target distribution of a label.
  """
  return _with_total(_values(logits, class_ids, target), class_weights)


def soft_cross_entropy(
  logits: jax.Array, probabilities: jax.Array, class_weights: jax.Array
) -> CrossEntropy:
  """Returns the cross-entropy against given distributions.

  Args:
    logits: [..., V], float32.
    probabilities: [..., V]; gradients are stopped.
    class_weights: as in `cross_entropy`.
  """
  probabilities = jax.lax.stop_gradient(probabilities.astype(jnp.float32))
  xent = -jnp.sum(probabilities * jax.nn.log_softmax(logits), axis=-1)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  total = jnp.sum(xent * class_weights)
  return CrossEntropy(total, xent, log_z, _argmax(logits))


def chunked_cross_entropy(
  logits_fn: Callable[[jax.Array], jax.Array],
  inputs: jax.Array,
  class_ids: jax.Array,
  class_weights: jax.Array,
  *,
  chunk_size: int,
  target: Target = Target(),
  gradient_in_forward: bool = True,
) -> CrossEntropy:
  """Returns the cross-entropy of `logits_fn(inputs)`, chunk by chunk.

  In reverse-mode differentiation through `total` only, the gradient is computed
  in the same loop as the value. Differentiation through `xent` or `log_z` is
  correct too, but adds a second loop that recomputes the logits. The output has
  no logits.

  Args:
    logits_fn: maps inputs [..., D] to logits [..., V]. It may close over
      weights, which get gradients, but must not draw random numbers or write
      variables.
    inputs: [..., T, D].
    class_ids: as in `cross_entropy`, [..., T].
    class_weights: likewise.
    chunk_size: number of positions on the time axis in a chunk.
    target: target distribution of a label.
    gradient_in_forward: whether to compute the gradient in the forward loop;
      use False if the loss depends on more than `total`.

  Raises:
    UserError: `chunk_size` is not positive.
  """
  if chunk_size < 1:
    raise errors.UserError(
      f'chunked_cross_entropy: chunk_size is {chunk_size}; expected 1 or more'
    )
  chunk_size = min(chunk_size, inputs.shape[-2])
  logits_of, weights = jax.closure_convert(
    lambda x: logits_fn(x).astype(jnp.float32), inputs[..., :chunk_size, :]
  )
  problem = _Problem(logits_of, target, chunk_size, gradient_in_forward)
  class_weights = class_weights.astype(jnp.float32)
  result = _chunked(problem, list(weights), inputs, class_ids, class_weights)
  return result._replace(nll=jax.lax.stop_gradient(result.nll))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(problem, weights, inputs, class_ids, class_weights):
  chunks = _Chunk(inputs, class_ids, class_weights)
  values, _ = _loop(problem, weights, chunks, gradients=False)
  return _with_total(values, class_weights)


def _forward(problem, weights, inputs, class_ids, class_weights):
  given = (weights, inputs, class_ids, class_weights)
  weights, inputs, class_ids, class_weights = jax.tree.map(
    lambda primal: primal.value, given
  )
  chunks = _Chunk(inputs, class_ids, class_weights)
  values, gradients = _loop(
    problem, weights, chunks, gradients=problem.gradient_in_forward
  )
  result = _with_total(values, class_weights)
  return result, (weights, chunks, result.xent, gradients)


def _backward(problem, residuals, derivatives: CrossEntropy):
  weights, chunks, xent, gradients = residuals
  of_total, of_xent, of_log_z, *_ = (_or_none(d) for d in derivatives)
  if of_total is None:
    of_total = jnp.zeros([])
  of_class_weights = of_total * xent
  if gradients is None or of_xent is not None or of_log_z is not None:
    by_position = of_total * chunks.of_xent
    if of_xent is not None:
      by_position += of_xent
    chunks = chunks._replace(of_xent=by_position, of_log_z=of_log_z)
    _, gradients = _loop(problem, weights, chunks, gradients=True)
    of_total = jnp.ones([])
  of_weights, of_inputs = jax.tree.map(
    lambda g, x: (of_total * g).astype(x.dtype),
    gradients,
    (weights, chunks.inputs),
  )
  return of_weights, of_inputs, None, of_class_weights


_chunked.defvjp(_forward, _backward, symbolic_zeros=True)


def _or_none(derivative):
  return None if isinstance(derivative, SymbolicZero) else derivative


def _with_total(values, class_weights) -> CrossEntropy:
  return CrossEntropy(jnp.sum(values[0] * class_weights), *values)


def _loop(problem: _Problem, weights, chunks: _Chunk, *, gradients: bool):
  """Loops over all chunks.

  Returns:
    (xent, log_z, argmax, nll), each [..., T], and the gradients of (weights,
    inputs), or None unless `gradients`. Those of weights are at least float32.
  """
  length, axis = chunks.class_ids.shape[-1], chunks.class_ids.ndim - 1
  count = math.ceil(length / problem.chunk_size)

  def split(x):
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, count * problem.chunk_size - length)
    shape = (*x.shape[:axis], count, problem.chunk_size, *x.shape[axis + 1 :])
    return jnp.moveaxis(jnp.pad(x, padding).reshape(shape), axis, 0)

  def join(x):
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)

  def step(sums, chunk: _Chunk):
    if not gradients:
      logits = problem.logits_of(chunk.inputs, *weights)
      return None, (_values(logits, chunk.class_ids, problem.target), None)
    values, of_weights, of_inputs = _with_gradients(problem, weights, chunk)
    return jax.tree.map(jnp.add, sums, of_weights), (values, of_inputs)

  zeros = None
  if gradients:
    zeros = [
      jnp.zeros(w.shape, jnp.promote_types(w.dtype, jnp.float32))
      for w in weights
    ]
  sums, outputs = jax.lax.scan(step, zeros, jax.tree.map(split, chunks))
  values, of_inputs = jax.tree.map(join, outputs)
  return values, (sums, of_inputs) if gradients else None


def _with_gradients(problem: _Problem, weights, chunk: _Chunk):
  """Returns the values of a chunk and gradients of weights and inputs."""
  logits, pull_back = jax.vjp(
    lambda weights, x: problem.logits_of(x, *weights), weights, chunk.inputs
  )
  values = _values(logits, chunk.class_ids, problem.target)
  log_z = values[1]
  of_log_z = chunk.of_xent
  if chunk.of_log_z is not None:
    of_log_z += chunk.of_log_z
  softmax = jnp.exp(logits - log_z[..., None])
  target = jnp.where(
    _is_label(logits, chunk.class_ids), problem.target.on, problem.target.off
  )
  of_logits = softmax * of_log_z[..., None] - target * chunk.of_xent[..., None]
  of_weights, of_inputs = pull_back(of_logits)
  return values, of_weights, of_inputs


def _values(logits, class_ids, target: Target):
  """Returns (xent, log_z, argmax, nll), each [...], of logits [..., V]."""
  log_z = jax.nn.logsumexp(logits, axis=-1)
  of_label = jnp.where(_is_label(logits, class_ids), logits, 0)
  of_label = jnp.sum(of_label, axis=-1)
  xent = log_z - (target.on - target.off) * of_label
  if target.off:
    xent -= target.off * jnp.sum(logits, axis=-1)
  nll = jax.lax.stop_gradient(log_z - of_label)
  return xent, log_z, _argmax(logits), nll


def _is_label(logits, class_ids):
  return _classes(logits) == class_ids[..., None]


def _classes(logits):
  return jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)


def _argmax(logits):
  """Returns the first class [...] with the largest logit.

  A minimum over class numbers is much faster on a CPU than `jnp.argmax`, which
  compares pairs.
  """
  logits = jax.lax.stop_gradient(logits)
  largest = jnp.max(logits, axis=-1, keepdims=True)
  last = logits.shape[-1] - 1
  return jnp.min(jnp.where(logits == largest, _classes(logits), last), axis=-1)
