"""Transformations under the names that optimizers written for Pax use.

The state of every optimizer is split like its weights, which is found by the
shapes of its leaves. So the partition specs of a transformation are accepted
and not needed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors
from pax_compat.layer_core.weight_hparams import WeightHParams
from pax_compat.nested_map import NestedMap


class ShardedGradientTransformation(NamedTuple):
  """An optax transformation; the partition specs of its state are not used."""

  init: Callable[[Any], Any]
  update: Callable[..., tuple[Any, Any]]
  init_partition_spec: Callable[[Any], Any] | None = None


GeneralGradientTransformation = (
  optax.GradientTransformation | ShardedGradientTransformation
)


def count_init_fn(params: Any) -> NestedMap:
  """Returns the state of a transformation that only counts steps."""
  del params
  return NestedMap(count=jnp.zeros([], jnp.int32))


def as_optax(
  transformation: GeneralGradientTransformation,
) -> optax.GradientTransformationExtraArgs:
  """Returns a transformation as one of optax, which takes extra arguments."""
  return optax.with_extra_args_support(
    optax.GradientTransformation(transformation.init, transformation.update)
    if isinstance(transformation, ShardedGradientTransformation)
    else transformation
  )


def sharded_chain(
  *args: GeneralGradientTransformation,
) -> ShardedGradientTransformation:
  """Returns the transformations one after the other, as `optax.chain`."""

  def init(params):
    return tuple(one.init(params) for one in args)

  def update(updates, state, params=None):
    if len(args) != len(state):
      raise errors.UserError(
        f'sharded_chain: {len(state)} states for {len(args)} transformations'
      )
    states = []
    for one, own in zip(args, state, strict=True):
      updates, own = one.update(updates, own, params)
      states.append(own)
    return updates, tuple(states)

  return ShardedGradientTransformation(init, update)


def sharded_masked(
  inner: GeneralGradientTransformation,
  mask: Any,
  use_custom_masked: bool = False,
) -> ShardedGradientTransformation:
  """Returns a transformation of some weights, as `optax.masked`.

  Args:
    inner: the transformation.
    mask: a tree of booleans, or a function from the weights to it.
    use_custom_masked: no effect, as in Pax.
  """
  del use_custom_masked
  masked = optax.masked(as_optax(inner), mask)
  return ShardedGradientTransformation(masked.init, masked.update)


def partition_params(
  grad_tx: GeneralGradientTransformation, var_weight_hparams: Any, state: Any
) -> Any:
  """Returns a state's metadata, those of weights being that of the weight.

  Nothing here needs it: the learner finds the leaves of weights by itself.

  Args:
    grad_tx: the transformation.
    var_weight_hparams: the tree of the `WeightHParams` of the weights.
    state: its state.
  """

  def of_weight(leaf, meta):
    return None if isinstance(leaf, optax.MaskedNode) else meta

  def of_other(leaf):
    return WeightHParams(leaf.shape, dtype=leaf.dtype)

  return optax.tree_map_params(
    as_optax(grad_tx),
    of_weight,
    state,
    var_weight_hparams,
    transform_non_params=of_other,
    is_leaf=lambda x: isinstance(x, optax.MaskedNode),
  )


def reduce_mean(array: jax.Array) -> jax.Array:
  """Returns the mean of all elements []."""
  return jnp.mean(array)


def reduce_rms(array: jax.Array) -> jax.Array:
  """Returns the root mean square of all elements []."""
  return jnp.sqrt(jnp.mean(jnp.square(array)))
