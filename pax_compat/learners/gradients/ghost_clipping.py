"""DP-SGD by ghost clipping, without the gradients of examples.

Shapes: I rows of an inner batch.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.learners.gradients import weight_uses
from pax_compat.learners.gradients.private import DpSgdStochasticGradient
from pax_compat.learners.variable_names import by_path, replace_leaves

_PREFIX = f'{base_layer.PARAMS}/'


class Plan(NamedTuple):
  """How the norm of each weight's gradient is computed.

  Attributes:
    tapped: paths of weights whose layers have taps.
    whole: paths of weights whose gradients are computed.
    problems: of weights whose gradients would have to be, what is wrong, by
      path.
  """

  tapped: frozenset[str]
  whole: frozenset[str]
  problems: Mapping[str, str]

  def check(self, where: str):
    """Raises a UserError if there are problems."""
    for path, problem in self.problems.items():
      more = len(self.problems) - 1
      raise errors.UserError(
        f'{where}: the weight {path!r} {problem}'
        + (f' (and {more} more like it)' if more else '')
        + '; expected a layer with ghost norms (Linear, Bias, Embedding,'
        ' attention projections, learned position embeddings) that alone uses'
        ' it, once, or weights of one dimension. `ghostnorm.generic_wrapper.'
        'generate_wrapped_template(tpl, force_wrap=True)` allows a layer the'
        ' gradients of its weights for each example; DpSgdStochasticGradient'
        ' with an inner_batch_size supports all layers'
      )


def plan(loss_fn: Callable[..., Any], weights: Any, *args: Any) -> Plan:
  """Returns how to compute the norm of a loss's gradient.

  Args:
    loss_fn: maps the other arguments to a value, which is only traced.
    weights: tree of the weights.
    *args: arrays, or their shapes.
  """
  paths = [path.removeprefix(_PREFIX) for path in by_path(weights)]
  with ghost_norms.finding() as found:

    def record(call, args, kwargs, context):
      found.layers['/'.join(context.module.path)] = type(context.module)
      return call(*args, **kwargs)

    with nn.intercept_methods(record):
      # Not the function itself, whose trace JAX might have kept.
      closed = jax.make_jaxpr(lambda *args: loss_fn(*args))(
        *_shapes((weights, *args))
      )
  uses = weight_uses.of_weights(closed, dict(enumerate(paths)))
  sizes = [leaf.size for leaf in jax.tree.leaves(weights)]
  tapped = {
    path
    for path, size in zip(paths, sizes, strict=True)
    if uses.tap_suffices(path, size, found)
  }
  whole = set(paths) - tapped
  problems = {
    path: _problem(path, found)
    for path in paths
    if path in whole and uses.rank(path) > 1 and not found.is_wrapped(path)
  }
  return Plan(frozenset(tapped), frozenset(whole), problems)


def _problem(path: str, found: ghost_norms.Found) -> str:
  owner = found.owner(path)
  if path in found.sizes:
    return f'of the layer {owner} is used several times, or elsewhere, too'
  return f'is of the layer {owner}, which has no ghost norms'


def _shapes(tree: Any) -> Any:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def with_norm(
  fn: Callable[..., Any], made: Plan
) -> Callable[[jax.Array, Any], Any]:
  """Returns `fn` with a probe [] as its first argument.

  The probe changes no value. If all else is constant, its gradient is the
  square of the norm of the gradient of the weights, the first argument of `fn`.
  """

  def measured(probe, weights, *args):
    whole = {
      path: ghost_norms.whole(weight, probe)
      for path, weight in by_path(weights).items()
      if path.removeprefix(_PREFIX) in made.whole
    }
    with ghost_norms.measuring(probe, made.tapped) as taps:
      result = fn(replace_leaves(weights, whole), *args)
    missing = made.tapped - taps.reached
    if missing:
      raise errors.UserError(
        f'the layer of the weight {min(missing)!r} is within a function of'
        ' jax.jit, whose trace JAX has kept, so that its ghost norms are not'
        ' computed; expected a loss without jax.jit'
      )
    return result

  return measured


class GhostClippingDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD without the gradients of examples: the numbers of its base class.

  A first pass computes the norm of each example's gradient, in the layers,
  without the gradient (https://arxiv.org/abs/2009.03106). A second one computes
  the gradient of the sum of the losses, each times the factor that clips it. So
  weights have no gradients for each example in memory, but for those of one
  dimension, such as the scales of a normalization.

  The model needs no change. A matrix that two layers share, such as that of an
  embedding and a softmax, is refused, and so are layers without ghost norms.

  Raises:
    UserError: a weight is not supported; or a subclass has microbatches, and
      `inner_batch_size` splits them.
  """

  def _clipped(self, loss_fn, weights, others_and_batch, key, parts):
    if parts > 1:
      raise errors.UserError(
        f'{type(self).__name__}: inner_batch_size is {self.inner_batch_size},'
        ' which splits microbatches, whose gradients have a norm as a whole;'
        ' expected a divisor of the number of microbatches'
      )
    others, batch = others_and_batch
    one = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch
    )
    made = plan(loss_fn, weights, (others, one), key)
    made.check(type(self).__name__)
    measured = with_norm(loss_fn, made)
    compute = self._for_each(
      lambda weights, others_and_batch, key, probe: jax.value_and_grad(
        measured, has_aux=True
      )(probe, weights, others_and_batch, key),
      0,
    )
    num = jax.tree.leaves(batch)[0].shape[0]
    (losses, aux), squares = compute(
      weights, others_and_batch, key, jnp.zeros([num])
    )
    factors = jnp.minimum(self._limit(aux) / jnp.sqrt(squares), 1.0)
    # 0 / 0 is not clipped, as by Optax.
    factors = jnp.nan_to_num(factors, nan=1.0)

    def weighted(weights):
      with ghost_norms.measuring(None, ()):
        own, _ = self._for_each(loss_fn)(weights, others_and_batch, key)
      return jnp.sum(own * factors) / num

    gradients = jax.grad(weighted)(weights)
    reported = {'frac_clipped': jnp.sum(factors < 1) / num}
    return (losses, aux), gradients, reported
