"""Calls a Lingvo task from JAX, with TensorFlow's gradients."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from adaptors import lingvo_runtime
from adaptors.bridge.functional.functional_task import FunctionalTask
from pax_compat import errors
from pax_compat.layer_core.row_gradients import RowStatistics


def call(
  task: FunctionalTask,
  losses: Sequence[str],
  *,
  params: Mapping[str, jax.Array],
  probes: Mapping[str, RowStatistics],
  others: tuple,
) -> tuple[dict, dict, dict]:
  """Computes a batch.

  TensorFlow computes the gradients together with the losses, in one forward
  pass. No other outputs can be differentiated.

  Args:
    task: the task.
    losses: names of the metrics that can be differentiated.
    params: variables to differentiate by, by theta path.
    probes: zeros by theta path, whose gradients are row statistics of the
      gradients of embedding tables; see `row_gradients`.
    others: non-trainable variables, batch, step and seed, as of
      `FunctionalTask.forward`.

  Returns:
    Metrics, per-example outputs and updates, as of `FunctionalTask.forward`.
  """

  @jax.custom_vjp
  def differentiable(params, probes, others):
    del probes
    return _of_variables(task.forward)(params, *others)

  def forward(params, probes, others):
    params, probes, others = _values((params, probes, others))
    traced = functools.partial(task.with_gradients, losses)
    outputs, gradients, statistics = _of_variables(traced)(params, *others)
    statistics = {
      loss: {
        path: RowStatistics(*found[path]) for path in probes if path in found
      }
      for loss, found in statistics.items()
    }
    return outputs, (gradients, statistics, probes)

  def backward(residuals, cotangents):
    gradients, statistics, probes = residuals
    by_loss = _cotangents(task, losses, cotangents)
    by_param = [
      jax.tree.map(lambda g, w=w: (w * g).astype(g.dtype), gradients[loss])
      for loss, w in by_loss.items()
    ]
    by_probe = [
      {
        path: _scaled(statistics[loss].get(path, zeros), w)
        for path, zeros in probes.items()
      }
      for loss, w in by_loss.items()
    ]
    return _sum(by_param), _sum(by_probe), None

  differentiable.defvjp(forward, backward, symbolic_zeros=True)
  return differentiable(dict(params), dict(probes), others)


def seed(key: jax.Array) -> jax.Array:
  """Returns a seed [2], int32, from a key."""
  bits = jax.random.bits(key, [2], jnp.uint32)
  return jax.lax.bitcast_convert_type(bits, jnp.int32)


def in_jax(function: Callable) -> Callable:
  """Returns a function of nested tensors as a function of nested arrays.

  TensorFlow lowers it for CPUs on every platform: the result is StableHLO, not
  machine code, and is the same on all devices. TensorFlow cannot lower for TPUs
  without a TPU.

  Args:
    function: takes and returns nested tensors.
  """
  jax2tf = lingvo_runtime.module('jax.experimental.jax2tf')
  called = jax.jit(jax2tf.call_tf(function, has_side_effects=False))

  def call(*args):
    specs = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), args
    )
    exported = jax.export.export(
      called,
      platforms=('cpu',),
      disabled_checks=[jax.export.DisabledSafetyCheck.platform()],
    )(*specs)
    return exported.call(*args)

  return call


def _of_variables(function: Callable) -> Callable:
  """Like `in_jax`, for a function whose variables are passed in two dicts."""

  def computed(params, others, *rest):
    return function({**params, **others}, *rest)

  return in_jax(computed)


def _values(tree: Any) -> Any:
  """Returns the values of `custom_vjp`'s arguments with symbolic zeros."""
  return jax.tree.map(
    lambda x: x.value, tree, is_leaf=lambda x: hasattr(x, 'perturbed')
  )


def _cotangents(task, losses, cotangents) -> dict[str, jax.Array]:
  """Returns the cotangents of the differentiated losses; at least one.

  Raises:
    UserError: another output is differentiated.
  """
  metrics, per_example, updates = cotangents
  others = {
    f'the weight of {name}': weight for name, (_, weight) in metrics.items()
  }
  others |= {
    name: value for name, (value, _) in metrics.items() if name not in losses
  }
  for name, value in {**others, **per_example, **updates}.items():
    if not _is_zero(value):
      raise errors.UserError(
        f'{task.task.params.name}: {name} cannot be differentiated; a bridged'
        f' task has gradients of {", ".join(losses)} only'
      )
  taken = [name for name in losses if not _is_zero(metrics[name][0])]
  return {name: _array(metrics[name][0]) for name in taken or losses[:1]}


def _is_zero(x: Any) -> bool:
  return isinstance(x, SymbolicZero) or x.dtype == jax.dtypes.float0


def _array(x: Any) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype) if isinstance(x, SymbolicZero) else x


def _scaled(statistics: RowStatistics, weight: jax.Array) -> RowStatistics:
  """Returns the row statistics of gradients multiplied by `weight` []."""
  return RowStatistics(
    statistics.counts, statistics.sum_squares * jnp.square(weight)
  )


def _sum(trees: Sequence[Any]) -> Any:
  return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)
